package consul

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// Every write of a lease record that changes its value, and every removal, adds an entry to the network's directory of
// recent changes, in the same transaction and so at the same index:
//
//	changes/<network>/<time><random>_<subnet>   the record as written; empty if it was removed;
//	                                            if it was revoked, the record as it was
//	changes/<network>/_                         the watermark
//
// Hosts watch the directory instead of the leases, so the cost of an answer grows with the changes of the last minute
// and not with the network. A session that ends, and a host that locks its unchanged record again, write no entry.
// Entries are never modified, and deleted when they are old (see trim).

// watermarkName is the last component of the watermark's key. Its value is the highest ModifyIndex of any entry that
// was ever deleted, in decimal. The key is also the marker of its directory.
const watermarkName = markerName

// Flags of an entry.
const (
	flagRevoked = 1 // removed by Revoke: the host named in the value must take another slot
	flagUnheld  = 2 // no session holds the record
	flagFound   = 4 // written later than the lease, by a host that found it changed by hand
)

func (l layout) changes(network string) string { return l.prefix + "/changes/" + network + "/" }

// entryName matches <16 hex digits of Unix nanoseconds><8 random ones>_<subnet key>. The time is for people; the code
// does not use it.
var entryName = regexp.MustCompile(`^[0-9a-f]{24}_([0-9a-f.-]{1,64})$`)

// change is one entry of the directory.
type change struct {
	subnet string // the last component of the lease's key
	index  uint64 // ModifyIndex of the entry, and of the lease when both were written
	value  []byte // of the record, empty if it was removed
	flags  uint64
	nodeID string // of the host whose lease was revoked, "" when not known
}

// newChange parses an entry; ok is false for other keys.
func newChange(prefix string, pair *api.KVPair) (ch change, ok bool) {
	m := entryName.FindStringSubmatch(strings.TrimPrefix(pair.Key, prefix))
	if m == nil {
		return change{}, false
	}
	ch = change{subnet: m[1], index: pair.ModifyIndex, value: pair.Value, flags: pair.Flags}
	if ch.flags&flagRevoked != 0 {
		ch.value, ch.nodeID = nil, nodeID(pair)
	}
	return ch, true
}

// changeOp returns an operation that writes an entry about one lease.
func (c *Client) changeOp(network, subnet string, value []byte, flags uint64) *api.KVTxnOp {
	name := fmt.Sprintf("%016x%08x_%s", time.Now().UnixNano(), rand.Uint32(), subnet)
	return &api.KVTxnOp{Verb: api.KVSet, Key: c.layout.changes(network) + name, Value: value, Flags: flags}
}

// commit runs the operations that write the lease at key or, with an empty value or flagRevoked, remove it. It adds an
// entry for the watchers in the same transaction. The errors are those of transact.
func (c *Client) commit(ctx context.Context, network, key string, value []byte, flags uint64, ops ...*api.KVTxnOp) ([]*api.KVPair, error) {
	return c.transact(ctx, append(slices.Clone(ops), c.changeOp(network, lastComponent(key), value, flags))...)
}

// ensureWatermark creates the watermark of a network if it is missing. All entries that may have been deleted before
// then count as trimmed: see watermark.
func (c *Client) ensureWatermark(ctx context.Context, network string) error {
	_, err := c.ensureKey(ctx, c.layout.changes(network)+watermarkName, "0")
	return err
}

// whyGone returns the reason why a lease has no record: a *RevokedError when Revoke removed it, as far as the directory
// reaches back, and ErrLeaseNotFound otherwise. err is set when the directory cannot be read.
func (c *Client) whyGone(ctx context.Context, network, key string) (why, err error) {
	prefix := c.layout.changes(network)
	pairs, _, err := c.list(ctx, prefix, read{consistent: true})
	if err != nil {
		return nil, err
	}
	var last change
	for _, pair := range pairs {
		if ch, ok := newChange(prefix, pair); ok && ch.subnet == lastComponent(key) && ch.index >= last.index {
			last = ch
		}
	}
	if last.flags&flagRevoked != 0 {
		return &registry.RevokedError{NodeID: last.nodeID}, nil
	}
	return registry.ErrLeaseNotFound, nil
}
