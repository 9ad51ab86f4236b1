package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestRefusedReloadChangesNothing: if one part refuses a configuration, no part takes anything of it.
func TestRefusedReloadChangesNothing(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").start()
		a.ready()
		for says, change := range map[string]func(c *config.Config){
			`node_name: "a" -> "x"; consul.kv_prefix: "leno" -> "net"`: func(c *config.Config) {
				c.Consul.KVPrefix, c.NodeName, c.Consul.Token = "net", "x", "hush"
			},
			"no such file": func(*config.Config) { a.registry.SetReload(errors.New("no such file")) },
		} {
			c := a.config
			c.Networks, c.Log.Level = nil, "ERROR"
			change(&c)
			if err := a.agent.Reload(t.Context(), c); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "nothing was changed") {
				t.Errorf("reload: %v", err)
			}
			a.registry.SetReload(nil)
			a.agent.log.Trace("still traced: " + says)
			if len(a.said.With("still traced: "+says)) != 1 || len(a.registry.Tokens()) != 0 ||
				len(a.agent.self().Networks) != 1 || len(a.agent.settings.get().Networks) != 1 {
				t.Error("something was changed")
			}
			if got := a.recorder.all(); len(got) != 1 {
				t.Errorf("the datapath was disturbed: %q", got)
			}
		}
	})
}

// TestReloadKeepsTheDatapath: changed settings of leases or of a network start its runner again, but nothing is
// removed, and the backend stays open, so that a forwarder in it does not stop.
func TestReloadKeepsTheDatapath(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.config.Lease.ReleaseOnStop = true
		a.start().ready()
		lease, _ := mustRunner(t, a).Lease()
		c := a.config
		for name, change := range map[string]func(){
			"lease":    func() { c.Lease.TTL += time.Second },
			"underlay": func() { c.Underlay.CanReach = netip.MustParseAddr("192.0.2.1") },
			"network":  func() { c.Networks[0].IPMasq = true },
		} {
			before := mustRunner(t, a)
			c.Networks = slices.Clone(c.Networks)
			change()
			must(t, a.agent.Reload(t.Context(), c))
			a.ready()
			now, _ := mustRunner(t, a).Lease()
			if mustRunner(t, a) == before || now.Session != lease.Session || now.ModifyIndex != lease.ModifyIndex {
				t.Errorf("%s: before %+v, now %+v", name, lease, now)
			}
			if got := a.recorder.all(); len(got) != 1 {
				t.Errorf("%s: the datapath was disturbed: %q", name, got)
			}
			if built, open := a.recorder.open(); built != 1 || open != 1 {
				t.Errorf("%s: %d backends built, %d open", name, built, open)
			}
		}
		if a.registry.Count("own Release") != 0 {
			t.Error("the lease was given up")
		}
	})
}

// TestReloadByRequest: the answer to a request names what was changed, what has no effect, or why nothing was changed.
func TestReloadByRequest(t *testing.T) {
	simulated(t, func(t *testing.T) {
		ctx := t.Context()
		a := newHost(t, memory.New(), "a").start()
		a.ready()
		agenttest.WantCode(t, "no files to read", errOf(a.client.Reload(ctx, false)), http.StatusConflict)
		must(t, a.stop())

		c, broken := a.config, error(nil)
		a.refresh = func() (config.Config, error) { return c, broken }
		a.start().ready()
		a.check(health.Network, api.Passing, "defined")
		c.Lease.Hold += time.Hour
		out, err := a.client.Reload(ctx, false)
		if err != nil || len(out.Changed) != 1 || out.Changed[0].Field != "lease.hold" {
			t.Errorf("%+v, %v", out, err)
		}
		a.declinesTheBlockOf(&c)

		c.Networks = nil
		err = errOf(a.client.Reload(ctx, false))
		agenttest.WantCode(t, "no networks", err, http.StatusConflict, "would leave n", "leno reload -force", "nothing was changed")
		if now := a.agent.settings.get(); len(a.agent.self().Networks) != 1 || len(now.Networks) != 1 {
			t.Errorf("it was changed to %+v", now)
		}
		must(t, errOf(a.client.Reload(ctx, true)))
		if len(a.agent.self().Networks) != 0 {
			t.Error("nothing was reloaded")
		}
		a.check(health.Network, api.Warning, "watch_networks")
		broken = fmt.Errorf("agent.hcl:3: no such block")
		agenttest.WantCode(t, "a broken file", errOf(a.client.Reload(ctx, false)), http.StatusConflict, "agent.hcl:3")
		a.showsEvents("reload info: configuration reloaded", "reload warning: reload refused: agent.hcl:3: no such block",
			"reload warning: reload refused: nothing was changed: no network is left")
	})
}

