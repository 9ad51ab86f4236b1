package paths

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/probe"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
)

// TestDirections: the direction in which packets are lost is in the check, the list and the events within a minute, and
// what the peer has said of itself is known.
func TestDirections(t *testing.T) {
	for name, row := range map[string]struct {
		begin    func(s *simulation)
		reason   string
		to, from float64 // -1 for unknown
	}{
		"to the peer":   {func(s *simulation) { s.closed["host-0001"] = "to" }, "packets to host-0001 are lost", 1, 0},
		"from the peer": {func(s *simulation) { s.closed["host-0001"] = "from" }, "packets from host-0001 are lost", -1, 1},
		"its host":      {func(s *simulation) { s.gone["host-0001"] = true }, "no packet is answered, also outside the overlay", -1, -1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := simulate(t, 3)
				s.summary = api.HostSummary{Version: "7", Reached: 2, Peers: 3}
				s.follow()
				s.run(func() {
					s.expect(api.Passing, "packets reach 3 of 3 hosts")
					time.Sleep(20 * time.Second)
					if got := s.monitor.Summaries("n")[s.peers[2].Subnets[0]]; got.Version != "7" || time.Since(got.At) > time.Minute {
						t.Errorf("the summary is %+v", got)
					}
					s.change(func() { row.begin(s) })
					s.expect(api.Warning, "host-0001 ("+row.reason+")")
					p := s.of("host-0001")
					if p.State != api.PathLost || number(p.ToPeer) != row.to || number(p.FromPeer) != row.from {
						t.Errorf("to %v, from %v: %+v", number(p.ToPeer), number(p.FromPeer), p)
					}
					s.change(func() { clear(s.closed); clear(s.gone) })
					s.expect(api.Passing, "packets reach 3 of 3 hosts")
					if p := s.of("host-0001"); number(p.ToPeer) > 0 || number(p.FromPeer) > 0 {
						t.Errorf("after the end: %+v", p)
					}
					var all []string
					events, _, _ := s.events.After(0, "n")
					for _, e := range events {
						all = append(all, e.Message)
					}
					if text := strings.Join(all, "\n"); !strings.Contains(text, row.reason) || !strings.HasSuffix(text, "packets reach host-0001") {
						t.Errorf("events:\n%s", text)
					}
				})
			})
		})
	}
}

// TestDirectionsOfMany: the direction stays known where packets to more hosts are lost than are asked in each pass, and
// is in one event for each of them.
func TestDirectionsOfMany(t *testing.T) {
	for direction, pace := range map[string]time.Duration{"to": 20 * time.Second, "from": longestPause} {
		t.Run(direction, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := simulate(t, 40)
				s.pace = pace
				s.interval = 20 * time.Second
				s.follow()
				s.run(func() {
					s.expect(api.Passing, "packets reach 40 of 40 hosts")
					time.Sleep(2 * time.Minute)
					s.change(func() {
						for _, p := range s.peers[:30] {
							s.closed[p.Node] = direction
						}
					})
					s.expect(api.Warning, "packets are lost to 30 of 40 hosts")
					time.Sleep(10 * time.Minute)
					events := map[string]int{}
					all, _, _ := s.events.After(0, "n")
					for _, e := range all {
						events[e.Fields["host"]]++
					}
					for _, p := range s.peers[:30] {
						if want := "packets " + direction + " " + p.Node + " are lost"; s.of(p.Node).Reason != want || events[p.Node] > 2 {
							t.Errorf("%d events, want 2 at most; %q, want %q", events[p.Node], s.of(p.Node).Reason, want)
						}
					}
				})
			})
		})
	}
}

func number(loss *float64) float64 {
	if loss == nil {
		return -1
	}
	return *loss
}

