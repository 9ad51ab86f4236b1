# What leno does on this host. The agent reads all .hcl and .json files in /etc/leno.d.
# Every option with its default: /usr/share/doc/leno/examples/config.hcl.example.
#
# Nothing is set here, so no network is joined. Take the marks off, choose a prefix
# that nobody uses where this host is, and then:
#
#   leno validate /etc/leno.d
#   systemctl enable --now leno

# network "default" {
#   ipv4 {
#     prefix = "10.5.0.0/16"
#   }
#   backend "vxlan" {}
# }
