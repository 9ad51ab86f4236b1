// Package cni is leno's plugin for the Container Network Interface. It gives a container an
// interface in a network by running the reference plugins bridge and host-local.
//
// A network configuration (conf.go) and what is known of the network on this host (facts.go,
// lookup.go, subnet_file.go) become the configuration of the other plugin (delegate.go). What that
// plugin was told is in a record (record.go, store.go), which attachment.go takes from phase to
// phase. The remaining files change the host: bridges and their gateways, namespaces, forwarding.
package cni

import "github.com/lenonet/leno/command/cli"

// Name is the name of the plugin's file, next to `leno`.
const Name = "leno-cni"

// plugin is `leno cni`.
type plugin struct {
	meta     cli.Meta
	conflist bool
	network  string

	runDir     string // directory of subnet files, "" for the default
	agentError error  // why the agent did not respond to the last request
}
