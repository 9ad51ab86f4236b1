# Consul is the default, but the block makes it explicit.
consul {}
kubernetes {}
lease {
  ttl  = "2m"
  hold = "3m"
}