// declinesTheBlockOf fails the test unless a block that differs from the definition in the store has no effect, and the
// answer to a reload and the check say so and name the command that has one.
func (h *host) declinesTheBlockOf(c *config.Config) {
	h.t.Helper()
	c.Networks = slices.Clone(c.Networks)
	c.Networks[0].Backend = &config.Backend{Type: "recorder", Options: []byte(`{"vni":2}`)}
	c.Networks[0].IPMasq = !c.Networks[0].IPMasq // starts the runner again
	c.NetworkFiles = map[string]string{"n": "/etc/leno.d/n.hcl"}
	out, err := h.client.Reload(h.t.Context(), false)
	must(h.t, err)
	want := []string{"stays in force", "backend.vni is 2", "run: leno network apply /etc/leno.d/n.hcl"}
	if len(out.Warnings) != 1 || !strings.HasPrefix(out.Warnings[0], "network n: ") ||
		slices.ContainsFunc(want, func(words string) bool { return !strings.Contains(out.Warnings[0], words) }) {
		h.t.Errorf("warnings %q, want %q", out.Warnings, want)
	}
	h.check(health.Network, api.Passing, append(want, "defined; ")...)
	h.ready()
	if n := h.inStore(); n.Backend.Type != "recorder" || strings.Contains(string(n.Backend.Object), "vni") {
		h.t.Errorf("the store has %s", n.Backend.Object)
	}
	c.Networks = h.config.Networks
	if out, err := h.client.Reload(h.t.Context(), false); err != nil || len(out.Warnings) != 0 {
		h.t.Errorf("%+v, %v", out, err)
	}
	eventually(h.t, func() error {
		if got := reasonOf(h.agent, "n", health.Network); got != "defined" {
			return errors.New(got)
		}
		return nil
	})
}

// TestReloadWhileTheStoreIsAway: a reload goes on with the datapath that this process carried, confirmed by the store
// or not, even if another program has just changed it.
func TestReloadWhileTheStoreIsAway(t *testing.T) {
	carrier := func(m *datapath.KernelState) { m.Carrier = true }
	for _, tt := range []struct {
		name      string
		confirmed bool
		remains   func(m *datapath.KernelState)
	}{
		{"resumed", false, carrier},
		{"resumed, and its device was deleted", false, func(m *datapath.KernelState) { *m = datapath.KernelState{} }},
		{"confirmed", true, carrier},
		{"confirmed, and its device was deleted", true, func(m *datapath.KernelState) { *m = datapath.KernelState{} }},
	} {
		subtest(t, tt.name, func(t *testing.T) {
			a, _, subnet, applied := pair(t)
			a.remains = waiting(subnet)
			if tt.confirmed {
				a.start().ready()
				a.applies(applied)
				a.registry.Set(registry.ErrUnavailable)
				a.check(health.Snapshot, api.Warning)
				must(t, os.Remove(state.PeersPath(a.config.DataDir, "n"))) // the peers are in memory
			} else {
				a.registry.Set(registry.ErrUnavailable)
				a.start()
				a.check(health.Lease, api.Warning, "stays in use as the previous process left it")
			}
			built, _ := a.recorder.open()
			a.mu.Lock()
			tt.remains(&a.remains)
			a.mu.Unlock()
			for range 2 {
				c := a.config
				c.Networks = slices.Clone(c.Networks)
				c.Networks[0].IPMasq = !a.agent.settings.get().Networks[0].IPMasq
				tries := len(a.recorder.tries())
				must(t, a.agent.Reload(context.Background(), c))
				a.more("applies", tries, func() int { return len(a.recorder.tries()) })
			}
			a.check(health.Lease, api.Warning, subnet.String(), "stays in use as before the reload")
			a.follows("192.0.2.7")
			a.applies(applied)
			if now, open := a.recorder.open(); now != built || open != 1 {
				t.Errorf("%d backends built, %d open; before %d", now, open, built)
			}
			a.registry.Set(nil)
			a.ready()
			a.check(health.Lease, api.Passing)
			a.applies(applied)
		})
	}
}

// checkEvents returns the events of checks of the agent and its networks.
func (a *host) checkEvents() (out []string) {
	all, _, _ := a.agent.env.Reports.Events.After(0, "")
	for _, e := range all {
		if e.Kind == api.EventCheck {
			out = append(out, e.Severity+" "+e.Message)
		}
	}
	return out
}

// A slowlyNamed store takes a second to say the host's name.
type slowlyNamed struct{ *namelessStore }

func (s slowlyNamed) Abilities() registry.Abilities {
	can := s.namelessStore.Abilities()
	can.NodeName = func(ctx context.Context) (string, error) {
		time.Sleep(time.Second)
		return s.NodeName(ctx)
	}
	return can
}

// TestStartAddsNoEventsOfChecks: an agent that starts and restarts with a store that answers adds no events of checks.
func TestStartAddsNoEventsOfChecks(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.catalog = slowlyNamed{&namelessStore{a.registry, "a"}}
		a.config.NodeName = ""
		for _, when := range []string{"first start", "restart"} {
			a.start()
			a.ready()
			if got := a.checkEvents(); len(got) > 0 {
				t.Errorf("%s: %q", when, got)
			}
			must(t, a.stop())
		}
	})
}

