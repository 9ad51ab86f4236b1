etcd {
  endpoints = a
  tls {
    ca_file = "/ca"
  }
}
