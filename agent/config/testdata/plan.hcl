network "no-common-slot" {
  ipv4 {
    prefix     = "10.5.0.0/16"
    subnet_len = 24
    min        = "10.5.200.0"
  }
  ipv6 {
    prefix     = "fd00:5::/58"
    subnet_len = 64
  }
}

network "too-few" {
  ipv4 {
    prefix     = "10.6.0.0/23"
    subnet_len = 24
  }
}

network "inverted" {
  ipv4 {
    prefix     = "10.7.0.0/16"
    subnet_len = 24
    min        = "10.7.9.0"
    max        = "10.7.3.0"
  }
}
