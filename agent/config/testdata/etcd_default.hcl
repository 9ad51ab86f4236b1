etcd {
  endpoints     = null
  password_file = "/x"
  tls {
    ca_file = "x"
  }
}
lease {
  hold = "1m"
}
