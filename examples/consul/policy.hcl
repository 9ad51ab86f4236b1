# Consul ACL rules for the agent on one host, under default deny. "host-a" is the
# host's node in Consul and "leno" what consul.kv_prefix and consul.service say.

# Its lease, and the records of hosts that have been gone for longer than hold.
key_prefix "leno/leases/" {
  policy = "write"
}

# What changed among the leases, which is what the other hosts watch.
key_prefix "leno/changes/" {
  policy = "write"
}

# Networks, reservations, and everybody's leases.
key_prefix "leno/" {
  policy = "read"
}

# To define the networks of the agent's configuration (blocks with ipv4 or ipv6), and
# to put a network back that Consul has lost. Without it the agent waits for `leno
# network apply` in both cases, and packets keep flowing.
key_prefix "leno/networks/" {
  policy = "write"
}

# The session that holds the lease.
session "host-a" {
  policy = "write"
}

# The sessions of other hosts. After Consul has lost records, a host without a lease waits
# for the hosts that have sessions, so that it does not take a subnet that is in use.
session_prefix "" {
  policy = "read"
}

# The agent's entry in the catalogue, with its check.
service "leno" {
  policy = "write"
}

# The host's name in Consul.
agent "host-a" {
  policy = "read"
}