// TestNews: a new summary of either host arrives soon and wakes the readers, although it is always the same host that asks
// first.
func TestNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 1)
		s.wire.Lose = nil
		theirs := s.peers[0].Subnets[0].Addr()
		o := s.monitor.o
		theirVersion := "theirs"
		o.Summary = func(string) api.HostSummary {
			s.mu.Lock()
			defer s.mu.Unlock()
			return api.HostSummary{Version: theirVersion}
		}
		o.Health, o.Changed = health.New(time.Now, nil), watch.New[struct{}]()
		o.Networks = func() []Network {
			return []Network{{
				Name: "n",
				Host: func() (probe.Host, error) { return hostWith(theirs), nil },
				Peers: func() []api.Peer {
					return []api.Peer{{Node: "this", Subnets: []netip.Prefix{netip.PrefixFrom(own, 32)}, Held: true}}
				},
			}}
		}
		other := New(o)
		s.run(func() {
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			time.Sleep(time.Second) // each pass of this host comes first
			wg.Go(func() { _ = other.Run(ctx) })
			defer wg.Wait()
			defer cancel()
			time.Sleep(time.Minute)
			for i := range 4 {
				reader := []*Monitor{other, s.monitor}[i%2]
				_, _, changed := reader.o.Changed.Get()
				time.Sleep(time.Minute)
				synctest.Wait()
				select {
				case <-changed:
					t.Error("readers were woken for the same summary")
				default:
				}
				s.change(func() {
					if i%2 == 0 {
						s.version += "+"
					} else {
						theirVersion += "+"
					}
				})
				time.Sleep(time.Minute)
				synctest.Wait()
				select {
				case <-changed:
				default:
					t.Error("a new summary woke no reader")
				}
				for want, all := range map[string]map[netip.Prefix]api.HostSummary{
					theirVersion: s.monitor.Summaries("n"),
					s.version:    other.Summaries("n"),
				} {
					for _, got := range all {
						if got.Version != want || time.Since(got.At) > 2*s.interval {
							t.Errorf("known at %v: %+v, want version %q", time.Now(), got, want)
						}
					}
					if len(all) != 1 {
						t.Errorf("%d summaries are known, want version %q", len(all), want)
					}
				}
			}
		})
	})
}

// TestOnlyMessagesAreLost: a rule that drops only the agents' messages, or a peer's agent that has ended, does not make
// a path look broken, but the reason says that only pings are known to pass. A rule that drops only echo requests does
// not make it look broken either while the agents speak.
func TestOnlyMessagesAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 2)
		s.follow()
		s.run(func() {
			s.expect(api.Passing, "packets reach 2 of 2 hosts")
			time.Sleep(time.Minute)
			for _, direction := range []string{"to", "from"} {
				s.change(func() { s.muted = direction })
				for range 60 {
					time.Sleep(time.Second)
					synctest.Wait()
					p := s.of("host-0001")
					if status, reason := s.check(); status != api.Passing || p.State != api.PathReached || number(p.FromPeer) == 1 || number(p.ToPeer) == 1 {
						t.Fatalf("%s: %s, %s, %+v", direction, status, reason, p)
					}
				}
				if _, reason := s.check(); !strings.Contains(reason, "only pings are known to pass to 2 of them: host-0000, host-0001. ") ||
					!strings.HasPrefix(s.of("host-0001").Reason, "only pings are known to pass, no UDP message ") {
					t.Errorf("%s: the reasons are %q and %q", direction, reason, s.of("host-0001").Reason)
				}
			}
			s.change(func() { s.muted = "" })
			time.Sleep(time.Minute)
			if _, reason := s.check(); reason != "packets reach 2 of 2 hosts" || s.of("host-0001").Reason != "" {
				t.Errorf("messages arrive again: %q, %q", reason, s.of("host-0001").Reason)
			}
			s.change(func() { s.filtered = true })
			for range 60 {
				time.Sleep(time.Second)
				if status, reason := s.check(); status != api.Passing {
					t.Fatalf("echo requests are dropped: %s, %s", status, reason)
				}
			}
		})
	})
}

