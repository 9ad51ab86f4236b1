package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// inBubble runs the agent's part in its network and everything that calls the store, but nothing that waits for
// anything except time and memory.
func (h *host) inBubble(ctx context.Context, wg *sync.WaitGroup) {
	r := h.part()
	h.agent.networks.running["n"] = &running{runner: r, done: make(chan struct{})}
	h.agent.env.Reports.Health.Clear("", health.Node)
	wg.Go(func() { _ = h.agent.env.Store.Outage.Run(ctx) })
	wg.Go(func() { _ = h.agent.watchNetworks(ctx) })
	wg.Go(func() { _ = r.Run(ctx) })
}

// asked returns the calls that the host's store has had since a time: how long after that time each was made, by the
// name of the call, such as "Renew".
func (h *host) asked(since time.Time) map[string][]time.Duration {
	out := map[string][]time.Duration{}
	for call, times := range h.registry.Times() {
		for _, at := range times {
			if d := at.Sub(since); d >= 0 {
				out[call] = append(out[call], d)
			}
		}
	}
	return out
}

// crowd returns the greatest share of the times that lies within one window.
func crowd(times []time.Duration, window time.Duration) float64 {
	slices.Sort(times)
	most, first := 0, 0
	for i, at := range times {
		for at-times[first] > window {
			first++
		}
		most = max(most, i-first+1)
	}
	return float64(most) / float64(len(times))
}

// TestOutageOfManyAgents: many agents lose the store at once. They call it seldom, and not all together. When it
// is back, all is well within 10 s, although they do not come back all together either.
func TestOutageOfManyAgents(t *testing.T) {
	for _, tt := range []struct {
		name  string
		err   error
		lasts time.Duration
	}{
		{"a moment", registry.ErrUnavailable, 2 * time.Second},
		{"longer than sessions live", registry.ErrUnavailable, 90 * time.Second},
		{"token revoked", registry.ErrDenied, time.Minute},
		{"not certain", registry.ErrUncertain, 30 * time.Second},
	} {
		subtest(t, tt.name, func(t *testing.T) { manyAgents(t, tt.err, tt.lasts) })
	}
}

func manyAgents(t *testing.T, failure error, lasts time.Duration) {
	const agents = 40
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var hosts []*host
	for i := range agents {
		// Each host has a store of its own, since what hosts read of each other does not matter here.
		h := newHost(t, memory.New(), fmt.Sprintf("h%d", i))
		h.pace, h.quiet = retry.DefaultPolicy(), true
		h.config.Lease.TTL, h.config.Lease.RenewMargin = 30*time.Second, 20*time.Second
		h.inBubble(ctx, &wg)
		hosts = append(hosts, h)
	}
	well := func() int {
		n := 0
		for _, h := range hosts {
			if report, _ := h.agent.env.Reports.Health.Report(); report.Ready && report.Networks[0].Status == api.Passing &&
				report.Checks[0].Name == health.Consul && report.Checks[0].Status == api.Passing {
				n++
			}
		}
		return n
	}
	time.Sleep(15 * time.Second)
	synctest.Wait()
	if n := well(); n != agents {
		t.Fatalf("%d of %d agents are well", n, agents)
	}
	var subnets []string
	for _, h := range hosts {
		subnets = append(subnets, h.subnet().String())
	}

	away := time.Now()
	for _, h := range hosts {
		h.registry.Set(fmt.Errorf("no luck: %w", failure))
	}
	time.Sleep(lasts)
	synctest.Wait()
	var firsts []time.Duration
	total := 0
	for _, h := range hosts {
		n := 0
		for call, times := range h.asked(away.Add(1)) {
			n += len(times)
			if call != "Probe" && call != "Renew" && len(times) > 0 { // renewals of all hosts are due together here
				firsts = append(firsts, times[0])
			}
			for i, at := range times {
				switch gap := at - times[max(i-1, 0)]; {
				case i == 0:
				case call == "Probe" && gap < h.pace.ProbeLeast:
					t.Errorf("probes are %s apart", gap)
				case call != "Probe" && gap < h.pace.First/10:
					t.Errorf("%s again after %s", call, gap)
				}
			}
		}
		if most := 20 + 3*int(lasts.Seconds()); n > most {
			t.Errorf("one agent asked %d times in %s", n, lasts)
		}
		total += n
	}
	if most := agents * (15 + int(1.2*lasts.Seconds())); total > most {
		t.Errorf("%d agents asked %d times in %s, want at most %d", agents, total, lasts, most)
	}
	t.Logf("%.2f requests a second of an agent", float64(total)/agents/lasts.Seconds())
	if share := crowd(firsts, 100*time.Millisecond); share > 0.35 { // 0.18, five standard deviations less, is usual
		t.Errorf("%.0f%% of the first attempts were made within 100 ms", 100*share)
	}

	back := time.Now()
	for _, h := range hosts {
		h.registry.Set(nil)
	}
	time.Sleep(10 * time.Second)
	synctest.Wait()
	if n := well(); n != agents {
		t.Errorf("%d of %d agents are well 10 s after the store came back", n, agents)
	}
	var returns []time.Duration
	for i, h := range hosts {
		for call, times := range h.asked(back) {
			if call != "Probe" {
				returns = append(returns, times...)
			}
		}
		if got := h.subnet().String(); got != subnets[i] {
			t.Errorf("%s has %s, had %s", h.name, got, subnets[i])
		}
	}
	if share := crowd(returns, 500*time.Millisecond); share > 0.5 {
		t.Errorf("%.0f%% of what was asked after the return came within 500 ms", 100*share)
	}
	t.Logf("at most %.0f%% of %d first attempts within 100 ms, %.0f%% of %d after the return within 500 ms",
		100*crowd(firsts, 100*time.Millisecond), len(firsts), 100*crowd(returns, 500*time.Millisecond), len(returns))
}
