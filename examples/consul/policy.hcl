# Consul ACL rules for the agent on one host, with default policy "deny". "host-a" is the
# host's node in Consul. "leno" is the value of consul.kv_prefix and consul.service.

# The lease of the host, and the records of hosts that have been gone for longer than hold.
key_prefix "leno/leases/" {
  policy = "write"
}

# The directory of changes to leases, which the other hosts watch.
key_prefix "leno/changes/" {
  policy = "write"
}

# Networks, reservations, and the leases of all hosts. "list" includes "read"; Consul's
# option acl.enable_key_list_policy asks for it.
key_prefix "leno/" {
  policy = "list"
}

# To define the networks of the agent's configuration (blocks with ipv4 or ipv6), to
# restore a network that Consul has lost, to end a switch to another backend, and to begin
# one to new keys. Without this rule, the agent waits for `leno network apply` or `leno
# network switch`, or for another agent that may do so, and packets keep flowing.
key_prefix "leno/networks/" {
  policy = "write"
}

# The session that holds the lease.
session "host-a" {
  policy = "write"
}

# The sessions of other hosts. After Consul has lost records, a host without a lease waits
# for the hosts that have sessions, so that it does not take a subnet in use.
session_prefix "" {
  policy = "read"
}

# The agent's service in the catalog, with its health check.
service "leno" {
  policy = "write"
}

# The host's node name in Consul.
agent "host-a" {
  policy = "read"
}
