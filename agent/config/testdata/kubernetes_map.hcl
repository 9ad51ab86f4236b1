kubernetes {
  net_conf   = "/etc/net-conf.json"
  config_map = "kube-flannel/kube-flannel-cfg/net-conf.json"
}
