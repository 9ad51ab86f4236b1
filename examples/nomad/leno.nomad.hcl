# The leno agent on every client of a Nomad cluster.
#
#   nomad job run leno.nomad.hcl
#   nomad job run -var=leno=/opt/leno/0.2.0/leno leno.nomad.hcl    an upgrade

variable "leno" {
  description = "Path of the leno binary on the clients"
  type        = string
  default     = "/usr/local/bin/leno"
}

variable "release_on_stop" {
  description = "Give a host's subnet back when its agent stops, by a drain for instance"
  type        = bool
  default     = false
}

variable "stagger" {
  description = "Time between one host and the next when there is a new version of this job"
  type        = string
  default     = "30s"
}

job "leno" {
  type     = "system"
  priority = 90 # before what needs its addresses

  # One host after the other gets a new version of this job, whether or not it is well on
  # the one before: this is the time to see that, and to go back.
  update {
    max_parallel = 1
    stagger      = var.stagger
  }

  group "leno" {
    # An agent that ends is started again for ever. One that cannot be started at all,
    # because the binary is missing for instance, is not: its allocation fails.
    restart {
      attempts = 20
      interval = "1m"
      delay    = "1s"
      mode     = "delay"
    }

    # There is one agent a host, and its port is a fixed one.
    network {
      port "http" {
        static = 5366
      }
    }

    # For `nomad service info leno` and `nomad alloc checks`. The agent registers itself
    # in Consul, with its networks and subnets, so this one is in Nomad.
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

      template {
        destination   = "local/leno.hcl"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        data          = <<-EOF
          node_name = "{{ env "node.unique.name" }}"

          # The interface whose address Nomad has of this host.
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

      # Packets flow on while no agent runs: it stops at once and leaves the datapath.
      kill_signal  = "SIGINT"
      kill_timeout = "20s"

      resources {
        cpu    = 100
        memory = 128
      }
    }
  }
}
