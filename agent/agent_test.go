package agent

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

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

func TestAgentLeasesAppliesAndWrites(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		a := newHost(t, store, "a").start()
		a.ready()
		subnet := a.subnet()
		a.applies(subnet.String() + " <- ")
		data, err := os.ReadFile(a.config.Networks[0].SubnetFile)
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("LENO_NETWORK=10.5.0.0/22\nLENO_SUBNET=%s\nLENO_MTU=1450\nLENO_IPMASQ=false\n", state.Gateway(subnet))
		if !strings.HasPrefix(string(data), want) {
			t.Errorf("subnet file:\n%s\nwant\n%s", data, want)
		}

		b := newHost(t, store, "b").start()
		other := b.subnet()
		if other == subnet {
			t.Fatalf("two hosts hold %s", subnet)
		}
		a.applies(fmt.Sprintf("%s <- b@%s", subnet, other))
		b.applies(fmt.Sprintf("%s <- a@%s", other, subnet))

		// The next pass restores a removed file.
		if err := os.Remove(a.config.Networks[0].SubnetFile); err != nil {
			t.Fatal(err)
		}
		a.mu.Lock()
		changed := a.kernel
		a.mu.Unlock()
		changed()
		eventually(t, func() error { _, err := os.Stat(a.config.Networks[0].SubnetFile); return err })
	})
}

func TestAgentKeepsItsSubnetOverRestarts(t *testing.T) {
	for _, tt := range []struct {
		name   string
		remove []string // deleted between the two processes
		damage []string // overwritten between them
	}{
		{"state kept", nil, nil},
		{"state file lost", []string{"data/n.json"}, nil},
		{"state file broken", nil, []string{"data/n.json"}},
		{"state directory lost", []string{"data"}, nil},
	} {
		subtest(t, tt.name, func(t *testing.T) {
			store := memory.New()
			a := newHost(t, store, "a").start()
			a.ready()
			subnet := a.subnet()
			lease, _ := mustRunner(t, a).Lease()
			if err := a.stop(); err != nil {
				t.Fatal(err)
			}
			for _, path := range tt.remove {
				if err := os.RemoveAll(filepath.Join(filepath.Dir(a.config.DataDir), path)); err != nil {
					t.Fatal(err)
				}
			}
			for _, path := range tt.damage {
				must(t, os.WriteFile(filepath.Join(filepath.Dir(a.config.DataDir), path), []byte("{"), 0o600))
			}
			a.start().ready()
			for _, path := range tt.damage {
				if data, err := os.ReadFile(filepath.Join(filepath.Dir(a.config.DataDir), path+state.BadSuffix)); err != nil || string(data) != "{" {
					t.Errorf("the broken file was not kept: %q, %v", data, err)
				}
			}
			again, _ := mustRunner(t, a).Lease()
			if again.Subnet() != subnet {
				t.Errorf("held %s, now %s", subnet, again.Subnet())
			}
			if again.Session != lease.Session {
				t.Errorf("the session was not adopted")
			}
			if last := a.recorder.all(); len(last) != 1 {
				t.Errorf("the datapath was disturbed: %q", last)
			}
		})
	}
}

func TestAgentKeepsPeersWhileTheStoreIsAway(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		a, b := newHost(t, store, "a").start(), newHost(t, store, "b").start()
		want := fmt.Sprintf("%s <- b@%s", a.subnet(), b.subnet())
		a.applies(want)
		a.ready()

		for _, failure := range []error{registry.ErrUnavailable, registry.ErrUncertain, registry.ErrDenied} {
			a.registry.Set(fmt.Errorf("no luck: %w", failure))
			a.check(health.Lease, api.Warning, "not renewed since", "no luck")
			a.check(health.Snapshot, api.Warning, "peers keep their routes")
			a.check(health.Consul, api.Warning, "no luck")                                     // the agent's check
			a.check(health.Consul, api.Warning, string(report.Leases), string(report.Session)) // the network's check
			status, report := a.health()
			if status != http.StatusTooManyRequests || !report.Ready {
				t.Errorf("healthz %d, ready %t", status, report.Ready)
			}
			a.registry.Set(nil)
			a.check(health.Lease, api.Passing)
			a.check(health.Snapshot, api.Passing)
			a.check(health.Consul, api.Passing)
		}
		a.applies(want)
		for _, state := range a.recorder.all() {
			if state != want && !strings.HasSuffix(state, " <- ") {
				t.Errorf("state %q was applied while the store was away", state)
			}
		}
		if n := len(a.recorder.all()); n > 2 {
			t.Errorf("peers came and went: %q", a.recorder.all())
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
