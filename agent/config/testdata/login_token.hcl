consul {
  token = "a"
  login {
    auth_method       = "nomad-workloads"
    bearer_token_file = "/secrets/nomad_consul.jwt"
  }
}
