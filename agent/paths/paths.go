// Package paths tests all the time whether packets reach the other hosts of each network, and says so in the health
// check "paths", the list of peers, events and metrics.
//
// Each peer is probed at an interval, as `leno peers -probe` does it: the peers' kernels answer, so that hosts with an
// older leno, with flannel or without a running agent are tested as well. The state of a path changes when three probes
// in a row agree (judge), so a single lost packet changes nothing. A path that is not in order, or may be about to
// change, is probed every few seconds, with more small packets, and also outside the overlay. The number of such paths and
// the packets to all others are bounded: a network of any size needs at most 20 kbit/s, and 40 while packets are lost.
package paths

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/events"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/probe"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
)

const (
	// longestPause is the time from one pass over all networks to the next, if the interval is not shorter. Suspicious
	// paths are probed in each pass.
	longestPause = 4 * time.Second

	// mostSuspicious bounds the suspicious paths of a network that are probed in one pass.
	mostSuspicious = 16

	// small is the size of a small packet, bytes. Of the bytes that may be sent each second, half are for small packets
	// and half for full ones.
	small       = 64
	bytesPerSec = 2500

	// longestPass bounds a pass over one network, for which the others wait.
	longestPass = 15 * time.Second

	// mostNamed is the number of hosts that the health check names.
	mostNamed = 5
)

// Network is one network of this host.
type Network struct {
	Name  string
	Host  func() (probe.Host, error) // an error means that there is nothing to send from
	Peers func() []api.Peer
}

// Options are what a Monitor uses.
type Options struct {
	Log      hclog.Logger
	Networks func() []Network
	Probe    func(ctx context.Context, h probe.Host, peers []api.Peer, r api.ProbeRequest) (api.Probe, error)
	Health   *health.Board
	Events   *events.Log
	Changed  *watch.Value[struct{}] // set when the state of a path changed
	Interval func() time.Duration   // the shortest one from one probe of a peer to the next; 0 switches the tests off

	// Summary returns what this host says of itself in a network to its peers. Run adds what it knows of the paths.
	Summary func(network string) api.HostSummary
}

// Monitor tests the paths to the peers of all networks. It is safe for concurrent use.
type Monitor struct {
	o Options

	mu        sync.Mutex
	paths     map[string]map[netip.Prefix]api.PeerPath // by network and first subnet; the inner maps are never changed
	summaries map[string]map[netip.Prefix]api.HostSummary
}

// New returns a Monitor.
func New(o Options) *Monitor {
	return &Monitor{o: o, paths: map[string]map[netip.Prefix]api.PeerPath{},
		summaries: map[string]map[netip.Prefix]api.HostSummary{}}
}

// Of returns what is known of the paths to the peers of a network, by their first subnets. The caller must not change the
// map.
func (m *Monitor) Of(network string) map[netip.Prefix]api.PeerPath {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.paths[network]
}

// Summaries returns the last summary that each peer of a network has sent, by the first subnet of the peer. There is none
// of a peer that has sent none to this process. The caller must not change the map.
func (m *Monitor) Summaries(network string) map[netip.Prefix]api.HostSummary {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.summaries[network]
}

