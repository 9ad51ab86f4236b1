package paths

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/events"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/hello"
	"github.com/lenonet/leno/agent/probe"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/hellotest"
)

// simulation is a network whose paths lose what a test says.
type simulation struct {
	t        *testing.T
	board    *health.Board
	events   *events.Log
	metrics  *telemetry.Telemetry
	monitor  *Monitor
	interval time.Duration

	mu    sync.Mutex
	peers []api.Peer
	own   []netip.Prefix // subnets of this host, besides the one with own
	gone  map[string]bool
	limit map[string]int // the largest packet that arrives
	err   error
	left  bool // this host has left the network

	wire    hellotest.Wire
	others  map[netip.Addr]*hello.Speaker // the peers' agents, by address
	closed  map[string]string             // the direction that loses all packets, to or from, by node
	summary api.HostSummary               // of the peers
	version string                        // of this host

	pace     time.Duration // from one question of a peer to the next
	muted    string        // the direction that loses all messages, to or from
	filtered bool          // all echo requests in the overlay are lost
	timeout  time.Duration // how long a probe takes then
	forwards bool          // the peers' kernels send errors about expiring echo requests
	third    string        // the host to which every third message is lost
	messages int           // to it

	sending  map[string]bool // packets of containers are sent to these nodes, which answer none
	counters map[string]api.Counters
	lossy    map[string]bool // UDP and TCP to these nodes are lost
	asked    int             // how often that was tested
	usurped  map[string]bool // something else has the host's address, and answers pings

	bytes int            // sent
	tests map[string]int // by node
}

// own is the address of this host in the overlay.
var own = netip.MustParseAddr("10.5.255.0")

func simulate(t *testing.T, peers int) *simulation {
	s := &simulation{t: t, gone: map[string]bool{}, limit: map[string]int{}, interval: 10 * time.Second, version: "1",
		pace: longestPause, others: map[netip.Addr]*hello.Speaker{}, closed: map[string]string{},
		sending: map[string]bool{}, counters: map[string]api.Counters{}, tests: map[string]int{}, usurped: map[string]bool{},
		lossy: map[string]bool{}}
	s.wire.Lose = s.loses
	for i := range peers {
		s.peers = append(s.peers, api.Peer{
			Node:    fmt.Sprintf("host-%04d", i),
			Subnets: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(i / 256), byte(i)}), 32)},
			Held:    true,
		})
	}
	s.board = health.New(time.Now, nil)
	s.board.Set("n", health.Lease, api.Passing, "")
	s.events = events.New(time.Now)
	s.metrics = telemetry.New(telemetry.Config{Retention: time.Hour}, hclog.NewNullLogger(), nil)
	s.monitor = New(Options{
		Log:      hclog.NewNullLogger(),
		Networks: s.networks,
		Probe:    s.probe,
		Listen:   s.wire.Listen,
		LosesDatagrams: func(_ context.Context, _ netip.Addr, to netip.Prefix) bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.asked++
			i := slices.IndexFunc(s.peers, func(p api.Peer) bool { return slices.Contains(p.Subnets, to) })
			return s.lossy[s.peers[i].Node]
		},
		Summary: func(string) api.HostSummary {
			s.mu.Lock()
			defer s.mu.Unlock()
			return api.HostSummary{Version: s.version, Health: api.Passing}
		},
		Health:    s.board,
		Events:    s.events,
		Telemetry: s.metrics,
		Changed:   watch.New[struct{}](),
		Interval: func() time.Duration {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.interval
		},
	})
	return s
}

func (s *simulation) networks() []Network {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left {
		return nil
	}
	return []Network{{
		Name: "n",
		Node: "this",
		Host: func() (probe.Host, error) {
			host := hostWith(own)
			host.Subnets = append(host.Subnets, s.own...)
			return host, nil
		},
		Peers: func() []api.Peer {
			s.mu.Lock()
			defer s.mu.Unlock()
			out := slices.Clone(s.peers)
			for i := range out {
				c := s.counters[out[i].Node]
				if c.TxBytes += 100; !s.sending[out[i].Node] {
					c.RxBytes += 100
				}
				s.counters[out[i].Node], out[i].Counters = c, &c
			}
			return out
		},
	}}
}

// hostWith returns a host with an address in the overlay.
func hostWith(a netip.Addr) probe.Host {
	return probe.Host{Network: "n", Backend: "vxlan", MTU: 1450, Subnets: []netip.Prefix{netip.PrefixFrom(a, 24)}}
}