// TestPingsAreDropped: among many hosts, a rule of this host that drops the answers to pings makes no path look broken,
// and costs half of what is promised, so that hosts that all have such a rule cost no more than that. A path on which the
// messages are lost as well is found.
func TestPingsAreDropped(t *testing.T) {
	const peers, span = 400, 5 * time.Minute
	for name, answered := range map[string]time.Duration{"from the start": 0, "later": 2 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := simulate(t, peers)
				s.pace, s.timeout, s.filtered = 2*time.Minute, 2400*time.Millisecond, answered == 0
				s.follow()
				s.run(func() {
					s.expect(api.Passing, "packets reach")
					time.Sleep(answered)
					s.change(func() { s.filtered = true })
					watch := func() (sent int) {
						s.change(func() { sent = -s.bytes - s.wire.Sent(own) })
						for began := time.Now(); time.Since(began) < span; time.Sleep(longestPause) {
							synctest.Wait()
							if status, reason := s.check(); status != api.Passing {
								t.Fatalf("after %s: %s, %s", time.Since(began), status, reason)
							}
						}
						s.change(func() { sent += s.bytes + s.wire.Sent(own) })
						return sent
					}
					watch()
					if rate := float64(watch()) / span.Seconds(); rate > bytesPerSec/2 {
						t.Errorf("%.0f bytes a second", rate)
					}
					s.change(func() { s.closed["host-0300"] = "from" })
					for began := time.Now(); s.of("host-0300").State != api.PathLost; time.Sleep(longestPause) {
						if time.Since(began) > 2*time.Minute {
							t.Fatalf("not found: %+v", s.of("host-0300"))
						}
					}
					s.change(func() { clear(s.closed) })
					s.expect(api.Passing, "packets reach 400 of 400 hosts")
				})
			})
		})
	}
}

// TestLossWithoutPings: where pings are dropped, the loss of messages is that of the path, and the check says that
// full-size packets are not tested.
func TestLossWithoutPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 3)
		s.filtered, s.timeout = true, 2400*time.Millisecond
		s.follow()
		s.run(func() {
			const untested = "packets reach 3 of 3 hosts, full-size ones to 3 of them are not tested, as pings are not answered: " +
				"host-0000, host-0001, host-0002"
			s.expect(api.Passing, untested)
			time.Sleep(time.Minute)
			s.change(func() { s.third = "host-0001" })
			s.expect(api.Warning, "packets are lost to 1 of 3 hosts: host-0001 (")
			p := s.of("host-0001")
			if p.State != api.PathLossy || p.Loss < 0.1 || !strings.HasSuffix(p.Reason, "messages were lost, most of them to host-0001") {
				t.Errorf("%+v", p)
			}
			for range 60 {
				time.Sleep(longestPause)
				if p := s.of("host-0001"); p.State != api.PathLossy {
					t.Fatalf("%+v", p)
				}
			}
			s.change(func() { s.third = "" })
			for began := time.Now(); s.of("host-0001").State != api.PathReached; time.Sleep(time.Second) {
				if time.Since(began) > 90*time.Second {
					t.Fatalf("%+v", s.of("host-0001"))
				}
			}
			s.expect(api.Passing, untested)
			for _, direction := range []string{"to", "from"} { // perhaps a rule drops them as well
				s.change(func() { s.forwards, s.muted = true, direction })
				for i := range 120 {
					time.Sleep(time.Second)
					if p := s.of("host-0001"); p.State != api.PathReached {
						t.Fatalf("no message arrives, but errors of its kernel: %+v", p)
					}
					if i == 60 {
						s.change(func() { s.muted = "" })
					}
				}
				if p := s.of("host-0001"); p.Loss > 0 {
					t.Errorf("messages arrive again: %+v", p)
				}
			}
			s.change(func() { s.filtered = false })
			for status, reason := s.check(); reason != "packets reach 3 of 3 hosts"; status, reason = s.check() {
				if time.Sleep(time.Second); status != api.Passing {
					t.Fatal(reason)
				}
			}
		})
	})
}

