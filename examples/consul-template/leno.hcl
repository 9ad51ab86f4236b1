# consul-template configuration that renders files from leno's data in Consul:
#
#   consul-template -config=/etc/consul-template/leno.hcl
#
# Set LENO_NODE_NAME in the environment to the name of this host, and CONSUL_HTTP_TOKEN to a
# Consul token with the rules in policy.hcl.

consul {
  address = "127.0.0.1:8500"

  # Retry without a limit while Consul is unavailable. The files stay as they are.
  retry {
    attempts    = 0
    max_backoff = "10s"
  }
}

# The signal that systemd sends to stop a service. The default is SIGINT.
kill_signal = "SIGTERM"

# If a template cannot be rendered, keep its file unchanged and render the others.
template_error_fatal = false

# All hosts and their subnets.
template {
  source      = "/etc/consul-template/hosts.json.ctmpl"
  destination = "/run/consul-template/leno/hosts.json"
  perms       = 0644
}

# This host's own subnet.
template {
  source      = "/etc/consul-template/subnet.env.ctmpl"
  destination = "/run/consul-template/leno/subnet.env"
  perms       = 0644
}

# The access list for nginx. Without "|| true", a failing command would stop consul-template.
template {
  source          = "/etc/consul-template/nginx-allow.conf.ctmpl"
  destination     = "/etc/nginx/leno-allow.conf"
  perms           = 0644
  command         = "nginx -t -q && nginx -s reload || true"
  command_timeout = "10s"

  # Hosts that join at the same time cause only one reload.
  wait {
    min = "100ms"
    max = "500ms"
  }
}

# The options for docker0. Docker reads them at its next start. This configuration does not
# restart Docker, because that stops containers.
template {
  source      = "/etc/consul-template/daemon.json.ctmpl"
  destination = "/etc/docker/daemon.json"
  perms       = 0644
}
