log_levle = "INFO"
log_lvl = "x"
log_level = "loud"
data_dir = "x"
node_name = ["a"]
log_rotate_bytes = -1
log_rotate_max_files = 1.5
allowed_networks = ["a[", ""]
watch_networks = "maybe"
consul {
  address = "ftp://x"
  token = "a"
  token_file = "/b"
  kv_prefix = "/leno/"
  service = "a b"
  tls { cert_file = "x" }
}
leese {}
lease {
  ttl = "5s"
  renew_margin = "-3s"
  hold = 10
  on_lost = "retry"
}
underlay {
  interfaces = ["averyveryverylongname"]
  interface_regex = ["^eth("]
  can_reach = "host"
  public_ip = "2001:db8::1"
  public_ipv6 = "{{ GetFoo }}"
  public_ports = { 51820 = 51830, 51821 = 51830 }
}
http { address = "127.0.0.1:99999" }
network "a" {
  ipv4 {
    prefix = "10.5.0.1/16"
  }
  backend "vxlan" {
    vni = 0
    prot = 1
  }
}
network "b/c" {
  ipv4 {
    prefix = "10.6.0.0/16"
    subnet_len = 31
  }
  subnet_file = "/run/leno/a.env"
}
network "d" {
  ipv4 {
    prefix = "10.6.1.0/24"
    min = "10.7.0.0"
    max = "10.8.0.0"
  }
  ipv6 {
  }
  backend "vxlna" {}
}
network "a" {}
network "e" {
  backend "alloc" {}
}
network "f" {
  ipv4 {
    prefix = "10.6.128.0/17"
    min = var.x
  }
}
