# Consul ACL rules for the tokens that agents get by logging in, with default policy "deny".
# They are those of examples/consul/policy.hcl, for all nodes: a token from a login is not
# bound to one host.
key_prefix "leno/leases/" {
  policy = "write"
}

key_prefix "leno/changes/" {
  policy = "write"
}

key_prefix "leno/" {
  policy = "list"
}

key_prefix "leno/networks/" {
  policy = "write"
}

session_prefix "" {
  policy = "write"
}

service "leno" {
  policy = "write"
}

agent_prefix "" {
  policy = "read"
}