func (s *simulation) probe(_ context.Context, h probe.Host, peers []api.Peer, r api.ProbeRequest) (out api.Probe, err error) {
	time.Sleep(10 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.filtered {
		s.mu.Unlock()
		time.Sleep(s.timeout)
		s.mu.Lock()
	}
	if s.err != nil {
		return out, s.err
	}
	for _, p := range peers {
		s.tests[p.Node]++
		var ways []api.ProbedWay
		for _, subnet := range p.Subnets {
			ways = append(ways, s.way(h, p.Node, subnet.Masked().Addr(), r))
		}
		result := probed(ways...)
		result.Reached = result.Reached || s.forwards
		if !h.OnlyOverlay {
			outside := api.ProbedWay{Path: api.PathUnderlay, To: p.Subnets[0].Addr(), Largest: 1500}
			if s.gone[p.Node] {
				outside.Largest = 0
			}
			result.Ways = append(result.Ways, outside)
		}
		out.Peers = append(out.Peers, result)
	}
	return out, nil
}

// way returns the result of probing one way to a host, and counts its bytes.
func (s *simulation) way(h probe.Host, node string, to netip.Addr, r api.ProbeRequest) api.ProbedWay {
	w := way(to, r.Count, r.Count, h.MTU)
	if r.Full != 0 {
		w.Full, w.Largest = api.ProbedSize{Bytes: r.Full}, r.Full
	}
	if limit := s.limit[node]; limit > 0 && r.Full == 0 {
		if w.Full.Answered, w.Largest = 0, limit; h.NoSearch {
			w.Largest = small
		} else {
			s.bytes += 21 * limit // of the search
		}
	}
	if !s.usurped[node] && (s.gone[node] || s.closed[node] != "" || s.filtered) {
		w = way(to, r.Count, 0, 0)
	}
	s.bytes += w.Small.Sent*w.Small.Bytes + w.Full.Sent*w.Full.Bytes
	return w
}

// loses reports whether a message is lost on the wire.
func (s *simulation) loses(from, to netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.peers {
		switch {
		case slices.ContainsFunc(p.Subnets, func(subnet netip.Prefix) bool { return subnet.Addr() == from }):
			return s.gone[p.Node] || s.closed[p.Node] == "from" || s.muted == "from"
		case slices.ContainsFunc(p.Subnets, func(subnet netip.Prefix) bool { return subnet.Addr() == to }):
			if p.Node == s.third {
				s.messages++
				return s.messages%3 == 0
			}
			return s.gone[p.Node] || s.closed[p.Node] == "to" || s.muted == "to"
		}
	}
	return true
}

// follow starts the agents of the peers, or tells them what they say of themselves.
func (s *simulation) follow() {
	for _, p := range s.peers {
		s.followOne(p)
	}
}

func (s *simulation) followOne(p api.Peer) {
	a := p.Subnets[0].Addr()
	other := s.others[a]
	if other == nil {
		other = hello.NewSpeaker(s.wire.Listen, 1000)
	}
	state := hello.State{Own: []netip.Addr{a}, Peers: []netip.Addr{own}, Pause: s.interval, Summary: s.summary}
	if err := other.Follow(s.t.Context(), state); err != nil {
		s.t.Error(err)
	}
	s.change(func() { s.others[a] = other })
}

// converse makes the peers' agents ask this host until ctx ends.
func (s *simulation) converse(ctx context.Context) {
	for ctx.Err() == nil {
		s.mu.Lock()
		others := slices.Collect(maps.Values(s.others))
		s.mu.Unlock()
		for _, other := range others {
			other.Ask(own)
		}
		time.Sleep(s.pace)
	}
}

// change changes the network.
func (s *simulation) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// check returns the health check, "" if there is none.
func (s *simulation) check() (status, reason string) {
	report, _ := s.board.Report()
	for _, n := range report.Networks {
		for _, c := range n.Checks {
			if c.Name == health.Paths {
				return c.Status, c.Reason
			}
		}
	}
	return "", ""
}

// run runs a test in simulated time beside the monitor.
func (s *simulation) run(test func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.monitor.Run(ctx); !errors.Is(err, context.Canceled) {
			s.t.Errorf("Run: %v", err)
		}
	})
	wg.Go(func() { s.converse(ctx) })
	defer wg.Wait()
	defer cancel()
	test()
}

// of returns the path to a host.
func (s *simulation) of(node string) api.PeerPath {
	i := slices.IndexFunc(s.peers, func(p api.Peer) bool { return p.Node == node })
	return s.monitor.Of("n")[s.peers[i].Subnets[0]]
}

// expect waits for at most a minute until the check has a status and its reason contains a text.
func (s *simulation) expect(status, text string) {
	s.t.Helper()
	var gotStatus, gotReason string
	for range 60 {
		synctest.Wait()
		if gotStatus, gotReason = s.check(); gotStatus == status && strings.Contains(gotReason, text) {
			return
		}
		time.Sleep(time.Second)
	}
	s.t.Fatalf("the check is %q, %q, want %q with %q", gotStatus, gotReason, status, text)
}

