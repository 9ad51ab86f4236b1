// Package config turns HCL files into the typed value an agent runs on. It
// owns the shape of the files, their merging, defaults and limits. It knows
// neither the store nor the backends: a backend's block is carried as JSON and
// checked by a function the caller passes in.
package config

import (
	"encoding/json"
	"net/netip"
	"time"
)

// Config is one agent's configuration, complete: defaults filled in, every
// limit checked.
type Config struct {
	NodeName  string // "" until the agent has asked Consul or the host
	DataDir   string
	Log       Log
	Consul    Consul
	Lease     Lease
	Underlay  Underlay
	Firewall  Firewall
	HTTP      HTTP
	Telemetry Telemetry

	WatchNetworks   bool     // also join every network that appears in Consul
	AllowedNetworks []string // patterns (path.Match) a name must match for that

	Networks []Network // in the order of the files, names unique

	Dev   bool     // registry in memory, network "dev"
	Files []string // what was read, in order
}

// Log is where and how much the agent logs.
type Log struct {
	Level          string // TRACE, DEBUG, INFO, WARN or ERROR
	JSON           bool
	File           string // "" for standard error only
	RotateBytes    int    // a file larger than this is rotated; 0 for 100 MiB
	RotateMaxFiles int    // rotated files kept; 0 keeps all
}

// Consul is how to reach it. Empty fields leave CONSUL_HTTP_* and Consul's own
// defaults in force.
type Consul struct {
	Address    string // host:port, http(s)://host:port or unix:///path
	Token      string
	TokenFile  string
	KVPrefix   string // without slashes at its ends
	Service    string // name in the catalogue, "" turns registration off
	Datacenter string
	Namespace  string
	Partition  string
	TLS        TLS
}

// TLS is a client's or listener's certificate set; empty fields are unset.
type TLS struct {
	CAFile, CertFile, KeyFile, ServerName string
}

// Lease is how leases are kept.
type Lease struct {
	TTL           time.Duration // 10s..24h, Consul's limits; a session lives TTL to 2*TTL past its last renewal
	RenewMargin   time.Duration // >0 and <TTL; renewed TTL-RenewMargin after the last success
	Hold          time.Duration // how long a lapsed lease is kept for its host
	OnLost        string        // OnLostRenumber or OnLostExit
	ReleaseOnStop bool
}

// What a runner does when its subnet was taken by somebody else.
const (
	OnLostRenumber = "renumber"
	OnLostExit     = "exit"
)

// Underlay selects the device and addresses that carry traffic between hosts.
// The first of Interfaces that exists wins, then the first of InterfaceRegex
// that matches a name or an address, then the device that reaches CanReach,
// then the default route's.
type Underlay struct {
	Interfaces     []string // names or addresses
	InterfaceRegex []string
	CanReach       netip.Addr
	PublicIP       string // address or go-sockaddr template; "" for the device's own
	PublicIPv6     string
}

// Firewall is how the rules that the networks ask for are kept.
type Firewall struct {
	Type        string        // FirewallAuto, FirewallIPTables or FirewallNFTables
	Resync      time.Duration // 1s..1h; the rules are looked at after it though nothing told of a change
	RandomFully bool          // masquerading takes source ports at random
}

// What holds the rules.
const (
	FirewallAuto     = "auto"
	FirewallIPTables = "iptables"
	FirewallNFTables = "nftables"
)

// HTTP is the agent's API listener.
type HTTP struct {
	Address string // host:port or unix:///path
	TLS     TLS
}

// Telemetry is where metrics go.
type Telemetry struct {
	PrometheusRetention time.Duration // 0 turns the endpoint off
	StatsdAddress       string
	DogstatsdAddress    string
}

// Network is one network block: the plan and backend to put into Consul when
// the network does not exist there, and what concerns this host only.
type Network struct {
	Name    string
	Pools   []Pool   // empty: join the network as Consul has it
	Backend *Backend // nil with no Pools; else the default backend when the block names none

	IPMasq     bool
	Forward    bool
	SubnetFile string // default /run/leno/<name>.env
}

// Pool is an ipv4 or ipv6 block as written: zero fields take the network's
// defaults (see registry.Pool), which the loader has already checked.
type Pool struct {
	Prefix    netip.Prefix
	SubnetLen int
	Min, Max  netip.Addr
}

// Backend is a backend block.
type Backend struct {
	Type    string
	Options json.RawMessage // JSON object without "type", effective values
}
