# What a Nomad client needs for leno-exec.nomad.hcl, beside client.hcl:
# /etc/nomad.d/leno-exec.hcl
client {
  # Directories of the user leno. They must be there when Nomad starts.
  host_volume "leno-state" {
    path = "/var/lib/leno"
  }

  host_volume "leno-run" {
    path = "/run/leno"
  }
}

plugin "exec" {
  config {
    # Nomad's own list, and the two rights that the agent needs.
    allow_caps = [
      "audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod", "net_bind_service",
      "setfcap", "setgid", "setpcap", "setuid", "sys_chroot",
      "net_admin", "net_raw",
    ]
  }
}
