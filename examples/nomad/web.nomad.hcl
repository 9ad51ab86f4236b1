# Two web servers on two hosts, each with its own address in the leno network.
job "web" {
  group "web" {
    count = 2

    constraint {
      operator = "distinct_hosts"
      value    = "true"
    }

    # "leno" is the network name in leno.conflist.
    network {
      mode = "cni/leno"
    }

    # Consul gets the address of the allocation, which every host can reach. No host port is
    # needed, and the check uses the same address.
    service {
      name         = "web"
      port         = "8080"
      address_mode = "alloc"

      check {
        type         = "http"
        path         = "/"
        interval     = "5s"
        timeout      = "2s"
        address_mode = "alloc"
      }
    }

    # An allocation that starts on a host before leno does fails and is rescheduled.
    reschedule {
      delay          = "5s"
      delay_function = "constant"
      unlimited      = true
    }

    task "httpd" {
      driver = "raw_exec"

      config {
        command = "busybox"
        args    = ["httpd", "-f", "-p", "8080", "-h", "${NOMAD_TASK_DIR}"]
      }

      template {
        destination = "local/index.html"
        data        = "This is {{ env \"NOMAD_ALLOC_NAME\" }} on {{ env \"node.unique.name\" }}.\n"
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
