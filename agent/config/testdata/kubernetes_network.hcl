kubernetes {
  network = "blue"
}
network "blue" {}
network "red" {}
