network "a" {
  ipv4 {
    prefix = "10.5.0.0/16"
  }
}

network "b" {
  ipv4 {
    prefix = "10.6.0.0/16"
  }
  backend "vxlan" {
    gbp = true
  }
}

network "c" {
  ipv4 {
    prefix = "10.7.0.0/16"
  }
  backend "vxlan" {
    port = 4789
  }
}

network "d" {
  ipv4 {
    prefix = "10.8.0.0/16"
  }
}

network "joined" {}
