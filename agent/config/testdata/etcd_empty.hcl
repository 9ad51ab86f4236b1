etcd {
  endpoints = []
  password  = "x"
}
lease {
  hold = "1m"
}