// TestFault: what breaks a path is in the health check and in the list within a minute, and so is its end.
func TestFault(t *testing.T) {
	for name, row := range map[string]struct {
		begin  func(s *simulation)
		state  string
		reason string
	}{
		"a host that does not answer": {func(s *simulation) { s.gone["host-0001"] = true }, api.PathLost,
			"packets are lost to 1 of 3 hosts: host-0001 (no packet is answered, also outside the overlay)"},
		"full packets are lost": {func(s *simulation) { s.limit["host-0001"] = 1400 }, api.PathShort,
			"host-0001 (IPv4 packets above 1400 bytes are lost)"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := simulate(t, 3)
				s.run(func() {
					s.expect(api.Passing, "packets reach 3 of 3 hosts")
					s.change(func() { row.begin(s) })
					s.expect(api.Warning, row.reason)
					if got := s.of("host-0001"); got.State != row.state {
						t.Errorf("the path is %+v", got)
					}
					if got := s.of("host-0002").State; got != api.PathReached {
						t.Errorf("the path to another host is %q", got)
					}
					s.change(func() { clear(s.gone); clear(s.limit) })
					s.expect(api.Passing, "packets reach 3 of 3 hosts")
					var messages []string
					all, _, _ := s.events.After(0, "n")
					for _, e := range all {
						messages = append(messages, e.Message)
					}
					if len(messages) != 2 || !strings.Contains(messages[0], "packets are lost between this host and host-0001: ") ||
						messages[1] != "packets reach host-0001" {
						t.Errorf("events: %q", messages)
					}
				})
			})
		})
	}
}

// TestBudget: a thousand hosts, of which some do not answer, and others no full packets, cost no more than promised, and
// all that is found is so.
func TestBudget(t *testing.T) {
	for name, row := range map[string]struct {
		down, short  int // of the hosts with even numbers, and with odd ones
		bothFamilies bool
		allowed      float64
	}{
		"all answer":                      {0, 0, false, bytesPerSec},
		"all answer in both families":     {0, 0, true, bytesPerSec},
		"half of them answer":             {500, 0, false, 2 * bytesPerSec},
		"half are short in both families": {0, 500, true, 2 * bytesPerSec},
		"half short, half down, in both":  {500, 500, true, 2 * bytesPerSec},
	} {
		t.Run(name, func(t *testing.T) { checkBudget(t, row.down, row.short, row.allowed, row.bothFamilies) })
	}
}

// TestBudgetOfShortPaths: paths on which full packets are lost cost no more than other faults, and the size that passes
// is found.
func TestBudgetOfShortPaths(t *testing.T) {
	for _, count := range []int{1, 20} {
		synctest.Test(t, func(t *testing.T) {
			const span = 10 * time.Minute
			s := simulate(t, 20)
			for i := range count {
				s.limit[fmt.Sprintf("host-%04d", i)] = 1400
			}
			s.follow()
			s.run(func() {
				time.Sleep(span)
				synctest.Wait()
				s.change(func() {
					if rate := float64(s.bytes+s.wire.Sent(own)) / span.Seconds(); rate > 2*bytesPerSec {
						t.Errorf("%d short paths: %.0f bytes a second", count, rate)
					}
				})
				for i := range count {
					if p := s.of(fmt.Sprintf("host-%04d", i)); p.State != api.PathShort || p.MTU != 1400 {
						t.Errorf("the path is %+v", p)
					}
				}
			})
		})
	}
}

// TestManyFaults: what breaks the paths to many hosts at once is known as soon as that to one, and so is its end.
func TestManyFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 100)
		s.run(func() {
			s.expect(api.Passing, "packets reach 100 of 100 hosts")
			s.change(func() {
				for _, p := range s.peers {
					s.gone[p.Node] = true
				}
			})
			s.expect(api.Warning, "packets are lost to 100 of 100 hosts")
			s.change(func() { clear(s.gone) })
			s.expect(api.Passing, "packets reach 100 of 100 hosts")
		})
	})
}

