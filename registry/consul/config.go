package consul

import (
	"context"
	"net"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/registry"
)

// Defaults of Config.
const (
	DefaultKVPrefix = "leno"
	DefaultCoalesce = 250 * time.Millisecond
	DefaultSettle   = 4 * time.Minute
	DefaultWait     = time.Minute
	DefaultAudit    = 10 * time.Second
	DefaultRecent   = time.Minute
)

// callTimeout limits a request that does not block. Without a quorum Consul answers 500 after 9 to 12 s, which is too
// long for a call that was in progress when the quorum came back.
const callTimeout = 6 * time.Second

// idleFollower is how long the knowledge of a network's leases is kept after the last call about them. It is longer
// than the time between two calls of an agent.
const idleFollower = 10 * time.Minute

// Config contains Consul's address and the settings of the client. Empty fields are set from the CONSUL_HTTP_* and
// CONSUL_* environment variables, then from Consul's own defaults.
type Config struct {
	// Address is host:port, http://host:port, https://host:port or unix:///path. Without a scheme, HTTPS is used when
	// TLS is set or CONSUL_HTTP_SSL is true, and HTTP otherwise.
	Address string

	// Token is the ACL token itself. TokenFile is a file that contains it; it is read on the first call, by
	// PrepareToken, and when Consul answers 403. Login gets a token with a JWT; the first call logs in. At most one of
	// the three is set.
	Token     string
	TokenFile string
	Login     registry.Login

	KVPrefix   string // prefix of every key, without slashes at its ends; default "leno"
	Datacenter string
	Namespace  string
	Partition  string
	TLS        TLS

	Logger hclog.Logger // default: none

	// Hide is called with every token and JWT that this client uses as its own, before the first use, so that it can be
	// removed from logs. It may be called concurrently. Default: none.
	Hide func(secret string)

	// Coalesce is the longest pause between two reads of a watched tree that changes, so that a burst of changes causes
	// few reads. Each pause is a random time between half of Coalesce and all of it, and longer while the directory of
	// changes is large. Default 250ms.
	Coalesce time.Duration
	// Settle is how long records that are missing from a re-created or restored tree are kept, so that their hosts can
	// write them again. It must be at least twice the lease's TTL; default 4m.
	Settle time.Duration
	// Wait is the longest time that a query blocks. Default 1m; Consul adds up to a sixteenth at random. A Consul whose
	// process hangs is noticed 7s later.
	Wait time.Duration
	// Audit is how often one of a network's hosts compares the leases with the directory of changes, to find manual
	// changes and lapsed leases. Each host takes its turn after about Audit times the number of hosts, and after 2
	// hours at most. Default 10s.
	Audit time.Duration
	// Recent is how long an entry stays in the directory of changes, the same on all hosts. A host that was away for
	// longer reads all leases. Default 1m.
	Recent time.Duration

	// Dial opens the connections to Consul; network is "tcp" or "unix". It may be called concurrently and must honour
	// ctx. Default: a net.Dialer that gives up after 5s, and whose connections detect within 10s that the other end has
	// gone. Set it to inspect the traffic or to reach Consul in another way.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// For tests.
	timeout time.Duration // of a request that does not block; default callTimeout
	idle    time.Duration // time after which unused followers are dropped; default idleFollower
	linger  time.Duration // how long a replaced token is kept; default linger
}

// TLS names PEM files and the server's expected name.
type TLS struct {
	CAFile     string
	CertFile   string
	KeyFile    string
	ServerName string
}

func (c Config) withDefaults() Config {
	c.KVPrefix = strings.Trim(c.KVPrefix, "/")
	if c.KVPrefix == "" {
		c.KVPrefix = DefaultKVPrefix
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.Hide == nil {
		c.Hide = func(string) {}
	}
	if c.Coalesce <= 0 {
		c.Coalesce = DefaultCoalesce
	}
	if c.Settle <= 0 {
		c.Settle = DefaultSettle
	}
	if c.Wait <= 0 {
		c.Wait = DefaultWait
	}
	if c.Audit <= 0 {
		c.Audit = DefaultAudit
	}
	if c.Recent <= 0 {
		c.Recent = DefaultRecent
	}
	if c.Dial == nil {
		c.Dial = newDialer().DialContext
	}
	if c.idle <= 0 {
		c.idle = idleFollower
	}
	if c.timeout <= 0 {
		c.timeout = callTimeout
	}
	if c.linger <= 0 {
		c.linger = linger
	}
	return c
}
