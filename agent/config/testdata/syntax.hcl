lease {
  ttl = "2m
}
