package config

import (
	"encoding/json"
	"net/netip"
	"time"
)

// DefaultBackend is the backend of a network whose block names none.
const DefaultBackend = "vxlan"

// DefaultRotateBytes is the size that a log file does not exceed when log_rotate_bytes is 0.
const DefaultRotateBytes = 100 << 20

// runDir is the default directory of the subnet files and of the socket.
const runDir = "/run/leno"

// DefaultSocket is where an agent listens for commands on its host by default.
const DefaultSocket = runDir + "/leno.sock"

// DevDataDir is the default state directory of `leno agent -dev`, which removes it when it stops.
const DevDataDir = runDir + "/dev"

// CNIDir is where leno-cni keeps its records by default.
const CNIDir = "/run/leno-cni"

const defaultTTL = 2 * time.Minute

// Defaults returns the configuration of an agent without any file: it takes part in no network.
func Defaults() Config {
	var c Config
	resetAll(c.settings(nil), func(s Setting) bool {
		return !isBelow(s.Name, StoreEtcd) && !isBelow(s.Name, StoreKubernetes)
	})
	return c
}

// Dev returns the configuration of `leno agent -dev`: one network "dev" in a registry in memory, a state directory of
// its own, no service in Consul, everything else as in Defaults. Load fills in the options of its backend.
func Dev() Config {
	c := Defaults()
	c.Dev, c.DataDir = true, DevDataDir
	c.Consul.Service = ""
	dev := WatchedNetwork("dev")
	dev.Pools = []Pool{{Prefix: netip.MustParsePrefix("10.98.0.0/16")}}
	dev.Backend = &Backend{Type: DefaultBackend, Options: json.RawMessage(`{}`)}
	c.Networks = []Network{dev}
	return c
}

// defaultRenewMargin returns two thirds of the TTL: the first third is quiet, the rest is for retries.
func defaultRenewMargin(ttl time.Duration) time.Duration { return ttl * 2 / 3 }

// DefaultSubnetFile returns the default path of a network's subnet file; with "*" as the network it returns a pattern
// for all.
func DefaultSubnetFile(network string) string { return runDir + "/" + network + ".env" }

// WatchedNetwork returns this host's settings of a network that it joins without a block, because of watch_networks.
func WatchedNetwork(name string) Network {
	n := Network{Name: name}
	resetAll(n.settings(name), func(Setting) bool { return true })
	return n
}
