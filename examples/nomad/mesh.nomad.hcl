# A web server and a client in Consul's service mesh, each with its own address in the leno
# network. Each group has its own proxy: the one that is part of the consul program.
job "mesh" {
  constraint {
    operator = "distinct_hosts"
    value    = "true"
  }

  group "web" {
    network {
      mode = "cni/leno"
    }

    service {
      name         = "mesh-web"
      port         = "8080"
      address_mode = "alloc"
    }

    # Redirects what arrives at the allocation to the proxy, whatever its port. The task runs in
    # the network namespace of the allocation, so no other network is affected.
    task "redirect" {
      driver = "raw_exec"

      lifecycle {
        hook = "prestart"
      }

      config {
        command = "consul"
        args = ["connect", "redirect-traffic", "-proxy-uid=0", "-proxy-inbound-port=20000",
        "-exclude-outbound-cidr=0.0.0.0/0"]
      }

      # The API of the host's Consul agent.
      env {
        CONSUL_HTTP_ADDR = "${attr.unique.network.ip-address}:8500"
      }
    }

    task "proxy" {
      driver = "raw_exec"

      # It registers the address of the allocation in Consul, as a proxy of mesh-web.
      config {
        command = "sh"
        args = ["-euc", <<-EOF
          addr=$(ip -4 -o addr show dev eth0 | awk '{ sub("/.*", "", $4); print $4 }')
          exec consul connect proxy -service=mesh-web -service-addr=127.0.0.1:8080 \
            -listen=$addr:20000 -register -register-id=$NOMAD_ALLOC_ID
        EOF
        ]
      }

      env {
        CONSUL_HTTP_ADDR = "${attr.unique.network.ip-address}:8500"
      }
    }

    task "httpd" {
      driver = "raw_exec"

      config {
        command = "busybox"
        args    = ["httpd", "-f", "-p", "127.0.0.1:8080", "-h", "${NOMAD_TASK_DIR}"]
      }

      template {
        destination = "local/index.html"
        data        = "This is the mesh.\n"
      }
    }
  }

  group "client" {
    network {
      mode = "cni/leno"
    }

    # Programs in this group reach mesh-web at 127.0.0.1:9191.
    task "proxy" {
      driver = "raw_exec"

      config {
        command = "consul"
        args    = ["connect", "proxy", "-service=mesh-client", "-upstream=mesh-web:9191"]
      }

      env {
        CONSUL_HTTP_ADDR = "${attr.unique.network.ip-address}:8500"
      }
    }
  }
}
