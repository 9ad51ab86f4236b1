// Leno leases a subnet to every host from one address plan in Consul and carries packets between
// the containers on those hosts.
package main

import (
	"os"
	"runtime/debug"

	"github.com/lenonet/leno/command"
)

// version is set by the linker: -X main.version=0.1.0.
var version = "0.1.0-dev"

func main() {
	// Programs such as iptables are in directories that services and cron often do not search.
	_ = os.Setenv("PATH", command.SearchPath(os.Getenv("PATH")))
	build, _ := debug.ReadBuildInfo()
	os.Exit(command.Main(os.Args, command.NewMeta(version, build)))
}
