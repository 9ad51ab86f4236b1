consul {
  token_file = "/etc/leno.d/token"
  login {
    auth_method       = "nomad-workloads"
    bearer_token_file = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJ0ZXN0In0.c2lnbmF0dXJl"
    meta              = ["a"]
    bearer            = "x"
  }
}
