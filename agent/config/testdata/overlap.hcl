network "one" {
  ipv4 {
    prefix = "10.5.0.0/16"
  }
  ipv6 {
    prefix = "fd00:5::/48"
  }
}

network "two" {
  ipv4 {
    prefix = "10.0.0.0/8"
  }
  ipv6 {
    prefix = "fd00:5:0:8000::/52"
  }
}

network "three" {
  ipv4 {
    prefix = "fd00:6::/48"
  }
  backend "vxlan" {
    vni  = 7
    port = 7
  }
}
