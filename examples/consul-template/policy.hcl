# Consul ACL rules for consul-template with default policy "deny": read access to the data
# of the network "default". "leno" is the value of consul.kv_prefix.

key "leno/networks/default" {
  policy = "read"
}

key_prefix "leno/leases/default/" {
  policy = "list"
}
