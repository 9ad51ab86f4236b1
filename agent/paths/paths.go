// Package paths tests all the time whether packets reach the other hosts of each network, and says so in the health
// check "paths", the list of peers, events and metrics.
//
// Each peer is probed at an interval, as `leno peers -probe` does it: the peers' kernels answer, so that hosts with an
// older leno, with flannel or without a running agent are tested as well. The state of a path changes when three probes
// in a row agree (judge), so a single lost packet changes nothing. A path that is not in order, or may be about to
// change, is probed every few seconds, with more small packets, and also outside the overlay. One that is in doubt for
// another reason than a probe is probed at once (doubt). The number of such paths and the packets to all others are
// bounded: a network of any size needs at most 20 kbit/s, and 40 while packets are lost. Beyond that number, paths that
// may have changed are probed as all others are, so each costs no more than any other.
//
// The agents of both sides also speak with each other (package hello). This says in which direction packets are lost,
// and what the other host says of itself. It alone never makes a path one that is not in order. A peer that drops echo
// requests is tested with these messages instead.
package paths

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/events"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/hello"
	"github.com/lenonet/leno/agent/probe"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
)

const (
	// longestPause is the time from one pass over all networks to the next, if the interval is not shorter. Suspicious
	// paths are probed in each pass.
	longestPause = 4 * time.Second

	// mostSuspicious bounds the suspicious paths of a network that are probed in one pass, for one family of addresses.
	mostSuspicious = 16

	// small is the size of a small packet, bytes. The bytes that may be sent each second are shared by small packets, full
	// ones, and messages to the peers' agents, half of which are for summaries.
	small       = 64
	bytesPerSec = smallPerSec + fullPerSec + 2*helloPerSec
	smallPerSec = 1000
	fullPerSec  = 900
	helloPerSec = 300

	// searchPackets is how many packets one search for the largest packet that passes needs, most of them almost full.
	// The searches in a network may send searchPerSec.
	searchPackets = 25
	searchPerSec  = 2000

	// longestPass bounds a pass over one network, for which the others wait.
	longestPass = 15 * time.Second

	// mostNamed is the number of hosts that the health check names.
	mostNamed = 5
)

// Network is one network of this host.
type Network struct {
	Name  string
	Node  string                     // this host's
	Host  func() (probe.Host, error) // an error means that there is nothing to send from
	Peers func() []api.Peer
}

