package paths

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
)

// datagramPause is the time from one test of a path with UDP and TCP to the next in a network.
const datagramPause = 15 * time.Second

// datagrams is what is known of UDP and TCP on a path on which pings pass.
type datagrams struct {
	unheard string    // says that the agents' messages are lost, "" if they are not or it is not known
	isLost  bool      // no UDP and TCP passes
	tested  time.Time // when that was tested last
}

// isOnlyPinged reports whether nothing but pings is known to pass.
func (p *peer) isOnlyPinged() bool {
	return p.shown.State == api.PathReached && p.datagrams.unheard != ""
}

// reason says what is known, for a path that is reached.
func (d datagrams) reason() string {
	if d.isLost {
		return "pings pass, UDP and TCP are lost: run `leno doctor`"
	}
	return d.unheard
}

// testDatagrams finds out whether UDP and TCP pass on the path of one peer on which the agents' messages are lost. A
// rule that drops these is no fault; with wrong checksums, nothing but pings passes.
func (n *network) testDatagrams(ctx context.Context, now time.Time) {
	if now.Sub(n.datagrams) < datagramPause || n.from.Backend == "host-gw" {
		return
	}
	var pinged []*peer
	for _, p := range n.peers {
		if p.Held && p.isOnlyPinged() {
			pinged = append(pinged, p)
		}
	}
	if len(pinged) == 0 {
		return
	}
	next := slices.MinFunc(pinged, func(a, b *peer) int {
		return cmp.Or(a.datagrams.tested.Compare(b.datagrams.tested), strings.Compare(a.Node, b.Node))
	})
	n.datagrams, next.datagrams.tested, next.datagrams.isLost = now, now, false
	for _, own := range n.from.Subnets {
		for _, to := range next.Subnets {
			if own.Addr().Is4() == to.Addr().Is4() && n.m.o.LosesDatagrams(ctx, n.from.OverlayAddress(own), to) {
				next.datagrams.isLost = true
			}
		}
	}
}
