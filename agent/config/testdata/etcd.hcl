etcd {
  endpoints     = ["http://a", "10.0.0.1", "unix:///x", "https://a:2379/v3", "http://root:x@a:2379", ":2379", "http://a:99999"]
  prefix        = "coreos.com/network/"
  network       = "Blue"
  password      = "x"
  password_file = "/x"
  user          = "leno"
  tls {
    cert_file = "x"
  }
}
lease {
  ttl = "5s"
}
network "a" {
  backend "vxlan" {}
}
