package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/restarts"
)

// TestRestartsLoseNothing ends an agent and starts it again in every way, under
// 1,000 pings a second in each family and a TCP connection: where the kernel
// carries the packets, every one of them arrives. `make measure ARGS="-only
// restarts"` does the same for longer.
func TestRestartsLoseNothing(t *testing.T) {
	for _, backend := range []string{"vxlan", "host-gw"} {
		t.Run(backend, func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 2})
			site, err := restarts.NewSite(w.ctx, w.Lab, backend)
			w.must(err)
			for _, way := range restarts.Ways(backend) {
				rounds := min(max(2, len(way.Kinds)), 7)
				if way.Name == "all at once" {
					rounds = 1 // without Consul, which takes its time
				}
				report, err := site.Run(w.ctx, way, rounds)
				w.must(err)
				sum := report.Sum()
				t.Logf("%s: %d rounds in %s, the last took %s: %d pings of each family at %.0f a second, longest gap %s, longest time without sending %s, %d segments sent again",
					way.Name, len(report.Rounds), report.Took, report.Rounds[len(report.Rounds)-1].Took, report.Pings[0].Sent, sum.Rate, sum.Gap, sum.Pause, report.Resent)
				if lost := report.Losses(); len(lost) != 0 {
					t.Errorf("%s: %d of %d pings lost: %s", way.Name, sum.Lost(), sum.Sent, strings.Join(lost, ", "))
				}
				if sum.Duplicates != 0 || sum.Reordered != 0 {
					t.Errorf("%s: %d answers came twice, %d late", way.Name, sum.Duplicates, sum.Reordered)
				}
			}
		})
	}
}

// TestBootedHost: a host on which a boot left nothing of leno, its state directory
// perhaps aside, is reached by its peers within a second of its agent's start. A
// busy machine gets more.
func TestBootedHost(t *testing.T) {
	for _, backend := range carrying {
		t.Run(backend, func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 2})
			site, err := restarts.NewSite(w.ctx, w.Lab, backend)
			w.must(err)
			before, err := site.Subnets()
			w.must(err)
			for _, lost := range []bool{false, true} {
				took, err := site.Boot(w.ctx, lost)
				w.must(err)
				t.Logf("state lost %t: reached after %s", lost, took)
				if took > 5*time.Second {
					t.Errorf("state lost %t: reached after %s", lost, took)
				}
				if now, err := site.Subnets(); err != nil || !slices.Equal(now, before) {
					t.Errorf("subnets %v, before %v, %v", now, before, err)
				}
			}
		})
	}
}
