// Package probe sends packets to the other hosts of a network, through the overlay and through the underlay, and
// reports the results: how many came back, how fast, how long they may be, and which hosts returned errors about the
// others.
//
// It uses only the peers' kernels, by ICMP echo: no agent of a peer takes part, and nothing on this host is changed.
// It knows nothing of leases, nor why a host is a peer.
package probe

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lenonet/leno/api"
)

// Host describes this host's part in the network.
type Host struct {
	Network    string
	Backend    string          // type
	Options    json.RawMessage // the backend's, effective
	Link       string          // the overlay's device
	Subnets    []netip.Prefix  // this host's own
	MTU        int             // of the overlay, bytes
	Underlay   api.Underlay
	VRF        int  // ifindex of the VRF that the underlay is in, 0 for none
	Masquerade bool // packets from Subnets to other networks get another source

	OnlyOverlay bool // no packets are sent outside the overlay
	NoSearch    bool // where full packets of the overlay are lost, the largest that passes is not searched for
	NoDetours   bool // no packets of the overlay are sent outside the tunnel, to find out which direction is broken
}

// MaxDuration bounds a whole probe, regardless of the request and the number of peers.
const MaxDuration = 2 * time.Minute

// maxSeriesMS bounds the packets of one size, ms: both sizes, and the search for others, fit into MaxDuration.
const maxSeriesMS = 45_000

// FieldError names the field of a request that is out of its range.
type FieldError struct {
	Field, Reason string
}

func (e *FieldError) Error() string { return e.Field + " " + e.Reason }

// Normalize fills in the defaults of a request. An error is a *FieldError. It is pure.
func Normalize(r api.ProbeRequest) (api.ProbeRequest, error) {
	for _, f := range []struct {
		name                   string
		value                  *int
		least, most, otherwise int
	}{
		{"count", &r.Count, 1, 100, 3},
		{"interval_ms", &r.IntervalMS, 10, 10_000, 100},
		{"timeout_ms", &r.TimeoutMS, 10, 10_000, 1000},
		{"small", &r.Small, minSize, 1280, minSize},
		{"full", &r.Full, minSize, 65_000, 0},
	} {
		switch {
		case *f.value == 0:
			*f.value = f.otherwise
		case *f.value < f.least || *f.value > f.most:
			return r, &FieldError{f.name, fmt.Sprintf("is %d, not %d to %d", *f.value, f.least, f.most)}
		}
	}
	if (r.Count-1)*r.IntervalMS > maxSeriesMS {
		return r, &FieldError{"interval_ms", fmt.Sprintf("is %d: %d packets take longer than %d ms", r.IntervalMS, r.Count,
			maxSeriesMS)}
	}
	if r.Full > 0 && r.Full < r.Small {
		return r, &FieldError{"full", fmt.Sprintf("is %d, less than small, %d", r.Full, r.Small)}
	}
	return r, nil
}

// Run probes the peers that a request names, all at once, at a pace that all share. It blocks until they are done,
// MaxDuration is over, or ctx ends; the results of peers that were not done by then say so. Errors are a *FieldError,
// ErrNoRight, or the kernel's. Its sockets are opened on the calling thread, so that a test may lock it to a network
// namespace.
func Run(ctx context.Context, h Host, peers []api.Peer, r api.ProbeRequest) (api.Probe, error) {
	out := api.Probe{Network: h.Network, Peers: []api.PeerProbe{}}
	r, err := Normalize(r)
	if err != nil {
		return out, err
	}
	if peers, err = SelectPeers(peers, r.Peers); err != nil || len(peers) == 0 {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, MaxDuration)
	defer cancel()
	here, done, err := readKernel(h)
	if err != nil {
		return out, err
	}
	defer done()
	p := planner{h, here}
	if err := checkDuration(len(peers), p.countWays(peers), r); err != nil {
		return out, err
	}
	s, err := open(ctx)
	if err != nil {
		return out, err
	}
	if port := p.options().Port; port != 0 {
		for _, peer := range peers {
			for _, to := range p.underlayAddresses(peer) {
				s.recordErrors(to, port)
			}
		}
	}
	out.Peers = probeAll(ctx, s, p, peers, r)
	return out, s.close()
}