// checkBudget lets so many of a thousand hosts be down or short, and allows so many bytes a second.
func checkBudget(t *testing.T, down, short int, allowed float64, bothFamilies bool) {
	synctest.Test(t, func(t *testing.T) {
		const peers = 1000
		span := 5 * time.Minute
		if down > 0 && bothFamilies {
			span *= 2
		}
		s := simulate(t, peers)
		for i := range short {
			s.limit[fmt.Sprintf("host-%04d", 2*i+1)] = 1400
		}
		for i := range down {
			s.gone[fmt.Sprintf("host-%04d", 2*i)] = true
		}
		if bothFamilies {
			s.own = append(s.own, netip.MustParsePrefix("fd00:5:ff::/64"))
			for i := range s.peers {
				a := netip.AddrFrom16([16]byte{0: 0xfd, 3: 5, 4: byte(i / 256), 5: byte(i)})
				s.peers[i].Subnets = append(s.peers[i].Subnets, netip.PrefixFrom(a, 64))
			}
		}
		s.pace = 4 * time.Minute
		s.follow()
		s.run(func() {
			time.Sleep(span)
			s.change(func() {
				sent := s.bytes + s.wire.Sent(own)
				if rate := float64(sent) / span.Seconds(); rate > allowed {
					t.Errorf("%.0f bytes a second, %d of %d in messages", rate, s.wire.Sent(own), sent)
				}
			})
			found := 0
			for _, peer := range s.peers {
				node := peer.Node
				p := s.of(node)
				switch {
				case p.State == "":
				case s.gone[node] != (p.State == api.PathLost):
					t.Errorf("%s is %q", node, p.State)
				default:
					found++
				}
			}
			if found < peers {
				t.Errorf("%d of %d paths were tested", found, peers)
			}
		})
	})
}

// TestPeersCome: a host that has left, lost its lease or is not in the datapath does not count.
func TestPeersCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 3)
		s.gone["host-0000"] = true
		s.run(func() {
			s.expect(api.Warning, "1 of 3 hosts")
			s.change(func() { s.peers[0].Held = false })
			s.expect(api.Passing, "packets reach 2 of 2 hosts")
			s.change(func() { s.peers[1].Skipped = "its record cannot be used" })
			s.expect(api.Passing, "packets reach 1 of 1 host")
			if p := s.of("host-0001"); p.State != "" {
				t.Error("a host that is left out has a path")
			}
			s.change(func() { s.peers = s.peers[:1] })
			s.expect(api.Passing, "no other host holds its lease")
			s.change(func() { s.peers[0].Skipped = "its record cannot be used" })
			s.expect(api.Passing, "no other host is in the datapath")
			s.change(func() { s.peers = nil })
			s.expect(api.Passing, "no other host is in the datapath")
		})
	})
}

// TestMoves: the event of a fault has an end if the host returns with another address, or this host has one since.
func TestMoves(t *testing.T) {
	for name, move := range map[string]func(s *simulation){
		"the other host": func(s *simulation) { s.peers[1].PublicIPs = []netip.Addr{netip.MustParseAddr("192.0.2.7")} },
		"this host":      func(s *simulation) { s.own = []netip.Prefix{netip.MustParsePrefix("fd00:5:ff::/64")} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := simulate(t, 3)
				s.gone["host-0001"] = true
				s.run(func() {
					s.expect(api.Warning, "1 of 3 hosts")
					s.change(func() { clear(s.gone); move(s) })
					s.expect(api.Passing, "packets reach 3 of 3 hosts")
					all, _, _ := s.events.After(0, "n")
					if len(all) != 2 || all[1].Message != "packets reach host-0001" {
						t.Errorf("events: %+v", all)
					}
				})
			})
		})
	}
}

// TestOff: nothing is tested without an interval, without the right, and after the network was left.
func TestOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 1)
		s.run(func() {
			s.expect(api.Passing, "1 of 1")
			s.change(func() { s.err = probe.ErrNoCapability })
			s.expect(api.Passing, "not tested now: a probe needs CAP_NET_RAW")
			for range 20 {
				time.Sleep(time.Second)
				if _, reason := s.check(); !strings.Contains(reason, "not tested now") {
					t.Errorf("without the right: %s", reason)
				}
			}
			s.change(func() { s.interval = 0 })
			s.expect("", "")
			s.change(func() { s.interval, s.err = 10*time.Second, nil })
			s.expect(api.Passing, "1 of 1")
			s.change(func() { s.left = true })
			s.board.Forget("n")
			time.Sleep(time.Minute)
			if report, _ := s.board.Report(); len(report.Networks) != 0 || s.monitor.Of("n") != nil {
				t.Errorf("after leaving: %+v, %v", report, s.monitor.Of("n"))
			}
		})
	})
}

// TestFailedMember: the check says that the store knows of the failure of a host to which packets are lost.
func TestFailedMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 2)
		s.peers[1].Member = api.MemberFailed
		s.run(func() {
			s.expect(api.Passing, "packets reach 2 of 2 hosts")
			s.change(func() { s.gone["host-0001"] = true })
			s.expect(api.Warning, "host-0001 (no packet is answered, also outside the overlay; Consul reports the host as failed)")
		})
	})
}
