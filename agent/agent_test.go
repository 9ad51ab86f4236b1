package agent

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

func TestMain(m *testing.M) {
	// A dogstatsd client has two goroutines, of which Close ends only one.
	const client = "github.com/DataDog/datadog-go/statsd.(*Client)"
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction(client+".watch"), goleak.IgnoreTopFunction(client+".telemetry"))
}

// TestAgentKeepsItsSubnetOverRestarts: a host keeps its id, its subnet and its session, with its state directory, without
// it, and with a state file of an earlier version, which lacks the id.
func TestAgentKeepsItsSubnetOverRestarts(t *testing.T) {
	for name, change := range map[string]func(a *host) error{
		"state kept":           func(*host) error { return nil },
		"state directory lost": func(a *host) error { return os.RemoveAll(a.config.DataDir) },
		"an older state file": func(a *host) error {
			s, err := state.Load(a.config.DataDir, "n")
			s.NodeID, s.Renewed, s.Lease, s.Definition = "", time.Time{}, 0, 0
			return errors.Join(err, state.Save(a.config.DataDir, s))
		},
	} {
		subtest(t, name, func(t *testing.T) {
			a := newHost(t, memory.New(), "a").start()
			a.ready()
			before, _ := mustRunner(t, a).Lease()
			must(t, a.stop())
			must(t, change(a))
			if name == "an older state file" {
				a.remains = flowing(before.Subnet())
			}
			a.start().ready()
			now, _ := mustRunner(t, a).Lease()
			if now.Subnet() != before.Subnet() || now.Session != before.Session {
				t.Errorf("%+v, before %+v", now, before)
			}
			if name != "state directory lost" && now.NodeID != before.NodeID {
				t.Errorf("id %s, before %s", now.NodeID, before.NodeID)
			}
			if states := a.recorder.all(); len(states) != 1 {
				t.Errorf("the datapath was disturbed: %q", states)
			}
		})
	}
}

// TestStoreAwayIsShown: an agent that cannot reach the store says so, and that it keeps its networks.
func TestStoreAwayIsShown(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").start()
		a.ready()
		for _, failure := range []error{registry.ErrUnavailable, registry.ErrUncertain, registry.ErrDenied} {
			a.registry.Set(fmt.Errorf("no luck: %w", failure))
			a.check(health.Consul, api.Warning, "no luck")                                     // the agent's check
			a.check(health.Consul, api.Warning, string(report.Leases), string(report.Session)) // the network's check
			if code, report := a.health(); code != http.StatusTooManyRequests || !report.Ready {
				t.Errorf("healthz %d, ready %t", code, report.Ready)
			}
			a.registry.Set(nil)
			a.check(health.Consul, api.Passing)
		}
	})
}

// TestPacketsPassToTheEnd: an agent that stops closes its backends last, so that packets wait only for the next
// process.
func TestPacketsPassToTheEnd(t *testing.T) {
	for _, tt := range []struct {
		name  string
		start func(a *host)
	}{
		{"at work", func(a *host) { a.start().ready() }},
		{"before its name is known", func(a *host) {
			a.start().ready()
			a.remains = waiting(a.subnet())
			must(a.t, a.stop())
			a.config.NodeName, a.catalog = "", &namelessStore{a.registry, "a"}
			a.config.Lease.ReleaseOnStop = true
			a.registry.Set(registry.ErrUnavailable)
			a.start().check(health.Lease, api.Warning, "stays in use as")
		}},
	} {
		subtest(t, tt.name, func(t *testing.T) {
			a := newHost(t, memory.New(), "a")
			tt.start(a)
			saved, err := state.Load(a.config.DataDir, "n")
			must(t, err)
			subnet := saved.Subnets[0]
			closed := 0
			a.recorder.mu.Lock()
			a.recorder.onClose = func() {
				closed++
				if conn, err := a.dial(t.Context()); err == nil {
					t.Error("the API still answers")
					conn.Close()
				}
				if !exists(state.PeersPath(a.config.DataDir, "n")) {
					t.Error("the peers are not written down yet")
				}
			}
			a.recorder.mu.Unlock()
			must(t, a.stop())
			if closed != 1 {
				t.Errorf("closed %d times", closed)
			}
			if a.recorder.last() == "zero" {
				t.Error("the datapath was taken away")
			}
			if !exists(a.config.Networks[0].SubnetFile) {
				t.Error("the subnet file was removed")
			}
			if _, session, there := a.store.Get(leaseKey(subnet)); !there || session == "" {
				t.Errorf("the lease is not held any more: record there %t, session %q", there, session)
			}
		})
	}
}
