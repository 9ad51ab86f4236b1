package foreign

import (
	"context"
	"hash/maphash"
	"maps"
	"net/netip"
	"reflect"
	"time"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// rereadAfter is how long a Reader relies on the kernel's word that no rule changed. Elements that packets add to a set
// of nftables are no change of rules.
const rereadAfter = 10 * time.Minute

// A Reader finds what Obstacles finds, again and again, and reads the rules only when the kernel shows that one changed:
// reading them takes ten programs. It is for one goroutine at a time.
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

	found  []Obstacle
	silent bool
}

// NewReader returns a Reader that has read nothing.
func NewReader() *Reader { return &Reader{seed: maphash.MakeSeed()} }

// Obstacles returns what the function Obstacles returns.
func (r *Reader) Obstacles(ctx context.Context, paths []OverlayPath) (found []Obstacle, silent bool, err error) {
	stamp, unknown := netfilter.Stamp(r.seed) // before the reading, so that later changes show
	bridges, unlisted := bridgesOf(paths)
	last := r.last
	if unknown == nil && unlisted == nil && !last.at.IsZero() && time.Since(last.at) < rereadAfter && stamp == last.stamp &&
		maps.Equal(bridges, last.bridges) && reflect.DeepEqual(paths, last.paths) {
		return last.found, last.silent, nil
	}
	r.last = reading{}
	found, silent, err = Obstacles(ctx, paths)
	if unknown == nil && unlisted == nil && err == nil {
		r.last = reading{time.Now(), stamp, paths, bridges, found, silent}
	}
	return found, silent, err
}
