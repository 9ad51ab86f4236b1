# What a Nomad client needs for leno, beside its own configuration: /etc/nomad.d/leno.hcl
client {
  # The defaults: where leno-cni lies beside the plugins bridge, host-local, portmap
  # and loopback, and where leno.conflist lies before Nomad starts.
  cni_path       = "/opt/cni/bin"
  cni_config_dir = "/opt/cni/config"
}

# The agent needs the host's network and its files below /run and /var/lib.
plugin "raw_exec" {
  config {
    enabled = true
  }
}