// TestReloadWhileTheNameIsUnknown: an agent that cannot ask the store for its name takes over a configuration with
// corrected access to the store.
func TestReloadWhileTheNameIsUnknown(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.catalog = &serviceStore{Registry: a.registry, name: "here"}
		a.config.NodeName, a.config.Networks = "", nil
		a.registry.SetOne("NodeName", registry.ErrDenied)
		a.start()
		a.check(health.Node, api.Critical, "waiting for this host's name")
		c := a.config
		c.Networks, c.Consul.Token = newHost(t, a.store, "b").config.Networks, "good"
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		must(t, a.agent.Reload(ctx, c))
		if got := a.agent.self().Networks; len(got) != 0 {
			t.Errorf("networks %v before there is a name", got)
		}
		a.registry.SetOne("NodeName", nil)
		a.ready()
		if got := a.agent.self(); got.NodeName != "here" || len(got.Networks) != 1 {
			t.Errorf("%+v", got)
		}
		if code, body := a.request("GET", "/healthz", ""); strings.Contains(body, `"node"`) {
			t.Errorf("the name is known: %d %s", code, body)
		}
		got := a.checkEvents()
		if len(got) != 2 || !strings.HasPrefix(got[0], "critical node: waiting for this host's name") ||
			got[1] != "info node recovered: this host's name is known" {
			t.Errorf("events of checks: %q", got)
		}
	})
}

// TestReloadsAtOnce: after any number of reloads at the same time, what the files said last is in force.
func TestReloadsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, memory.New(), "a")
		h.part()
		var mu sync.Mutex
		read, inForce := 0, time.Duration(0)
		h.agent.reloader.read = func() (config.Config, error) {
			mu.Lock()
			defer mu.Unlock()
			read++
			return config.Config{Lease: config.Lease{Hold: time.Duration(read)}}, nil
		}
		go func() {
			for request := range h.agent.reloader.requests {
				inForce = request.config.Lease.Hold
				request.done <- reloadAnswer{}
			}
		}()
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() { must(t, errOf(h.agent.Refresh(t.Context(), false))) })
		}
		all.Wait()
		close(h.agent.reloader.requests)
		if inForce != 20 {
			t.Errorf("what was read as number %d is in force", inForce)
		}
	})
}

// TestReloadOnADeadFileSystem: a directory that does not answer fails a reload, but does not block all of them.
func TestReloadOnADeadFileSystem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, memory.New(), "a")
		h.part()
		hang := make(chan struct{})
		defer close(hang)
		h.agent.reloader.read = func() (config.Config, error) {
			<-hang
			return config.Config{}, nil
		}
		for range 2 {
			if _, err := h.agent.Refresh(t.Context(), false); err == nil || !strings.Contains(err.Error(), "configuration: reading it takes too long") {
				t.Errorf("reload: %v", err)
			}
		}
	})
}

// TestReloadThatBlocks: a file that cannot be read holds up neither a caller that gives up, nor later reloads, nor the
// end of the agent.
func TestReloadThatBlocks(t *testing.T) {
	simulated(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		blocks, begun := make(chan bool, 1), make(chan struct{}, 1)
		a := newHost(t, memory.New(), "a")
		a.refresh = func() (config.Config, error) {
			select {
			case <-blocks:
				begun <- struct{}{}
				<-hang
			default:
			}
			return a.config, nil
		}
		a.start().ready()
		result := make(chan error, 1)
		refresh := func(ctx context.Context) {
			go func() { result <- errOf(a.agent.Refresh(ctx, false)) }()
		}
		answer := func() (err error) {
			t.Helper()
			select {
			case err = <-result:
			case <-time.After(time.Minute):
				t.Fatal("the reload blocks")
			}
			return err
		}

		blocks <- true
		ctx, cancel := context.WithCancel(context.Background())
		refresh(ctx)
		<-begun
		cancel()
		if err := answer(); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that gave up: %v", err)
		}
		refresh(context.Background())
		must(t, answer())

		// The supervising goroutine reads the token.
		limited, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
		defer cancel()
		a.registry.SetReading(hang)
		c := a.config
		c.Consul.TokenFile = "/mnt/token"
		if _, err := a.agent.prepare(limited, c); err == nil || !strings.Contains(err.Error(), "/mnt/token: reading it takes too long") {
			t.Errorf("a token file that blocks: %v", err)
		}
		refresh(context.Background())
		must(t, a.stop())
		if err := answer(); err == nil {
			t.Error("a reload worked in an agent that ended")
		}

		// The agent also ends while the files are read.
		a.registry.SetReading(nil)
		a.start().ready()
		blocks <- true
		refresh(context.Background())
		<-begun
		must(t, a.stop())
		if err := answer(); !errors.Is(err, errEnded) {
			t.Errorf("a reload of an agent that ended: %v", err)
		}
		if err := a.agent.Reload(t.Context(), a.config); !errors.Is(err, errEnded) {
			t.Errorf("a reload after the end: %v", err)
		}
		idle := a.build() // never run, so that nothing answers
		if err := idle.Reload(ctx, a.config); !errors.Is(err, context.Canceled) {
			t.Errorf("a reload of an agent that does not run: %v", err)
		}
	})
}
