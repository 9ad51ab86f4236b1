package kubernetes

import (
	"fmt"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
	"github.com/lenonet/leno/registry/replica"
)

// keyOf returns the key of the record in a Node.
func keyOf(name string) string { return "nodes/" + name }

// reader implements replica.LeaseReader.
type reader struct {
	names   names
	network registry.Network
}

// Sources implements replica.LeaseReader.
func (r reader) Sources(t *tree) (out []*node) {
	for _, n := range t.Records {
		if n.hasLease(r.names) {
			out = append(out, n)
		}
	}
	return out
}

// Parse implements replica.LeaseReader.
func (r reader) Parse(n *node) *belief.Record {
	out := &belief.Record{Key: n.Key(), Value: fmt.Appendf(nil, "%q %q", n.podCIDRs, n.annotations)}
	out.Lease, _, out.Err = n.lease(r.network, r.names)
	if out.Err != nil {
		out.Lease.Session, out.Lease.CreateIndex, out.Lease.ModifyIndex = n.uid, n.created, n.modified
	}
	return out
}

// Complete implements replica.LeaseReader.
func (reader) Complete(_ *tree, l *belief.List, _ *belief.Belief) error {
	l.Disown()
	return nil
}

// reader returns what finds the leases of the network, and how long missing ones are kept.
func (c *connection) reader(n registry.Network) (reader, belief.Options) {
	return reader{c.names, n}, belief.Options{Settle: time.Duration(c.settle.Load())}
}

var _ replica.LeaseReader[*node, *node] = reader{}
