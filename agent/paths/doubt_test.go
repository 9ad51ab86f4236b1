package paths

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/hello"
	"github.com/lenonet/leno/api"
)

// TestDoubt: one of a thousand hosts that fails is found long before its regular test when Consul reports it, when it
// says that it has lost this host, and when packets to it are not answered.
func TestDoubt(t *testing.T) {
	for name, begin := range map[string]func(s *simulation, p *api.Peer){
		"Consul reports the host as failed": func(s *simulation, p *api.Peer) {
			s.gone[p.Node], p.Member = true, api.MemberFailed
		},
		"the peer has lost this host": func(s *simulation, p *api.Peer) {
			s.closed[p.Node], s.summary.Lost = "to", []string{"other", "this"}
		},
		"packets to it are not answered": func(s *simulation, p *api.Peer) {
			s.gone[p.Node], s.sending[p.Node] = true, true
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := simulate(t, 1000)
				s.run(func() {
					p := &s.peers[500]
					s.summary.Version = "7"
					s.followOne(*p)
					for s.monitor.Summaries("n")[p.Subnets[0]].Version == "" {
						time.Sleep(time.Second)
					}
					for s.of(p.Node).State == "" || time.Since(s.of(p.Node).Tested) > longestPause {
						time.Sleep(time.Second) // until its regular test, so that the next one is a minute away
					}
					s.change(func() { begin(s, p) })
					s.followOne(*p)
					began := time.Now()
					for s.of(p.Node).State != api.PathLost {
						if time.Since(began) > 30*time.Second {
							t.Fatalf("not found: %+v", s.of(p.Node))
						}
						time.Sleep(time.Second)
					}
				})
			})
		})
	}
}

// TestDoubtIsBounded: hosts that Consul reports as failed again and again, and that answer now and then what this host
// sends them, cost no more than others: neither one of them, nor all together.
func TestDoubtIsBounded(t *testing.T) {
	for _, doubted := range []int{1, 1000} {
		synctest.Test(t, func(t *testing.T) {
			const span = 5 * time.Minute
			s := simulate(t, 1000)
			s.pace = 4 * time.Minute
			s.follow()
			s.run(func() {
				for i := range int(span / (5 * time.Second)) {
					s.change(func() {
						for k := range s.peers[:doubted] {
							s.peers[k].Member = []string{api.MemberFailed, api.MemberAlive}[i%2]
							s.sending[s.peers[k].Node] = i%4 == 0
						}
					})
					time.Sleep(5 * time.Second)
				}
				synctest.Wait()
				s.change(func() {
					if rate := float64(s.bytes+s.wire.Sent(own)) / span.Seconds(); rate > bytesPerSec {
						t.Errorf("%d in doubt: %.0f bytes a second", doubted, rate)
					}
					regular := int(span/(small*1000*time.Second/smallPerSec)) + 1
					if most := regular + int(span/doubtPause); s.tests["host-0000"] > most {
						t.Errorf("%d in doubt: one was tested %d times, at most %d wanted", doubted, s.tests["host-0000"], most)
					}
				})
			})
		})
	}
}

// TestMonotonicClock: all times that are compared have a reading of the monotonic clock, so that a wall clock that jumps
// by hours changes the state of no path, and no pause. Simulated time has no such reading.
func TestMonotonicClock(t *testing.T) {
	t.Parallel()
	s := simulate(t, 2)
	s.interval = time.Millisecond
	s.gone["host-0001"], s.limit["host-0000"] = true, 1400
	s.peers[0].Member = api.MemberFailed
	s.followOne(s.peers[0])
	other := s.others[s.peers[0].Subnets[0].Addr()]
	n := &network{Network: s.networks()[0], m: s.monitor, peers: map[netip.Prefix]*peer{},
		speaker: hello.NewSpeaker(s.wire.Listen, helloPerSec)}
	defer n.leave()
	var without []string
	for range 30 {
		n.pass(t.Context())
		other.Ask(own)
		short, lost := n.peers[s.peers[0].Subnets[0]], n.peers[s.peers[1].Subnets[0]]
		heard := n.speaker.Of(short.addrs[0])
		without = nil
		for name, at := range map[string]time.Time{
			"searched": n.searched, "due": short.due, "lastFull": short.lastFull, "asked": short.asked, "search": short.search,
			"followed": short.followed, "Summary.At": short.summary.At, "doubt": short.doubt.since, "Since": lost.shown.Since,
			"Tested": short.shown.Tested, "History": short.history.shown.Last, "Heard": heard.Heard, "Asked": heard.Asked,
			"Arrived": heard.Arrived, "member": n.hosts.hosts[s.peers[0].Subnets[0]].member.since,
		} {
			if !strings.Contains(at.String(), " m=") { // time.Time prints that reading
				without = append(without, name)
			}
		}
		if len(without) == 0 {
			return
		}
	}
	t.Errorf("without a reading of the monotonic clock, or never set: %q", without)
}
