lease {
  ttl          = "1m"
  renew_margin = "60s"
  hold         = "90s"
}