// TestOnlyPings: it is said of a path on which no message has ever arrived that only pings are known to pass, except to
// a host whose agent sends none. So it is when a container takes the address of a host that is down, and answers for it.
func TestOnlyPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 4)
		s.peers[2].Flannel = true
		s.followOne(s.peers[0])
		s.followOne(s.peers[3])
		s.run(func() {
			s.expect(api.Passing, "packets reach 4 of 4 hosts, but only pings are known to pass to 1 of them: host-0001. ")
			s.change(func() { s.gone["host-0003"], s.usurped["host-0003"] = true, true })
			s.expect(api.Passing, "packets reach 4 of 4 hosts, but only pings are known to pass to 2 of them: host-0001, host-0003. ")
			for node, want := range map[string]string{
				"host-0000": "",
				"host-0001": "only pings are known to pass, no UDP message from host-0001 has arrived",
				"host-0002": "",
				"host-0003": "only pings are known to pass, no UDP message from host-0003 arrives",
			} {
				if p := s.of(node); p.State != api.PathReached || p.Reason != want {
					t.Errorf("%s: %+v", node, p)
				}
			}
		})
	})
}

// TestSummaryOfPaths: the other hosts are told which paths are lost, which short, and how many are reached.
func TestSummaryOfPaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 4)
		s.gone["host-0000"], s.limit["host-0001"], s.pace = true, 1400, time.Minute
		s.follow()
		s.run(func() {
			s.expect(api.Warning, "2 of 4 hosts")
			time.Sleep(time.Minute)
			got := s.others[s.peers[3].Subnets[0].Addr()].Of(own).Summary
			if got.Peers != 4 || got.Reached != 3 || got.Impaired != 1 || !slices.Equal(got.Lost, []string{"host-0000"}) ||
				!slices.Equal(got.Short, []string{"host-0001"}) || got.Lossy != nil {
				t.Errorf("%+v", got)
			}
		})
	})
}

// TestCutOff: the check is critical on a host that reaches no other one, if others said that they reach each other. It
// says so only of the present if they have said it since.
func TestCutOff(t *testing.T) {
	for name, row := range map[string]struct {
		peers  int
		said   api.HostSummary
		closed string // the direction in which packets are lost, "" if the hosts do not answer outside the overlay either
		member string // what Consul reports of these
		status string
	}{
		"they reach each other":          {2, api.HostSummary{Peers: 2, Reached: 2}, "to", "", api.Critical},
		"they reached each other":        {2, api.HostSummary{Peers: 2, Reached: 2}, "from", "", api.Critical},
		"they reached only this one":     {2, api.HostSummary{Peers: 2, Reached: 1, Lost: []string{"host-0000"}}, "to", "", api.Warning},
		"they reach all but this one":    {2, api.HostSummary{Peers: 2, Reached: 1, Lost: []string{"this"}}, "to", "", api.Critical},
		"there is only one":              {1, api.HostSummary{Peers: 1, Reached: 1}, "to", "", api.Warning},
		"they are down":                  {2, api.HostSummary{Peers: 2, Reached: 2}, "", api.MemberFailed, api.Warning},
		"nothing is known of them":       {2, api.HostSummary{Peers: 2, Reached: 2}, "", "none", api.Warning},
		"Consul reaches them":            {2, api.HostSummary{Peers: 2, Reached: 2}, "", api.MemberAlive, api.Critical},
		"they say nothing of themselves": {2, api.HostSummary{}, "to", "", api.Warning},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := simulate(t, row.peers)
				s.summary = row.said
				s.follow()
				s.run(func() {
					s.expect(api.Passing, "packets reach")
					time.Sleep(20 * time.Second)
					s.change(func() {
						if row.closed != "" {
							s.closed["host-0000"], s.closed["host-0001"] = row.closed, row.closed
							return
						}
						s.gone["host-0000"], s.gone["host-0001"] = true, true
						for i := range s.peers {
							s.peers[i].Member = row.member
						}
					})
					want := "packets are lost to"
					if row.peers == 2 {
						want += " 2 of 2 hosts"
					}
					s.expect(row.status, want)
					if _, reason := s.check(); strings.Contains(reason, "others reach each other:") &&
						(row.status != api.Critical || row.closed != "to") {
						t.Errorf("the reason claims more than is known: %s", reason)
					}
				})
			})
		})
	}
}
