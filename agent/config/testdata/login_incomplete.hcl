consul {
  login {
    auth_method = "nomad-workloads"
  }
}
