package agent

import (
	"context"
	"errors"
	testflag "flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/lease"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

func TestMain(m *testing.M) {
	testflag.Parse()
	if lanes := testflag.Lookup("test.parallel"); lanes.Value.String() == lanes.DefValue {
		// The agents under test mostly wait for time to pass, so more tests than processors can run at once.
		if err := lanes.Value.Set(strconv.Itoa(3 * runtime.GOMAXPROCS(0))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	// A dogstatsd client has two goroutines, of which Close ends only one.
	const client = "github.com/DataDog/datadog-go/statsd.(*Client)"
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction(client+".watch"), goleak.IgnoreTopFunction(client+".telemetry"))
}

func TestAgentLeasesAppliesAndWrites(t *testing.T) {
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
}

func TestAgentKeepsItsSubnetOverRestarts(t *testing.T) {
	for _, tt := range []struct {
		name   string
		remove []string // deleted between the two processes
	}{
		{"state kept", nil},
		{"state file lost", []string{"data/n.json"}},
		{"state directory lost", []string{"data"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
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
			a.start().ready()
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
	t.Parallel()
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
}

func TestAgentTakesALostLeaseBack(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a").start()
	subnet := a.subnet()
	a.ready()
	ctx := context.Background()
	other := store.Client()
	n, err := other.Network(ctx, "n")
	if err != nil {
		t.Fatal(err)
	}
	for name, lose := range map[string]func() error{
		"deleted":       func() error { store.Delete(leaseKey(subnet)); return nil },
		"session ended": func() error { l, _ := mustRunner(t, a).Lease(); store.EndSession(l.Session); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			before, _, err := other.WatchLease(ctx, n, subnet, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := lose(); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() error {
				now, _, err := other.WatchLease(ctx, n, subnet, 0)
				if err != nil {
					return err
				}
				if !now.Held() || now.ModifyIndex == before.ModifyIndex {
					return fmt.Errorf("not taken back: %+v", now)
				}
				return nil
			})
			a.check(health.Lease, api.Passing, subnet.String())
		})
	}
	if got := a.recorder.all(); len(got) != 1 {
		t.Errorf("the datapath was disturbed: %q", got)
	}
}

func TestAgentRenumbersOrExitsWhenItsSubnetWasTaken(t *testing.T) {
	for _, onLost := range []string{config.OnLostRenumber, config.OnLostExit} {
		t.Run(onLost, func(t *testing.T) {
			store := memory.New()
			a := newHost(t, store, "a")
			a.config.Lease.OnLost = onLost
			a.start()
			subnet := a.subnet()
			a.ready()
			ctx := context.Background()
			other := store.Client()
			n, err := other.Network(ctx, "n")
			if err != nil {
				t.Fatal(err)
			}
			// While the agent cannot reach the store, its lease is revoked and another host takes the slot.
			a.registry.Set(registry.ErrUnavailable)
			if err := other.Revoke(ctx, "n", subnet); err != nil {
				t.Fatal(err)
			}
			thief := agenttest.Lease("b", 0, "", 0)
			if _, err := other.Acquire(ctx, n, registry.Claim{Node: "b", NodeID: "id-b", PublicIPs: thief.PublicIPs, MTU: 1450,
				Backend: thief.Backend, Prefer: subnet, TTL: time.Minute, Hold: time.Hour}); err != nil {
				t.Fatal(err)
			}
			a.registry.Set(nil)
			if onLost == config.OnLostExit {
				var lost *lease.LostError
				if err := a.wait(); !errors.As(err, &lost) || lost.Old != subnet.String() {
					t.Errorf("ended with %v", err)
				}
				return
			}
			eventually(t, func() error {
				if now := a.subnet(); now == subnet {
					return errors.New("still on the taken subnet")
				}
				return nil
			})
			a.applies(fmt.Sprintf("%s <- b@%s", a.subnet(), subnet))
		})
	}
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
		t.Run(tt.name, func(t *testing.T) {
			a := newHost(t, memory.New(), "a")
			tt.start(a)
			closed := 0
			a.recorder.mu.Lock()
			a.recorder.onClose = func() {
				closed++
				if conn, err := net.Dial("unix", strings.TrimPrefix(a.config.HTTP.Address, "unix://")); err == nil {
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
		})
	}
}
