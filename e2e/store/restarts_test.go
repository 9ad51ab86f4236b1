package store

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/restarts"
	"github.com/lenonet/leno/e2e/world"
	"github.com/lenonet/leno/internal/testkit/programs"
)

// TestRestartsLoseNothing stops and restarts an agent in every way, under 1,000 pings per second in
// each family and a TCP connection: with a backend whose packets the kernel forwards, all of them
// arrive. `make measure ARGS="-only restarts"` does the same for longer.
func TestRestartsLoseNothing(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"vxlan", "host-gw"} {
		t.Run(backend, func(t *testing.T) {
			// The shipped binary starts much faster than one with the race detector.
			w := newWorld(t, lab.Options{Hosts: 2, Leno: world.Leno()})
			site, err := restarts.NewSite(w.Ctx, w.Lab, backend)
			w.Must(err)
			rounds := map[string]int{"newer configuration": 7, "state lost": 8, "all at once": 1} // the last is slow
			var steps []restarts.Step
			for _, way := range restarts.Ways(backend) {
				steps = append(steps, restarts.Step{Way: way, Rounds: cmp.Or(rounds[way.Name], 2)})
			}
			// An upgrade runs another file; here it contains the same code.
			program, err := os.ReadFile(world.Leno())
			w.Must(err)
			other := filepath.Join(w.Dir, "leno")
			w.Must(programs.Write(other, program))
			steps = append(steps, restarts.Step{Way: restarts.Replacement(other), Rounds: 2})
			report, err := site.Run(w.Ctx, steps...)
			w.Must(err)
			sum := report.Sum()
			t.Logf("%d rounds in %s: %d pings at %.0f a second and family, longest gap %s, longest time without sending %s, %d answers late, %d segments sent again",
				len(report.Rounds), report.Took, sum.Sent, sum.Rate, sum.Gap, sum.Pause, sum.Reordered, report.Resent)
			if lost := report.Losses(); len(lost) != 0 {
				t.Errorf("%d pings lost: %s", sum.Lost(), strings.Join(lost, ", "))
			}
			if sum.Lost() != 0 || sum.Duplicates != 0 {
				t.Errorf("%d pings lost, %d answers came twice", sum.Lost(), sum.Duplicates)
			}
		})
	}
}

// TestBootedHost checks that peers can reach a host soon after its agent has started, when a boot
// has left nothing of leno, or only its state directory.
func TestBootedHost(t *testing.T) {
	t.Parallel()
	for _, backend := range world.Carrying {
		t.Run(backend, func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 2, Leno: world.Leno()})
			site, err := restarts.NewSite(w.Ctx, w.Lab, backend)
			w.Must(err)
			before, err := site.Subnets()
			w.Must(err)
			for _, lost := range []bool{false, true} {
				took, err := site.Boot(w.Ctx, lost)
				w.Must(err)
				t.Logf("state lost %t: reached after %s", lost, took)
				// On a quiet machine it takes a second after the start of the agent. Only a fault takes a minute.
				if took > time.Minute {
					t.Errorf("state lost %t: reached after %s", lost, took)
				}
				if now, err := site.Subnets(); err != nil || !slices.Equal(now, before) {
					t.Errorf("subnets %v, before %v, %v", now, before, err)
				}
			}
		})
	}
}
