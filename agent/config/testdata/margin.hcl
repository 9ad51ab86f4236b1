lease {
  renew_margin = "0s"
}
