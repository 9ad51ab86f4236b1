# Nomad client configuration for leno-exec.nomad.hcl, in addition to client.hcl. Install it
# as /etc/nomad.d/leno-exec.hcl.
client {
  # Directories owned by the user leno. They must exist when Nomad starts.
  host_volume "leno-state" {
    path = "/var/lib/leno"
  }

  host_volume "leno-run" {
    path = "/run/leno"
  }
}

plugin "exec" {
  config {
    # Nomad's default list, and the two capabilities that the agent needs.
    allow_caps = [
      "audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod", "net_bind_service",
      "setfcap", "setgid", "setpcap", "setuid", "sys_chroot",
      "net_admin", "net_raw",
    ]
  }
}
