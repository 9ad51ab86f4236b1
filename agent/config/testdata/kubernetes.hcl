kubernetes {
  node_name         = "Host_A"
  network           = "Blue"
  net_conf          = "net-conf.json"
  annotation_prefix = "example.com/flannel"
  config_map        = "x"
}
etcd {}
lease {
  ttl = "5s"
}
network "a" {
  backend "vxlan" {}
}
