log_levl = "INFO"

consul {
  adress = "127.0.0.1:8500"
}

netwrok "default" {
}

network {
}
