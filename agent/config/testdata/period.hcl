lease {
  ttl          = "2m"
  renew_margin = "109s"
}
