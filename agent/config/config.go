// Package config turns HCL files into the typed configuration of an agent. It owns the shape of the files, their
// merging, defaults and limits. It knows neither the store nor the backends: it carries a backend's block as JSON and
// checks it with a function from the caller.
package config

import (
	"encoding/json"
	"net/netip"
	"time"
)

// Config is one agent's configuration, complete: defaults filled in, every limit checked. The table of settings says
// what each option means.
type Config struct {
	NodeName        string // "" until the agent has asked Consul or the host
	DataDir         string
	Log             Log
	EnableDebug     bool
	WatchNetworks   bool
	ProbeInterval   time.Duration // 0 for none
	AllowedNetworks []string      // patterns of path.Match
	Consul          Consul        // zero if the store is another one, as those below
	Etcd            Etcd
	Kubernetes      Kubernetes
	Lease           Lease
	Underlay        Underlay
	Firewall        Firewall
	HTTP            HTTP
	Telemetry       Telemetry
	Networks        []Network // in the order of the files, names unique

	Dev          bool              // registry in memory, network "dev"
	Files        []string          // the files read, in order
	Empty        []string          // those of Files that set nothing: at most white space and comments
	NetworkFiles map[string]string // by network, the file that contains its block
}

// Log configures where and how much the agent logs.
type Log struct {
	Level          string // in upper case
	JSON           bool
	File           string        // "" for standard error only
	RotateBytes    int           // 0 for DefaultRotateBytes
	RotateDuration time.Duration // 0 for any age
	RotateMaxFiles int           // 0 keeps all
}

// Consul configures how to reach Consul. Empty fields leave CONSUL_HTTP_* and Consul's own defaults in force.
type Consul struct {
	Address                          string // with https:// if there is a tls block
	Token, TokenFile                 string
	Login                            Login  // gets a token; at most one of Token, TokenFile and Login is set
	KVPrefix                         string // without leading or trailing slashes
	Service                          string // "" turns registration off
	Datacenter, Namespace, Partition string
	TLS                              TLS
}

// Login configures how the agent gets a token from Consul with a JWT. Either both or none of AuthMethod and
// BearerTokenFile are set.
type Login struct {
	AuthMethod      string
	BearerTokenFile string // contains the JWT
	Meta            map[string]string
}

// UseToken makes a token replace the one that the configuration names.
func (c *Consul) UseToken(token string) { c.Token, c.TokenFile, c.Login = token, "", Login{} }

// Etcd configures how to reach etcd and where flannel's records are in it.
type Etcd struct {
	Endpoints              []string // with https:// if there is a tls block; either all of them use TLS or none
	Prefix                 string   // begins with a slash and does not end with one
	Network                string
	Username               string // "" for no authentication; comes with Password or PasswordFile
	Password, PasswordFile string
	TLS                    TLS
}

// Kubernetes configures how to reach the API server, and the network that flannel uses there.
type Kubernetes struct {
	Kubeconfig         string // "" for the service account of a pod, or for what kubectl uses outside one
	NodeName           string // "" for $NODE_NAME
	Network            string
	NetConf, ConfigMap string // one of them is set
	AnnotationPrefix   string
}

// TLS is a client's or listener's certificate set; empty fields are unset.
type TLS struct{ CAFile, CertFile, KeyFile, ServerName string }

// Lease configures how leases are kept.
type Lease struct {
	TTL            time.Duration // 10s..24h, Consul's limits; a session lives TTL to 2*TTL past its last renewal
	RenewMargin    time.Duration // >0; renewed TTL-RenewMargin after the last success, at least TTL/10
	Hold           time.Duration
	OnLost         string // OnLostRenumber or OnLostExit
	ReleaseOnStop  bool
	StartFromSaved bool
}

// What a runner does when another host took its subnet.
const (
	OnLostRenumber = "renumber"
	OnLostExit     = "exit"
)

// Underlay selects the device and addresses that carry traffic between hosts.
type Underlay struct {
	Interfaces           []string // names or addresses
	InterfaceRegex       []string
	CanReach             netip.Addr
	PublicIP, PublicIPv6 string            // address or go-sockaddr template; "" for the device's own
	PublicPorts          map[uint16]uint16 // ports of the public addresses, by the port of this host
}

// Firewall configures how the rules for the networks are kept.
type Firewall struct {
	Type        string // FirewallAuto, FirewallIPTables or FirewallNFTables
	Resync      time.Duration
	RandomFully bool
}

// The kinds of firewall that hold the rules.
const (
	FirewallAuto     = "auto"
	FirewallIPTables = "iptables"
	FirewallNFTables = "nftables"
)

// HTTP is the agent's API listener.
type HTTP struct {
	Address      string // host:port or unix:///path
	Socket       string // "" for none
	AllowedHosts []string
	TLS          TLS
}

// Telemetry configures where metrics go.
type Telemetry struct {
	PrometheusRetention             time.Duration // 0 turns the format off
	Address                         string        // of a listener for /metrics alone
	StatsdAddress, DogstatsdAddress string
	DisableHostname                 bool
}

// Network is one network block: the plan and backend to put into Consul when the network does not exist there, and
// the settings of this host only.
type Network struct {
	Name       string
	Pools      []Pool   // empty: join the network as Consul has it
	Backend    *Backend // nil with no Pools; else the default backend when the block names none
	Encryption string   // EncryptionRequired or "", of the plan

	IPMasq, Forward bool
	RulePriority    int // of the routing rules that lead packets to the pools to the main table, 0 for none
	SubnetFile      string
}

// EncryptionRequired as Network.Encryption means that no host may send a packet of the network unencrypted.
const EncryptionRequired = "required"

// Pool is an ipv4 or ipv6 block as written: zero fields take the network's defaults (see registry.Pool), which the
// loader has already checked.
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
