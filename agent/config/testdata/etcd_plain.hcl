etcd {
  endpoints = ["http://a:2379"]
  username  = "leno"
  tls {
    ca_file = "x"
  }
}
lease {
  hold = "1m"
}
