# Consul ACL rules for consul-template under default deny: what it reads of the network
# "default". "leno" is what consul.kv_prefix says.

key "leno/networks/default" {
  policy = "read"
}

key_prefix "leno/leases/default/" {
  policy = "read"
}