// Run tests the paths until ctx ends, whose error it returns.
func (m *Monitor) Run(ctx context.Context) error {
	networks := map[string]*network{}
	for {
		current := map[string]*network{}
		var wg sync.WaitGroup
		for _, n := range m.o.Networks() {
			state := networks[n.Name]
			if state == nil {
				state = &network{m: m, peers: map[netip.Prefix]*peer{}}
			}
			state.Network = n
			current[n.Name] = state
			wg.Go(func() { state.pass(ctx) })
		}
		wg.Wait()
		for name := range networks {
			if current[name] == nil {
				m.publish(name, nil)
			}
		}
		networks = current
		pause := longestPause
		if interval := m.o.Interval(); interval > 0 {
			pause = min(pause, interval)
		}
		if err := retry.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// publish makes paths those of a network.
func (m *Monitor) publish(name string, paths map[netip.Prefix]api.PeerPath) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if paths == nil {
		delete(m.paths, name)
		return
	}
	m.paths[name] = paths
}

// network is what Run knows of one network. One goroutine at a time uses it.
type network struct {
	Network
	m     *Monitor
	peers map[netip.Prefix]*peer // by first subnet
	from  probe.Host             // as it was in the last pass
	err   error                  // of the last probe for which packets were due
}

// peer is one peer and the path to it.
type peer struct {
	path
	api.Peer
	reported string // the state of the path that tell has seen last
}

// isSame reports whether packets to a peer take the same way as before.
func (p *peer) isSame(now api.Peer) bool {
	return p.Node == now.Node && p.Backend == now.Backend && slices.Equal(p.Subnets, now.Subnets) &&
		slices.Equal(p.PublicIPs, now.PublicIPs)
}

// pass probes the peers that are due, and publishes what is known.
func (n *network) pass(ctx context.Context) {
	board := n.m.o.Health
	interval := n.m.o.Interval()
	host, err := n.Host()
	host.NoDetours = true // those packets are plain, and must not leave the host without being asked for
	if err != nil || interval == 0 || host.Backend == "alloc" {
		clear(n.peers)
		n.m.publish(n.Name, nil)
		board.Clear(n.Name, health.Paths)
		return
	}
	if host.Backend != n.from.Backend || host.MTU != n.from.MTU || host.Link != n.from.Link ||
		!slices.Equal(host.Subnets, n.from.Subnets) {
		clear(n.peers) // packets take another way now
	}
	n.from = host
	n.follow(interval)
	call, cancel := context.WithTimeout(ctx, longestPass)
	defer cancel()
	isDue, err := n.probe(call, host, interval)
	if ctx.Err() != nil {
		return
	}
	if isDue {
		if err != nil && (n.err == nil || n.err.Error() != err.Error()) {
			n.m.o.Log.Warn("the paths to other hosts could not be tested", "network", n.Name, "error", err)
		}
		n.err = err
	}
	paths := map[netip.Prefix]api.PeerPath{}
	for subnet, p := range n.peers {
		paths[subnet] = p.shown
	}
	n.m.publish(n.Name, paths)
	n.tell()
	status, reason := n.judge()
	board.Update(n.Name, health.Paths, status, reason)
}

// follow takes over the peers that are in the datapath now. Those that are new, or take another way, are due, spread
// over the interval if there are many.
func (n *network) follow(interval time.Duration) {
	now, known := time.Now(), n.peers
	n.peers = map[netip.Prefix]*peer{}
	var fresh []*peer
	for _, p := range n.Peers() {
		if p.Skipped != "" || len(p.Subnets) == 0 {
			continue
		}
		state := known[p.Subnets[0]]
		if state == nil || !state.isSame(p) {
			state = &peer{}
			fresh = append(fresh, state)
		}
		state.Peer = p
		n.peers[p.Subnets[0]] = state
	}
	step := n.every(interval, small) / time.Duration(max(len(n.peers), 1))
	for i, p := range fresh {
		p.due = now.Add(time.Duration(max(0, i-mostSuspicious)) * step)
	}
}

// every returns the time from one packet of a size to a peer to the next.
func (n *network) every(interval time.Duration, size int) time.Duration {
	return max(interval, time.Duration(len(n.peers)*size)*time.Second*2/bytesPerSec)
}

// probe probes the peers that are due, and reports whether there were any. It sends small packets to most of them, full
// ones as well to some, and more small ones to those on suspicious paths.
func (n *network) probe(ctx context.Context, host probe.Host, interval time.Duration) (isDue bool, err error) {
	now := time.Now()
	var suspicious, plain, full []*peer
	for _, p := range n.peers {
		isSuspicious := p.Held && p.isSuspicious()
		switch {
		case isSuspicious && p.isSizeInDoubt():
			full = append(full, p)
		case isSuspicious:
			suspicious = append(suspicious, p)
		case now.Before(p.due):
		case now.Sub(p.lastFull) >= n.every(interval, host.MTU):
			full = append(full, p)
		default:
			plain = append(plain, p)
		}
	}
	// Those that were tested the longest time ago come first.
	slices.SortFunc(suspicious, func(a, b *peer) int {
		return cmp.Or(a.shown.Tested.Compare(b.shown.Tested), strings.Compare(a.Node, b.Node))
	})
	suspicious = suspicious[:min(len(suspicious), mostSuspicious)]
	slices.SortFunc(full, func(a, b *peer) int {
		return cmp.Or(a.lastFull.Compare(b.lastFull), strings.Compare(a.Node, b.Node))
	})
	mostFull := min(len(full), max(1, int(longestPause.Seconds())*bytesPerSec/max(host.MTU, 1)))
	for _, p := range full[mostFull:] {
		if !now.Before(p.due) {
			plain = append(plain, p)
		}
	}
	full = full[:mostFull]
	for _, p := range full {
		p.lastFull = now // whatever is answered
	}
	overlay := host
	overlay.OnlyOverlay = true
	errs := make([]error, 3)
	var wg sync.WaitGroup
	wg.Go(func() {
		errs[0] = n.send(ctx, overlay, plain, api.ProbeRequest{Count: 1, Small: small, Full: small}, n.every(interval, small))
	})
	wg.Go(func() {
		errs[1] = n.send(ctx, overlay, full, api.ProbeRequest{Count: 1, Small: small}, n.every(interval, small))
	})
	wg.Go(func() {
		errs[2] = n.send(ctx, host, suspicious, api.ProbeRequest{Count: 5, Small: small, Full: small}, n.every(interval, small))
	})
	wg.Wait()
	return len(plain)+len(full)+len(suspicious) > 0, cmp.Or(errs[0], errs[1], errs[2])
}

// send probes peers and judges the answers.
func (n *network) send(
	ctx context.Context, host probe.Host, peers []*peer, r api.ProbeRequest, interval time.Duration,
) error {
	if len(peers) == 0 {
		return nil
	}
	list := make([]api.Peer, len(peers))
	for i, p := range peers {
		list[i] = p.Peer
	}
	out, err := n.m.o.Probe(ctx, host, list, r)
	now := time.Now()
	for i, p := range peers {
		p.due = now.Add(interval)
		if err == nil && ctx.Err() == nil {
			p.judge(out.Peers[i], now)
		}
	}
	return err
}

// tell adds an event for each path whose state has changed, except for one that was found in order at its first test.
func (n *network) tell() {
	isChanged := false
	for _, subnet := range slices.SortedFunc(maps.Keys(n.peers), netip.Prefix.Compare) {
		p := n.peers[subnet]
		node, now, before := p.Node, p.shown, p.reported
		if before == now.State {
			continue
		}
		isChanged, p.reported = true, now.State
		e := api.Event{
			Network:  n.Name,
			Kind:     api.EventPath,
			Severity: api.Info,
			Message:  "packets reach " + node,
			Fields:   map[string]string{"node": node, "state": now.State},
		}
		switch {
		case now.State != api.PathReached:
			e.Severity, e.Message = api.Warning, fmt.Sprintf("packets to %s are lost: %s", node, now.Reason)
		case before == "":
			continue
		}
		n.m.o.Events.Add(e)
	}
	if isChanged {
		n.m.o.Changed.Set(struct{}{})
	}
}

// judge returns the result of the health check. Only peers that hold their leases count: a host without one may be gone.
func (n *network) judge() (status, reason string) {
	var peers []*peer
	untested := 0
	for _, p := range n.peers {
		if p.Held {
			peers = append(peers, p)
			if p.shown.State == "" {
				untested++
			}
		}
	}
	bad, failure := worst(peers), ""
	if n.err != nil {
		failure = "not tested now: " + n.err.Error()
	}
	switch {
	case len(peers) == 0:
		return api.Passing, "there are no other hosts"
	case len(bad) == 0 && failure != "":
		return api.Passing, failure
	case len(bad) == 0 && untested > 0:
		return api.Passing, fmt.Sprintf("packets reach %d of %d hosts, %d are not tested yet", len(peers)-untested, len(peers),
			untested)
	case len(bad) == 0:
		return api.Passing, fmt.Sprintf("packets reach %d of %d hosts", len(peers), len(peers))
	}
	var names []string
	for _, b := range bad[:min(len(bad), mostNamed)] {
		names = append(names, fmt.Sprintf("%s (%s)", b.Node, b.shown.Reason))
	}
	if more := len(bad) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	if failure != "" {
		names = append(names, failure)
	}
	return api.Warning, fmt.Sprintf("packets are lost to %d of %d hosts: %s", len(bad), len(peers), strings.Join(names, ", "))
}