// countWays returns the number of paths to peers that packets are sent on. It is pure.
func (p planner) countWays(peers []api.Peer) (ways int) {
	for _, peer := range peers {
		for _, w := range p.ways(peer) {
			if w.skipReason == "" {
				ways++
			}
		}
	}
	return ways
}

// checkDuration rejects a request that could not finish in time. The packets of one size share a pace. At most
// maxPending of them await an answer at a time, each for the whole timeout if none comes. An error is a *FieldError. It
// is pure.
func checkDuration(peers, ways int, r api.ProbeRequest) error {
	each, packets := max(pace, milliseconds(r.TimeoutMS)/maxPending), ways*r.Count
	takes := time.Duration(packets) * each
	if takes <= milliseconds(maxSeriesMS) {
		return nil
	}
	instead := ""
	if most := milliseconds(maxSeriesMS) / each / time.Duration(ways); most > 0 {
		instead = fmt.Sprintf("a count of %d at most, or ", most)
	}
	if time.Duration(packets)*pace <= milliseconds(maxSeriesMS) {
		instead += fmt.Sprintf("a timeout_ms of %d at most, or ", maxSeriesMS*maxPending/packets)
	}
	return &FieldError{"count",
		fmt.Sprintf("is %d, with a timeout_ms of %d: %d packets of each size to %d peers may take %d ms, longer than %d: "+
			"ask for %sfewer peers",
			r.Count, r.TimeoutMS, packets, peers, takes.Milliseconds(), maxSeriesMS, instead)}
}

// SelectPeers returns the peers that a request names, all when it names none. An error is an *UnknownPeerError. It is
// pure.
func SelectPeers(peers []api.Peer, names []string) ([]api.Peer, error) {
	if len(names) == 0 {
		return peers, nil
	}
	var out []api.Peer
	for _, name := range names {
		i := slices.IndexFunc(peers, func(p api.Peer) bool { return p.Node == name })
		if i < 0 {
			return nil, &UnknownPeerError{name, peers}
		}
		out = append(out, peers[i])
	}
	return out, nil
}

// UnknownPeerError reports a name that no peer has.
type UnknownPeerError struct {
	Name  string
	peers []api.Peer
}

func (e *UnknownPeerError) Error() string {
	const most = 20
	var known []string
	for _, p := range e.peers[:min(len(e.peers), most)] {
		known = append(known, p.Node)
	}
	if len(e.peers) > most {
		known = append(known, fmt.Sprintf("and %d more", len(e.peers)-most))
	}
	if len(known) == 0 {
		known = []string{"none"}
	}
	return fmt.Sprintf("no peer is named %q, known are %s", e.Name, strings.Join(known, ", "))
}

// probeAll probes peers concurrently.
func probeAll(ctx context.Context, l pinger, p planner, peers []api.Peer, r api.ProbeRequest) []api.PeerProbe {
	out := make([]api.PeerProbe, len(peers))
	var wg sync.WaitGroup
	for i, peer := range peers {
		ways := p.ways(peer)
		if r.Full == 0 {
			p.limitSizes(ways) // here, because each question to the kernel would grow the stack of a goroutine
		}
		wg.Go(func() { out[i] = probePeer(ctx, l, p, peer, ways, r) })
	}
	wg.Wait()
	return out
}

// probePeer probes all paths to a peer concurrently.
func probePeer(ctx context.Context, l pinger, p planner, peer api.Peer, ways []way, r api.ProbeRequest) api.PeerProbe {
	out := api.PeerProbe{Node: peer.Node, Held: peer.Held, Skipped: peer.Skipped, Ways: make([]api.ProbedWay, len(ways))}
	var wg sync.WaitGroup
	for i, w := range ways {
		wg.Go(func() { out.Ways[i] = measure(ctx, l, w, r) })
	}
	wg.Wait()
	p.addTunnelErrors(l, peer, &out)
	if out.Reached = p.isReached(out); !out.Reached {
		p.probeDirections(ctx, l, peer, r, &out)
	}
	return out
}
