package foreign

import (
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"net/netip"
	"reflect"
	"time"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// maxReadingAge is how long a Reader relies on the kernel's word that no rule changed. Elements that packets add to a
// set of nftables are no change of rules.
const maxReadingAge = 10 * time.Minute

// A Reader finds the rules of other programs that keep containers of this host and of others from reaching each other.
// It reads rules only when the kernel shows that one has changed, because a reading starts ten programs. They start
// from the calling thread, hence in its network namespace. A Reader is for one goroutine at a time.
type Reader struct {
	seed maphash.Seed
	last reading
}

// reading is the result of one reading of the rules, and what it depended on.
type reading struct {
	at      time.Time // zero when there is none that can be used again
	stamp   uint64
	paths   []OverlayPath
	bridges map[netip.Prefix]string

	found []Obstacle
}

// NewReader returns a Reader that has read nothing.
func NewReader() *Reader { return &Reader{seed: maphash.MakeSeed()} }

// Obstacles returns the current rules, in every variant of iptables and in nftables. Rules that drop only some packets
// are marked as partial. It changes nothing and reports only what it is sure of, so an empty result is no proof.
// It continues after a program fails and joins the errors; one that is not installed has no rules.
func (r *Reader) Obstacles(ctx context.Context, paths []OverlayPath) ([]Obstacle, error) {
	stamp, unknown := netfilter.Stamp(r.seed) // before the reading, so that later changes show
	bridges, unlisted := readBridges(paths)
	last := r.last
	if unknown == nil && unlisted == nil && !last.at.IsZero() && time.Since(last.at) < maxReadingAge &&
		stamp == last.stamp &&
		maps.Equal(bridges, last.bridges) && reflect.DeepEqual(paths, last.paths) {
		return last.found, nil
	}
	bases, err := readBaseChains(ctx, netfilter.List)
	found, err := findObstacles(bases, paths, bridges), errors.Join(err, unlisted)
	r.last = reading{}
	if unknown == nil && err == nil {
		r.last = reading{time.Now(), stamp, paths, bridges, found}
	}
	return found, err
}
