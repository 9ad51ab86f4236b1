network "default" {
  ipv4 {
    prefix     = "10.5.0.0/16"
    subnet_len = 24
    max        = "10.5.64.0"
  }
  backend "vxlan" {
    vni            = 1
    port           = 4789
    direct_routing = false
    gbp            = true
  }
}

network "green" {
  ipv4 {
    prefix = "10.7.0.0/16"
  }
  backend "host-gw" {}
}

network "blue" {
  ipv4 {
    prefix = "10.9.0.0/20"
  }
  backend "alloc" {}
}
