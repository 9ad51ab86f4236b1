etcd {
  endpoints = ["http://a:2379"]
  username  = "leno"
  tls {}
}
lease {
  hold = "1m"
}
