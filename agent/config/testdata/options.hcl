network "a" {
  ipv4 {
    prefix = "10.5.0.0/16"
  }
  backend "vxlan" {
    port = var.port
    vni  = 0
    prot = 1
    peers {}
  }
}
