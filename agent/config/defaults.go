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

// Defaults returns the configuration of an agent without any file: it takes part in no network.
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
		HTTP:            HTTP{Address: "127.0.0.1:5366", Socket: DefaultSocket},
		Telemetry:       Telemetry{PrometheusRetention: time.Hour},
		AllowedNetworks: []string{"*"},
	}
}

// Dev returns the configuration of `leno agent -dev`: one network "dev" in a registry in memory, no service in
// Consul, everything else as in Defaults.
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

// defaultEtcd returns the defaults of an etcd block.
func defaultEtcd() Etcd {
	return Etcd{
		Endpoints: []string{"http://127.0.0.1:2379"},
		Prefix:    "/coreos.com/network",
		Network:   "default",
	}
}

// defaultKubernetes returns the defaults of a kubernetes block.
func defaultKubernetes() Kubernetes {
	return Kubernetes{
		Network:          "default",
		NetConf:          "/etc/kube-flannel/net-conf.json",
		AnnotationPrefix: "flannel.alpha.coreos.com",
	}
}

// defaultRenewMargin returns two thirds of the TTL: the first third is quiet, the rest is for retries.
func defaultRenewMargin(ttl time.Duration) time.Duration { return ttl * 2 / 3 }

// DefaultSubnetFile returns the default path of a network's subnet file; with "*" as the network it returns a pattern
// for all.
func DefaultSubnetFile(network string) string { return runDir + "/" + network + ".env" }

// WatchedNetwork returns this host's settings of a network that it joins without a block, because of watch_networks.
func WatchedNetwork(name string) Network {
	return Network{Name: name, Forward: true, SubnetFile: DefaultSubnetFile(name)}
}
