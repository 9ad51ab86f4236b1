package paths

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
)

// TestMeasureHeld: only peers that hold their leases count, as in the health check.
func TestMeasureHeld(t *testing.T) {
	all := 1.0
	lost := api.PeerPath{State: api.PathLost, Loss: 1, FromPeer: &all}
	held, lapsed := netip.MustParsePrefix("10.5.1.0/24"), netip.MustParsePrefix("10.5.2.0/24")
	m := New(Options{})
	m.publish("n", map[netip.Prefix]api.PeerPath{held: lost, lapsed: lost}, nil)
	peers := []api.Peer{{Node: "held", Subnets: []netip.Prefix{held}, Held: true}, {Node: "lapsed", Subnets: []netip.Prefix{lapsed}}}
	for _, tt := range []struct {
		name  string
		peers []api.Peer
		want  float64
	}{{"held", peers[:1], 1}, {"lapsed", peers[1:], 0}, {"both", peers, 1}, {"no others", nil, 0}} {
		got, err := telemetry.New(telemetry.Config{}, hclog.NewNullLogger(), func(r *telemetry.Reading) { m.Measure(r, "n", tt.peers) }).Now()
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, g := range got.Gauges {
			if g.Name == "leno_paths_peers" && g.Labels["state"] == "lost" || g.Name == "leno_paths_unreachable" && g.Labels["direction"] == "from_peer" {
				if found++; g.Value != tt.want {
					t.Errorf("%s: %s is %v, want %v", tt.name, g.Name, g.Value, tt.want)
				}
			}
		}
		if found != 2 {
			t.Errorf("%s: %d of 2 metrics: %+v", tt.name, found, got.Gauges)
		}
	}
}

// TestRoundTrips: each answered test of a path is in the histogram of its network, and no other.
func TestRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 2)
		answers := func() (count uint64) {
			synctest.Wait()
			all, err := s.metrics.Now()
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range all.Times {
				if m.Name == "leno_paths_probe_seconds" && m.Labels["network"] == "n" {
					count = m.Count
					if mean := m.Sum / float64(m.Count); mean < 0.0019 || mean > 0.0021 {
						t.Errorf("the mean is %v s, want 2 ms", mean)
					}
				}
			}
			return count
		}
		s.run(func() {
			time.Sleep(time.Minute)
			both := answers()
			if both < 8 || both > 14 {
				t.Errorf("%d answers of two hosts in a minute, one each 10 s", both)
			}
			s.change(func() { s.gone["host-0000"], s.gone["host-0001"] = true, true })
			time.Sleep(time.Second) // a test that began before
			before := answers()
			time.Sleep(time.Minute)
			if now := answers(); now != before {
				t.Errorf("%d answers of hosts that are gone", now-before)
			}
		})
	})
}
