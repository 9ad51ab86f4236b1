# The configuration of leno on this host. The agent reads all .hcl and .json files in /etc/leno.d.
# Every option with its default: /usr/share/doc/leno/examples/config.hcl.example.
#
# Nothing is set here, so the host joins no network. Remove the comment marks below,
# choose a prefix that is not in use in your network, and then:
#
#   leno validate /etc/leno.d
#   systemctl enable --now leno

# network "default" {
#   ipv4 {
#     prefix = "10.5.0.0/16"
#   }
#   backend "vxlan" {}
#   ip_masq = true
# }
