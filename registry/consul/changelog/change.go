// Package changelog defines the directory of recent changes that hosts watch in place of a network's leases, and the
// rules for following it. The package is pure: it evaluates what Consul answered and makes no requests.
//
// Every write of a lease record that changes its value, and every removal, adds an entry to the directory, in the same
// transaction and so at the same index:
//
//	changes/<network>/<time><random>_<subnet>   the record as written; empty if it was removed;
//	                                            if it was revoked, the record as it was
//	changes/<network>/_                         the watermark
//
// So the cost of an answer grows with the changes of the last minute and not with the network. A session that ends, and
// a host that locks its unchanged record again, write no entry. Entries are never modified, and deleted when they are
// old: see Cursor.Trimmable.
//
// A client reads the directory (Reading), moves its Cursor to what it has read, and gets the changes since its last
// reading, or the reason why it cannot know them. Then it must read all leases again.
package changelog

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// Flags of an entry.
const (
	FlagRevoked = 1 // removed by Revoke: the host named in the value must take another slot
	FlagUnheld  = 2 // no session holds the record
	FlagManual  = 4 // written later than the lease, by a host that found the lease edited by hand
)

// WatermarkName is the last component of the watermark's key. The watermark's value is the highest ModifyIndex of any
// entry that was ever deleted, in decimal: "4711".
const WatermarkName = "_"

// entryName matches <16 hex digits of Unix nanoseconds><8 random ones>_<subnet key>, for example
// "1879f3c5a2d9b7e04d1c22af_10.5.201.0-24". The time is for people; the code does not use it.
var entryName = regexp.MustCompile(`^[0-9a-f]{24}_([0-9a-f.-]{1,64})$`)

// isEntry reports whether a key below prefix may be that of an entry. Other programs wrote the others.
func isEntry(prefix, key string) bool { return entryName.MatchString(strings.TrimPrefix(key, prefix)) }

// longestName is the length of the longest name that an entry can have, in bytes.
const longestName = 24 + 1 + 64

// Change is one entry of the directory.
type Change struct {
	Subnet string // the last component of the lease's key, for example "10.5.201.0-24"
	Index  uint64 // ModifyIndex of the entry, and of the lease when both were written
	Value  []byte // of the record, empty if it was removed
	Flags  uint64
	NodeID string // of the host whose lease was revoked, "" when not known
}

// Parse returns the change in an entry below prefix. It returns false for a key that is not an entry's.
func Parse(prefix string, pair *api.KVPair) (Change, bool) {
	m := entryName.FindStringSubmatch(strings.TrimPrefix(pair.Key, prefix))
	if m == nil {
		return Change{}, false
	}
	ch := Change{Subnet: m[1], Index: pair.ModifyIndex, Value: pair.Value, Flags: pair.Flags}
	if ch.Has(FlagRevoked) {
		ch.Value, ch.NodeID = nil, registry.NodeIDOf(pair.Value)
	}
	return ch, true
}

// Has reports whether the entry has a flag.
func (ch Change) Has(flag uint64) bool { return ch.Flags&flag != 0 }

// WriteOp returns the operation that adds an entry about the lease of subnet to the directory at prefix.
func WriteOp(prefix, subnet string, value []byte, flags uint64) *api.KVTxnOp {
	name := fmt.Sprintf("%016x%08x_%s", time.Now().UnixNano(), rand.Uint32(), subnet)
	return &api.KVTxnOp{Verb: api.KVSet, Key: prefix + name, Value: value, Flags: flags}
}

// CanDescribe reports whether an entry about a record, named by the last component of its key, can be written and is
// read correctly. An unusable record needs no entry: hosts to which it matters find it by themselves.
// exists is false for a record that was removed.
func CanDescribe(name string, value []byte, exists bool) bool {
	saysRemoved := len(value) == 0
	return entryName.MatchString("000000000000000000000000_"+name) && !(exists && saysRemoved) &&
		len(value) <= registry.MaxRecordSize
}

// Watermark returns the highest index of any entry that may have been deleted. A watermark that was created again may
// hide deletions up to its creation. A value that could not have been known when it was written counts as the highest
// possible one.
func Watermark(mark *api.KVPair) uint64 {
	value, err := strconv.ParseUint(strings.TrimSpace(string(mark.Value)), 10, 64)
	if err != nil || value > mark.ModifyIndex {
		value = mark.ModifyIndex
	}
	return max(value, mark.CreateIndex)
}
