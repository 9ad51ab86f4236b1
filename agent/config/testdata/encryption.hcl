network "value" {
  ipv4 {
    prefix = "10.5.0.0/16"
  }
  backend "alloc" {}
  encryption = "optional"
}

network "plain" {
  ipv4 {
    prefix = "10.6.0.0/16"
  }
  encryption = "required"
}

network "joined" {
  encryption = "required"
}
