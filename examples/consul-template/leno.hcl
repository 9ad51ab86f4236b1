# consul-template renders what leno has in Consul:
#
#   consul-template -config=/etc/consul-template/leno.hcl
#
# Its environment says which host this is, LENO_NODE_NAME, and has the token for Consul,
# CONSUL_HTTP_TOKEN, with the rights of policy.hcl.

consul {
  address = "127.0.0.1:8500"

  # Consul away is no reason to end: files stay as they are until it is back.
  retry {
    attempts    = 0
    max_backoff = "10s"
  }
}

# What systemd ends it with; by default it takes SIGINT alone.
kill_signal = "SIGTERM"

# A template that cannot be rendered leaves its file as it is, and the others go on.
template_error_fatal = false

# All hosts and their subnets.
template {
  source      = "/etc/consul-template/hosts.json.ctmpl"
  destination = "/run/consul-template/leno/hosts.json"
  perms       = 0644
}

# This host's own.
template {
  source      = "/etc/consul-template/subnet.env.ctmpl"
  destination = "/run/consul-template/leno/subnet.env"
  perms       = 0644
}

# Whom nginx lets in. A command that fails would end consul-template.
template {
  source          = "/etc/consul-template/nginx-allow.conf.ctmpl"
  destination     = "/etc/nginx/leno-allow.conf"
  perms           = 0644
  command         = "nginx -t -q && nginx -s reload || true"
  command_timeout = "10s"

  # Hosts that come together cost one reload.
  wait {
    min = "100ms"
    max = "500ms"
  }
}

# docker0's options. Docker takes them when it starts the next time; that is not done
# here, for it stops containers.
template {
  source      = "/etc/consul-template/daemon.json.ctmpl"
  destination = "/etc/docker/daemon.json"
  perms       = 0644
}
