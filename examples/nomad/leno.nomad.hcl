# The leno agent on every client of a Nomad cluster.
#
#   nomad job run leno.nomad.hcl
#   nomad job run -var=leno=/opt/leno/0.2.0/leno leno.nomad.hcl    # upgrade

variable "leno" {
  description = "Path of the leno binary on the clients"
  type        = string
  default     = "/usr/local/bin/leno"
}

variable "release_on_stop" {
  description = "Release the host's subnet when its agent stops, for example during a drain"
  type        = bool
  default     = false
}

variable "stagger" {
  description = "Time to wait between hosts when a new version of this job rolls out"
  type        = string
  default     = "30s"
}

variable "auth_method" {
  description = "Consul auth method that the agents log in with, if Consul uses ACLs"
  type        = string
  default     = ""
}

job "leno" {
  type     = "system"
  priority = 90 # higher than the jobs that use its addresses

  # A new version of this job rolls out one host at a time. Since Nomad 1.11, an agent must be
  # ready for min_healthy_time before the next host follows, and a version that fails is
  # reverted. Earlier releases wait for stagger and do not check the health of the agent.
  update {
    max_parallel     = 1
    stagger          = var.stagger
    min_healthy_time = var.stagger
    auto_revert      = true
  }

  group "leno" {
    # Nomad restarts an agent that exits, without a limit. If the agent cannot be started
    # at all, for example because the binary is missing, the allocation fails instead.
    restart {
      attempts = 20
      interval = "1m"
      delay    = "1s"
      mode     = "delay"
    }

    # Each host runs one agent, on a fixed port.
    network {
      port "http" {
        static = 5366
      }
    }

    # For `nomad service info leno` and `nomad alloc checks`. The agent registers itself in
    # Consul with its networks and subnets, so this service is registered in Nomad.
    service {
      name     = "leno"
      provider = "nomad"
      port     = "http"
      address  = "127.0.0.1"

      check {
        type     = "http"
        path     = "/readyz"
        interval = "5s"
        timeout  = "2s"
      }
    }

    task "agent" {
      driver = "raw_exec"

      config {
        command = var.leno
        args    = ["agent", "-config-file=${NOMAD_TASK_DIR}/leno.hcl"]
      }

      # The agent logs in to Consul with this identity if auth_method is set. Nomad writes it to
      # a file and replaces it in time. Identities named consul_... are for logins by Nomad.
      identity {
        name = "leno"
        aud  = ["consul.io"]
        file = true
        ttl  = "1h"
      }

      template {
        destination   = "local/leno.hcl"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        data          = <<-EOF
          node_name = "{{ env "node.unique.name" }}"

          %{ if var.auth_method != "" ~}
          consul {
            login {
              auth_method       = "${var.auth_method}"
              bearer_token_file = "{{ env "NOMAD_SECRETS_DIR" }}/nomad_leno.jwt"
            }
          }

          %{ endif ~}
          # The interface with the address that Nomad fingerprinted for this host.
          underlay {
            interfaces = ["{{ env "attr.unique.network.ip-address" }}"]
          }

          lease {
            release_on_stop = ${var.release_on_stop}
          }

          network "default" {
            ipv4 {
              prefix = "10.5.0.0/16"
            }
            backend "vxlan" {}
            ip_masq = true
          }
        EOF
      }

      # On SIGINT the agent exits at once and leaves the datapath in place, so packets keep
      # flowing while no agent runs.
      kill_signal  = "SIGINT"
      kill_timeout = "20s"

      resources {
        cpu    = 100
        memory = 128
      }
    }
  }
}
