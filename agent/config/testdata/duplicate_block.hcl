lease {
  ttl          = "25h"
  renew_margin = "0s"
}

lease {
  renew_margin = "1s"
}
