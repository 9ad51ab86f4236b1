etcd {
  endpoints = ["https://a:2379", "http://b:2379"]
}
lease {
  hold = "1m"
}
