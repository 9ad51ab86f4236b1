package main

import (
	"context"
	"time"

	"github.com/lenonet/leno/registry"
)

// A store is three servers of Consul or etcd, and what the harness does with them.
type store interface {
	// label returns how results name what was measured with this store.
	label(what string) string
	// address returns the address of the server of simulated host i.
	address(i int) string
	// cpu returns the CPU time of all servers.
	cpu() (time.Duration, error)
	kill()

	// open returns the registry client of host i for one network. The meter counts what it receives.
	open(i int, network string, m *meter) (client, error)
	// block returns the block of the store in the configuration of an agent in one network.
	block(network string) string

	// fill writes leases under a new session, and notes their keys and the session.
	fill(ctx context.Context, i int, n registry.Network, records []*record) error
	// change writes a lease again, as its host would.
	change(ctx context.Context, i int, n registry.Network, r *record) error
	endSession(ctx context.Context, i int, session string) error
	// byHand overwrites one record and deletes another without leno.
	byHand(ctx context.Context, n registry.Network, changed, removed *record) error
	// truth returns the leases from a consistent read.
	truth(ctx context.Context, n registry.Network) ([]registry.Lease, error)
}

// A client is the registry client of an agent.
type client interface {
	registry.Registry
	Close() error
}
