package consul

import (
	"cmp"
	"strings"
	"time"

	"github.com/lenonet/leno/registry/consul/transport"
)

// Config contains Consul's address and the settings of the client. Empty fields have the defaults.
type Config struct {
	transport.Config

	KVPrefix string // prefix of every key, without slashes at its ends; default "leno"

	// Settle is how long records that are missing from a re-created or restored tree are kept, so that their hosts can
	// write them again. It must be at least twice the lease's TTL; default 4m.
	Settle time.Duration
	// Audit is how often one of a network's hosts compares the leases with the directory of changes, to find manual
	// changes and lapsed leases. Each host takes its turn after about Audit times the number of hosts, and after 2
	// hours at most. Default 10s.
	Audit time.Duration
	// Recent is how long an entry stays in the directory of changes, the same on all hosts. A host that was away for
	// longer reads all leases. Default 1m.
	Recent time.Duration

	// Idle is how long the knowledge of a network's leases is kept after the last call about them. Default 10m, which
	// is longer than the time between two calls of an agent.
	Idle time.Duration
}

func (c Config) withDefaults() Config {
	c.Config = c.Config.WithDefaults()
	c.KVPrefix = cmp.Or(strings.Trim(c.KVPrefix, "/"), "leno")
	c.Settle = cmp.Or(c.Settle, 4*time.Minute)
	c.Audit = cmp.Or(c.Audit, 10*time.Second)
	c.Recent = cmp.Or(c.Recent, time.Minute)
	c.Idle = cmp.Or(c.Idle, 10*time.Minute)
	return c
}
