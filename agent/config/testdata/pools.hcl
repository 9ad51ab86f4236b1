network "prefix-too-long" {
  ipv4 {
    prefix = "10.1.0.0/29"
  }
  backend "alloc" {}
}

network "prefix-too-long-for-its-subnets" {
  ipv4 {
    prefix     = "10.2.0.0/29"
    subnet_len = 30
  }
  backend "alloc" {}
}

network "host-bits" {
  ipv4 {
    prefix     = "10.3.0.9/24"
    subnet_len = 28
  }
  backend "alloc" {}
}

network "subnet-too-long" {
  ipv4 {
    prefix     = "10.4.0.0/16"
    subnet_len = 31
  }
  backend "alloc" {}
}

network "too-many-by-default" {
  ipv6 {
    prefix = "fd00::/16"
  }
  backend "alloc" {}
}

# Its default would make too many subnets; the length that is set does not.
network "good" {
  ipv6 {
    prefix     = "fc00::/16"
    subnet_len = 40
  }
  backend "alloc" {}
}