// Options are what a Monitor uses.
type Options struct {
	Log       hclog.Logger
	Networks  func() []Network
	Probe     func(ctx context.Context, h probe.Host, peers []api.Peer, r api.ProbeRequest) (api.Probe, error)
	Listen    hello.Listen
	Health    *health.Board
	Events    *events.Log
	Telemetry *telemetry.Telemetry
	Changed   *watch.Value[struct{}] // set when the state of a path, or what a peer says of itself, has changed
	Interval  func() time.Duration   // the shortest one from one probe of a peer to the next; 0 switches the tests off

	// LosesDatagrams reports whether UDP and TCP from an address of this host to a subnet are lost where pings pass, and
	// no rule drops them. It is false if that is not known.
	LosesDatagrams func(ctx context.Context, own netip.Addr, to netip.Prefix) bool

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

// Of returns what is known of the paths to the peers of a network, by their first subnets. The caller must not change
// the map.
func (m *Monitor) Of(network string) map[netip.Prefix]api.PeerPath {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.paths[network]
}

// AddPaths adds what is known of the paths to the peers of a network that are in the datapath, with their history if it
// is asked for.
func (m *Monitor) AddPaths(network string, peers []api.Peer, withHistory bool) {
	known := m.Of(network)
	for i := range peers {
		p := &peers[i]
		if len(p.Subnets) == 0 || p.Skipped != "" {
			continue
		}
		if path, ok := known[p.Subnets[0]]; ok {
			if !withHistory {
				path.History = nil
			}
			p.Path = &path
		}
	}
}

// Summaries returns the last summary that each peer of a network has sent, by the first subnet of the peer. There is
// none of a peer that has sent none to this process. The caller must not change the map.
func (m *Monitor) Summaries(network string) map[netip.Prefix]api.HostSummary {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.summaries[network]
}

// Run tests the paths until ctx ends, whose error it returns.
func (m *Monitor) Run(ctx context.Context) error {
	networks := map[string]*network{}
	defer func() {
		for _, n := range networks {
			n.leave()
		}
	}()
	for {
		current := map[string]*network{}
		var wg sync.WaitGroup
		for _, n := range m.o.Networks() {
			state := networks[n.Name]
			if state == nil {
				state = &network{
					m:       m,
					peers:   map[netip.Prefix]*peer{},
					speaker: hello.NewSpeaker(m.o.Listen, helloPerSec),
				}
			}
			state.Network = n
			current[n.Name] = state
			wg.Go(func() { state.pass(ctx) })
		}
		wg.Wait()
		for name, n := range networks {
			if current[name] == nil {
				n.leave()
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

// publish makes paths and summaries those of a network.
func (m *Monitor) publish(name string, paths map[netip.Prefix]api.PeerPath,
	summaries map[netip.Prefix]api.HostSummary) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if paths == nil {
		delete(m.paths, name)
		delete(m.summaries, name)
		return
	}
	m.paths[name], m.summaries[name] = paths, summaries
}

// network is what Run knows of one network. One goroutine at a time uses it.
type network struct {
	Network
	m     *Monitor
	peers map[netip.Prefix]*peer // by first subnet
	hosts hostWatch
	from  probe.Host // as it was in the last pass
	err   error      // of the last probe for which packets were due

	lasted time.Duration // the last probe: where packets are lost, a peer sends no message for as long

	searched  time.Time // when the largest packet that passes was last searched for
	datagrams time.Time // when a path was last tested with UDP and TCP

	speaker  *hello.Speaker
	speakErr error // of its last Follow
}

// peer is one peer and the path to it.
type peer struct {
	path
	api.Peer
	doubt     doubt
	datagrams datagrams
	reported  api.PeerPath // what tell has seen last

	addrs    []netip.Addr // that the host has in the overlay, in the families of this host
	asked    time.Time    // when this host sent it the last question
	search   time.Time    // when the largest packet that passes was last searched for
	summary  api.HostSummary
	hasNews  bool      // summary has changed since tell
	followed time.Time // when it came into the datapath
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
		n.leave()
		board.Clear(n.Name, health.Paths)
		return
	}
	hasMoved := host.Backend != n.from.Backend || host.MTU != n.from.MTU || host.Link != n.from.Link ||
		!slices.Equal(host.Subnets, n.from.Subnets) // packets take another way now
	n.from = host
	n.follow(interval, hasMoved)
	n.publish() // a peer is shown before its first test, which takes a while if packets are lost
	n.speak(ctx, host, interval)
	call, cancel := context.WithTimeout(ctx, longestPass)
	defer cancel()
	began := time.Now()
	isDue, err := n.probe(call, host, interval)
	n.lasted = time.Since(began)
	if ctx.Err() != nil {
		return
	}
	if isDue {
		if err != nil && (n.err == nil || n.err.Error() != err.Error()) {
			n.m.o.Log.Warn("the paths to other hosts could not be tested", "network", n.Name, "error", err)
		}
		n.err = err
	}
	for _, p := range n.peers {
		n.hear(p)
	}
	n.publish()
	n.tell()
	for _, e := range n.hosts.follow(time.Now(), n.peers) {
		e.Network = n.Name
		n.m.o.Events.Add(e)
	}
	status, reason := n.judge()
	board.Update(n.Name, health.Paths, status, reason)
}

// publish makes what is known of the peers that of the network.
func (n *network) publish() {
	paths, summaries := map[netip.Prefix]api.PeerPath{}, map[netip.Prefix]api.HostSummary{}
	for subnet, p := range n.peers {
		paths[subnet] = p.result()
		if !p.summary.At.IsZero() {
			summaries[subnet] = p.summary
		}
	}
	n.m.publish(n.Name, paths, summaries)
}

// leave ends the tests of a network.
func (n *network) leave() {
	clear(n.peers)
	n.m.publish(n.Name, nil, nil)
	if err := n.speaker.Follow(context.Background(), hello.State{}); err != nil {
		n.m.o.Log.Warn("the sockets of the tests of paths could not be closed", "network", n.Name, "error", err)
	}
}

// follow takes over the peers that are in the datapath now. Those that are new, or take another way, are due, spread
// over the interval if there are many. So are all if this host has moved.
func (n *network) follow(interval time.Duration, hasMoved bool) {
	now, known := time.Now(), n.peers
	n.peers = map[netip.Prefix]*peer{}
	var fresh []*peer
	for _, p := range n.Peers() {
		if p.Skipped != "" || len(p.Subnets) == 0 {
			continue
		}
		before := known[p.Subnets[0]]
		state := before
		if before == nil || hasMoved || !before.isSame(p) {
			state = &peer{followed: now}
			if before != nil && before.Node == p.Node {
				state.reported = before.reported
			}
			fresh = append(fresh, state)
		}
		state.doubt.follow(now, state.Peer, p, state.summary, n.Node)
		state.Peer = p
		n.peers[p.Subnets[0]] = state
	}
	count := time.Duration(max(len(n.peers), 1))
	step, every := n.every(interval, small, smallPerSec)/count, n.every(interval, hello.MessageLen, helloPerSec)
	for i, p := range fresh {
		turn := time.Duration(max(0, i-mostSuspicious))
		p.due = now.Add(turn * step)
		p.asked = now.Add(turn*(every/count) - every)
	}
}

// every returns the time from one packet of a size to a peer to the next, if so many bytes a second are for such
// packets. There is one for each family of addresses.
func (n *network) every(interval time.Duration, size, perSec int) time.Duration {
	return max(interval, duration(len(n.peers)*len(n.from.Subnets)*size, perSec))
}

// duration returns in what time so many bytes may be sent.
func duration(bytes, perSec int) time.Duration {
	return time.Duration(bytes) * time.Second / time.Duration(perSec)
}

// chosen are the peers to probe in a pass: most with a small packet, some with a full one as well, those on suspicious
// paths with more small ones, and one with as many as it takes to find the largest that passes.
type chosen struct {
	plain, full, suspicious, search []*peer
}

// choose returns the peers to probe now. Of the suspicious paths, and of those that are due for a full packet, those
// that were tested the longest time ago come first; the others are tested as all other paths until then.
func (n *network) choose(now time.Time, interval time.Duration, mtu int) (c chosen) {
	var short []*peer // that may lose full packets
	early := 0
	for _, p := range n.peers {
		if p.Held && p.doubt.isEarly && early < mostSuspicious {
			p.due, p.doubt.isEarly = now, false
			early++
		}
		isSuspicious := p.Held && p.isSuspicious()
		switch {
		case isSuspicious && p.isSizeInDoubt():
			short = append(short, p)
		case isSuspicious:
			c.suspicious = append(c.suspicious, p)
		case now.Before(p.due):
		case now.Sub(p.lastFull) >= n.every(interval, mtu, fullPerSec):
			c.full = append(c.full, p)
		default:
			c.plain = append(c.plain, p)
		}
	}
	first := func(all []*peer, most int, last func(*peer) time.Time) []*peer {
		slices.SortFunc(all, func(a, b *peer) int {
			return cmp.Or(last(a).Compare(last(b)), strings.Compare(a.Node, b.Node))
		})
		most = min(len(all), most)
		for _, p := range all[most:] {
			if !now.Before(p.due) {
				c.plain = append(c.plain, p)
			}
		}
		return all[:most]
	}
	families := max(len(n.from.Subnets), 1)
	most, fullShare := mostSuspicious/families, fullPerSec
	if len(short) > 0 {
		most, fullShare = most/2, fullPerSec/2 // so that the bytes suffice for the short paths as well
	}
	if len(short) > 0 && now.Sub(n.searched) >= duration(searchPackets*mtu*families, searchPerSec) {
		next := slices.MinFunc(short, func(a, b *peer) int {
			return cmp.Or(a.search.Compare(b.search), strings.Compare(a.Node, b.Node))
		})
		n.searched, next.search, next.lastFull, c.search = now, now, now, []*peer{next}
		short = slices.DeleteFunc(short, func(p *peer) bool { return p == next })
	}
	c.suspicious = first(c.suspicious, most, func(p *peer) time.Time { return p.shown.Tested })
	mostFull := func(perSec int) int { return max(1, int(longestPause.Seconds())*perSec/max(mtu*families, 1)) }
	fullTested := func(p *peer) time.Time { return p.lastFull }
	c.full = first(c.full, mostFull(fullShare), fullTested)
	c.full = append(c.full, first(short, mostFull(fullPerSec), fullTested)...)
	for _, p := range c.full {
		p.lastFull = now // whatever is answered
	}
	return c
}

// probe probes the peers that are due, and reports whether there were any.
func (n *network) probe(ctx context.Context, host probe.Host, interval time.Duration) (isDue bool, err error) {
	now := time.Now()
	c := n.choose(now, interval, host.MTU)
	overlay := host
	overlay.OnlyOverlay = true
	noSearch := overlay
	noSearch.NoSearch = true
	oneSmall := api.ProbeRequest{Count: 1, Small: small, Full: small}
	manySmall := api.ProbeRequest{Count: 5, Small: small, Full: small}
	sets := []struct {
		host    probe.Host
		peers   []*peer
		request api.ProbeRequest
		results []api.PeerProbe
		err     error
	}{
		{host: overlay, peers: c.plain, request: oneSmall},
		{host: noSearch, peers: c.full, request: api.ProbeRequest{Count: 1, Small: small}},
		{host: overlay, peers: c.search, request: api.ProbeRequest{Count: 1, Small: small}},
		{host: host, peers: c.suspicious, request: manySmall},
	}
	var wg sync.WaitGroup
	wg.Go(func() { n.ask(ctx, interval, c) })
	wg.Go(func() { n.testDatagrams(ctx, now) })
	for i := range sets {
		set := &sets[i]
		wg.Go(func() { set.results, set.err = n.send(ctx, set.host, set.peers, set.request) })
	}
	wg.Wait()
	for _, set := range sets {
		for i, p := range set.peers {
			if set.err == nil && ctx.Err() == nil {
				n.count(p, set.results[i], now)
			}
			p.due = now.Add(n.every(interval, small, smallPerSec))
			if p.isFiltered { // a test of it is a message
				p.due = now.Add(n.every(interval, hello.MessageLen, helloPerSec))
			}
		}
		isDue, err = isDue || len(set.peers) > 0, cmp.Or(err, set.err)
	}
	return isDue, err
}

// send probes peers.
func (n *network) send(ctx context.Context, host probe.Host, peers []*peer,
	r api.ProbeRequest) ([]api.PeerProbe, error) {
	if len(peers) == 0 {
		return nil, nil
	}
	list := make([]api.Peer, len(peers))
	for i, p := range peers {
		list[i] = p.Peer
	}
	out, err := n.m.o.Probe(ctx, host, list, r)
	return out.Peers, err
}

// count counts the result of a probe. began is when the pass began: a peer whose agent has answered since is reached,
// whatever its kernel answers.
func (n *network) count(p *peer, result api.PeerProbe, began time.Time) {
	result.Reached = result.Reached || n.isAnsweredSince(p, began)
	p.messagesLost, p.messages = p.lostMessages(n.speaker)
	for _, w := range result.Ways {
		if w.Path == api.PathOverlay && w.Small.Answered > 0 {
			n.m.o.Telemetry.Time(telemetry.PathProbe, time.Duration(w.Small.AvgMS*float64(time.Millisecond)), n.Name)
		}
	}
	if p.judge(result, time.Now()) && p.shown.State == api.PathReached {
		n.forget(p) // what was lost before says nothing about the path now
	}
}
