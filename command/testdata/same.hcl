network "default" {
  ipv4 {
    prefix = "10.5.0.0/16"
  }
  ipv6 {
    prefix = "fd00:5::/48"
  }
  backend "vxlan" {
    vni            = 1
    port           = 8472
    direct_routing = false
  }
}
