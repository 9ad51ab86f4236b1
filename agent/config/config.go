// Package config turns HCL files into the typed configuration of an agent. It owns the shape of the files, their
// merging, defaults and limits. It knows neither the store nor the backends: it carries a backend's block as JSON and
// checks it with a function from the caller.
package config

import (
	"encoding/json"
	"net/netip"
	"time"
)

// Config is one agent's configuration, complete: defaults filled in, every limit checked.
// The table in table.go has a row for each option.
type Config struct {
	NodeName    string // "" until the agent has asked Consul or the host
	DataDir     string
	Log         Log
	Consul      Consul // zero if the store is another one, as those below
	Etcd        Etcd
	Kubernetes  Kubernetes
	Lease       Lease
	Underlay    Underlay
	Firewall    Firewall
	HTTP        HTTP
	EnableDebug bool // serve profiles of the process below /debug/pprof
	Telemetry   Telemetry

	WatchNetworks   bool     // also join every network that appears in Consul
	AllowedNetworks []string // patterns (path.Match) a name must match for that

	Networks []Network // in the order of the files, names unique

	Dev   bool     // registry in memory, network "dev"
	Files []string // the files read, in order

	Empty []string // those of Files that set nothing: at most white space and comments

	NetworkFiles map[string]string // by network, the file that contains its block
}

// Log configures where and how much the agent logs.
type Log struct {
	Level          string // TRACE, DEBUG, INFO, WARN or ERROR
	JSON           bool
	File           string        // "" for standard error only
	RotateBytes    int           // a file is rotated before it would grow past this; 0 for 100 MiB
	RotateDuration time.Duration // a file older than this is rotated; 0 for any age
	RotateMaxFiles int           // rotated files kept; 0 keeps all
}

// Consul configures how to reach Consul. Empty fields leave CONSUL_HTTP_* and Consul's own defaults in force.
type Consul struct {
	Address    string // host:port, http(s)://host:port or unix:///path
	Token      string
	TokenFile  string
	Login      Login  // gets a token; at most one of Token, TokenFile and Login is set
	KVPrefix   string // without leading or trailing slashes
	Service    string // name in the catalogue, "" turns registration off
	Datacenter string
	Namespace  string
	Partition  string
	TLS        TLS
}

// Login configures how the agent gets a token from Consul with a JWT. Either both or none of AuthMethod and
// BearerTokenFile are set.
type Login struct {
	AuthMethod      string
	BearerTokenFile string            // contains the JWT
	Meta            map[string]string // appears in the token's description
}

// IsSet reports whether there is a login block.
func (l Login) IsSet() bool { return l.AuthMethod != "" }

// UseToken makes a token replace the one that the configuration names.
func (c *Consul) UseToken(token string) { c.Token, c.TokenFile, c.Login = token, "", Login{} }

// Etcd configures how to reach etcd and where flannel's records are in it.
type Etcd struct {
	// Endpoints are the servers, each as host:port, http://host:port or https://host:port. The default is
	// http://127.0.0.1:2379. An endpoint without a scheme uses TLS if TLS is set. Either all of them use TLS or none.
	Endpoints []string

	Prefix  string // of flannel's keys; begins with a slash and does not end with one
	Network string // the network that is stored in flannel's own keys below Prefix

	Username     string // "" for no authentication; comes with Password or PasswordFile
	Password     string
	PasswordFile string
	TLS          TLS
}

// Kubernetes configures how to reach the API server, and the network that flannel uses there.
type Kubernetes struct {
	// Kubeconfig is the path of the file with the address and the credentials; "" for the service account of a pod, or
	// for what kubectl uses outside one.
	Kubeconfig string

	NodeName         string // of this host's Node; "" for $NODE_NAME
	Network          string // leno's name of the network
	NetConf          string // path of flannel's configuration; "" with ConfigMap
	ConfigMap        string // "namespace/name" or "namespace/name/key", instead
	AnnotationPrefix string // of flannel's annotations
}

// TLS is a client's or listener's certificate set; empty fields are unset.
type TLS struct {
	CAFile     string
	CertFile   string
	KeyFile    string
	ServerName string
}

// Lease configures how leases are kept.
type Lease struct {
	TTL           time.Duration // 10s..24h, Consul's limits; a session lives TTL to 2*TTL past its last renewal
	RenewMargin   time.Duration // >0; renewed TTL-RenewMargin after the last success, at least TTL/10
	Hold          time.Duration // how long a lapsed lease is kept for its host
	OnLost        string        // OnLostRenumber or OnLostExit
	ReleaseOnStop bool

	// StartFromSaved lets containers start with the saved lease before the store has confirmed it, within Hold of its last
	// renewal.
	StartFromSaved bool
}

// What a runner does when another host took its subnet.
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

	// PublicPorts are the UDP ports of the public addresses that a NAT, which other hosts share, passes on to this host, by
	// the port of this host.
	PublicPorts map[uint16]uint16
}

// Firewall configures how the rules for the networks are kept.
type Firewall struct {
	Type        string        // FirewallAuto, FirewallIPTables or FirewallNFTables
	Resync      time.Duration // 1s..1h; time after which the rules are checked even though no change was reported
	RandomFully bool          // masquerading takes random source ports
}

// The kinds of firewall that hold the rules.
const (
	FirewallAuto     = "auto"
	FirewallIPTables = "iptables"
	FirewallNFTables = "nftables"
)

// HTTP is the agent's API listener.
type HTTP struct {
	Address      string   // host:port or unix:///path
	Socket       string   // path of one more listener, for commands on this host; "" for none
	AllowedHosts []string // more names that requests may be for; "*.example.com" is any name below
	TLS          TLS
}

// Telemetry configures where metrics go.
type Telemetry struct {
	PrometheusRetention time.Duration // 0 turns the format off
	StatsdAddress       string
	DogstatsdAddress    string
	DisableHostname     bool // leave it out of the names of gauges sent to statsd
}

// Network is one network block: the plan and backend to put into Consul when the network does not exist there, and
// the settings of this host only.
type Network struct {
	Name    string
	Pools   []Pool   // empty: join the network as Consul has it
	Backend *Backend // nil with no Pools; else the default backend when the block names none

	Encryption string // EncryptionRequired or "", of the plan

	IPMasq  bool
	Forward bool
	// RulePriority is that of the routing rules that lead packets to the pools to the main table, 0 for none.
	RulePriority int

	SubnetFile string // default /run/leno/<name>.env
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
