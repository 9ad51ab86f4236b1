# Nomad client configuration for leno. Install it as /etc/nomad.d/leno.hcl, next to the
# client's own configuration.
client {
  # These are Nomad's defaults. cni_path contains leno-cni and the plugins bridge,
  # host-local, portmap and loopback. cni_config_dir must contain leno.conflist before
  # Nomad starts.
  cni_path       = "/opt/cni/bin"
  cni_config_dir = "/opt/cni/config"
}

# The agent works in the host's network namespace, and on files in /run and /var/lib.
plugin "raw_exec" {
  config {
    enabled = true
  }
}
