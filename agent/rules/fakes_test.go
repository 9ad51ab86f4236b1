package rules

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
)

// recorder is a Firewall that records what it is to hold.
type recorder struct {
	mu      sync.Mutex
	states  []firewall.State
	times   []time.Time // of Apply
	report  firewall.Report
	err     error         // of Apply
	hangs   chan struct{} // Apply receives from it, if not nil
	began   chan struct{} // Apply sends to it before that, if not nil
	touched bool
	watch   error  // of Watch
	changed func() // what Watch got
}

func (r *recorder) Apply(_ context.Context, s firewall.State) (firewall.Report, error) {
	r.mu.Lock()
	r.states, r.times = append(r.states, s), append(r.times, time.Now())
	began, hangs := r.began, r.hangs
	r.mu.Unlock()
	if began != nil {
		began <- struct{}{}
	}
	if hangs != nil {
		<-hangs
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.report, r.err
}

func (r *recorder) IsTouched() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.touched
}

func (r *recorder) Watch(ctx context.Context, changed func()) error {
	r.mu.Lock()
	r.changed = changed
	err := r.watch
	r.mu.Unlock()
	if err != nil {
		return err
	}
	changed() // as the real one does for earlier changes
	<-ctx.Done()
	return nil
}

// set changes how the firewall behaves.
func (r *recorder) set(change func(*recorder)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r)
}

func (r *recorder) fail(err error) { r.set(func(r *recorder) { r.err = err }) }

// disturb reports that a program changed rules.
func (r *recorder) disturb() {
	r.mu.Lock()
	changed := r.changed
	r.mu.Unlock()
	changed()
}

func (r *recorder) looks() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.states)
}

// names returns the networks of every Apply, as "a b".
func (r *recorder) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, s := range r.states {
		var names []string
		for _, n := range s.Networks {
			names = append(names, n.Name)
		}
		out = append(out, strings.Join(names, " "))
	}
	return out
}

// newKeeper returns a Keeper of the firewall, with the default configuration.
func newKeeper(r *recorder) (*Keeper, *health.Board) {
	board := health.New(time.Now, nil)
	return New(r, config.Defaults().Firewall, hclog.NewNullLogger(), board, Hooks{}), board
}

// running runs a test in a synctest bubble with a Keeper that runs and has one network, n.
func running(t *testing.T, r *recorder, resync time.Duration, test func(t *testing.T, k *Keeper, board *health.Board)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		board := health.New(time.Now, nil)
		k := New(r, config.Firewall{Resync: resync}, hclog.NewNullLogger(), board, Hooks{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- k.Run(ctx) }()
		defer func() { cancel(); <-done }()
		if err := k.Put(ctx, wanted("n")); err != nil && r.err == nil {
			t.Fatal(err)
		}
		pass(10 * time.Second) // the first looks are over
		test(t, k, board)
	})
}

// wanted returns a network that wants rules without which its packets are dropped.
func wanted(name string) firewall.Network {
	return firewall.Network{Name: name, IPMasq: true, Forward: true}
}

// check returns the status of a check and its reason, as "passing: rules are in place". network is "" for the agent.
func check(board *health.Board, network, name string) string {
	report, _ := board.Report()
	for _, n := range append(report.Networks, api.NetworkHealth{Checks: report.Checks}) {
		for _, c := range n.Checks {
			if n.Network == network && c.Name == name {
				return c.Status + ": " + c.Reason
			}
		}
	}
	return ""
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pass lets time pass in a synctest bubble, and what it causes end.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
