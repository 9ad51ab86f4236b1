package config

import (
	"encoding/json"
	"net/netip"
	"time"
)

// DefaultBackend carries a network whose block names no backend.
const DefaultBackend = "vxlan"

// DefaultRotateBytes is the size that a log file does not grow past when
// log_rotate_bytes is 0.
const DefaultRotateBytes = 100 << 20

// runDir holds the subnet files unless a network says otherwise.
const runDir = "/run/leno"

// Defaults is the configuration of an agent without any file: it takes part in
// no network.
func Defaults() Config {
	return Config{
		DataDir: "/var/lib/leno",
		Log:     Log{Level: "INFO"},
		Consul:  Consul{KVPrefix: "leno", Service: "leno"},
		Lease: Lease{
			TTL:         2 * time.Minute,
			RenewMargin: defaultRenewMargin(2 * time.Minute),
			Hold:        24 * time.Hour,
			OnLost:      OnLostRenumber,
		},
		Firewall:        Firewall{Type: FirewallAuto, Resync: 20 * time.Second, RandomFully: true},
		HTTP:            HTTP{Address: "127.0.0.1:5366"},
		Telemetry:       Telemetry{PrometheusRetention: time.Hour},
		AllowedNetworks: []string{"*"},
	}
}

// Dev is the configuration of `leno agent -dev`: one network "dev" in a
// registry in memory, no service in Consul, everything else as Defaults.
func Dev() Config {
	c := Defaults()
	c.Dev = true
	c.Consul.Service = ""
	c.Networks = []Network{{
		Name:       "dev",
		Pools:      []Pool{{Prefix: netip.MustParsePrefix("10.98.0.0/16")}},
		Backend:    &Backend{Type: DefaultBackend, Options: json.RawMessage(`{}`)},
		Forward:    true,
		SubnetFile: DefaultSubnetFile("dev"),
	}}
	return c
}

// defaultRenewMargin leaves the first third of the TTL quiet and the rest for
// trying again.
func defaultRenewMargin(ttl time.Duration) time.Duration { return ttl * 2 / 3 }

// DefaultSubnetFile is where a network's subnet file stands unless its block says
// otherwise; "*" makes a pattern of all.
func DefaultSubnetFile(network string) string { return runDir + "/" + network + ".env" }

// WatchedNetwork is what concerns this host only of a network it joins without
// a block, because watch_networks says so.
func WatchedNetwork(name string) Network {
	return Network{Name: name, Forward: true, SubnetFile: DefaultSubnetFile(name)}
}
