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
	"testing"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

func TestAgentWaitsForTheNetwork(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a")
	pools, kind := a.config.Networks[0].Pools, a.config.Networks[0].Backend
	a.config.Networks[0].Pools, a.config.Networks[0].Backend = nil, nil
	a.start()
	a.check(health.Network, api.Critical, "leno network apply")
	n, err := definition.FromBlock(config.Network{Name: "n", Pools: pools, Backend: kind})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Client().PutNetwork(context.Background(), n); err != nil {
		t.Fatal(err)
	}
	a.ready()
	a.check(health.Network, api.Passing)
}

func TestAgentSaysWhyItHasNoLease(t *testing.T) {
	t.Run("full", func(t *testing.T) {
		store := memory.New()
		for _, name := range []string{"a", "b", "c"} {
			newHost(t, store, name).start().ready()
		}
		d := newHost(t, store, "d").start()
		d.check(health.Lease, api.Critical, "network is full", "3 slots: 3 held")
	})
	t.Run("same name", func(t *testing.T) {
		store := memory.New()
		newHost(t, store, "a").start().ready()
		b := newHost(t, store, "b")
		b.config.NodeName = "a"
		b.start()
		b.check(health.Conflict, api.Critical, `"a"`, "192.0.2.97", "192.0.2.98")
	})
	t.Run("same address", func(t *testing.T) {
		store := memory.New()
		a := newHost(t, store, "a").start()
		a.ready()
		b := newHost(t, store, "b")
		b.place.Addrs = a.place.Addrs
		b.start()
		b.check(health.Conflict, api.Critical, `"a"`, `"b"`, "192.0.2.97")
	})
	t.Run("unknown backend", func(t *testing.T) {
		store := memory.New()
		a := newHost(t, store, "a")
		a.config.Networks[0].Backend = &config.Backend{Type: "pigeon"}
		a.start()
		a.check(health.Network, api.Critical, `no backend "pigeon"`)
	})
}

func TestAgentFollowsTheUnderlay(t *testing.T) {
	store := memory.New()
	a, b := newHost(t, store, "a").start(), newHost(t, store, "b").start()
	a.ready()
	subnet := a.subnet()
	b.applies(fmt.Sprintf("%s <- a@%s", b.subnet(), subnet))
	moved := netip.MustParseAddr("192.0.2.200")
	a.mu.Lock()
	a.place.Addrs = []netip.Addr{moved}
	changed := a.kernel
	a.mu.Unlock()
	changed()
	eventually(t, func() error {
		b.recorder.mu.Lock()
		defer b.recorder.mu.Unlock()
		last := b.recorder.states[len(b.recorder.states)-1]
		if len(last.Peers) != 1 || last.Peers[0].PublicIPs[0] != moved || last.Peers[0].Subnets[0] != subnet {
			return fmt.Errorf("b applied %+v", last)
		}
		return nil
	})
}

func TestAgentRetriesAFailingDatapath(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a")
	a.recorder.setFail(errors.New("no such device"))
	a.start()
	a.check(health.Device, api.Critical, "no such device")
	if _, err := os.Stat(a.config.Networks[0].SubnetFile); err == nil {
		t.Error("the subnet file was written before the datapath was in place")
	}
	a.recorder.setFail(nil)
	a.ready()
	a.check(health.Device, api.Passing)
}

func TestNetworkDeletedAndDefinedAgain(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a").start()
	a.ready()
	ctx := context.Background()
	if _, err := a.client.Network(ctx, "n"); err != nil {
		t.Fatal(err)
	}
	err := a.client.DeleteNetwork(ctx, "n", false)
	var refused *api.Error
	if !errors.As(err, &refused) || refused.Code != http.StatusConflict || !strings.Contains(refused.Message, "a") {
		t.Fatalf("a network in use was deleted: %v", err)
	}
	if err := a.client.DeleteNetwork(ctx, "n", true); err != nil {
		t.Fatal(err)
	}
	a.applies("zero")
	a.check(health.Network, api.Critical, "leno network apply")
	eventually(t, func() error {
		if _, err := os.Stat(a.config.Networks[0].SubnetFile); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("the subnet file is still there: %v", err)
		}
		return nil
	})
	if keys := store.Keys(memory.Prefix + "/leases/n/1"); len(keys) != 0 {
		t.Errorf("leases stay: %v", keys)
	}
	if report, _ := a.agent.env.Reports.Health.Report(); report.Ready || len(report.Networks[0].Checks) != 1 {
		t.Errorf("checks of the network that is gone: %+v", report)
	}
	n, err := definition.FromBlock(a.config.Networks[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Client().PutNetwork(ctx, n); err != nil {
		t.Fatal(err)
	}
	a.ready()
}

func TestNetworkChangedInTheStore(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a").start()
	a.ready()
	subnet := a.subnet()
	ctx := context.Background()
	client := store.Client()
	n, err := client.Network(ctx, "n")
	if err != nil {
		t.Fatal(err)
	}
	if n.Backend, err = registry.NewBackend("recorder", []byte(`{"colour":"blue"}`)); err != nil {
		t.Fatal(err)
	}
	if err := client.PutNetwork(ctx, n); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		got, err := a.client.Network(ctx, "n")
		if err != nil {
			return err
		}
		if got.Local == nil || len(got.Local.Differs) != 1 || !strings.Contains(got.Local.Differs[0], "blue") {
			return fmt.Errorf("the difference is not shown: %+v", got.Local)
		}
		return nil
	})
	a.applies(subnet.String() + " <- ")
}

func TestReleaseGivesTheSubnetUp(t *testing.T) {
	store := memory.New()
	a, b := newHost(t, store, "a").start(), newHost(t, store, "b").start()
	a.ready()
	b.ready()
	b.applies(fmt.Sprintf("%s <- a@%s", b.subnet(), a.subnet()))
	if err := a.client.ReleaseLease(context.Background(), "n"); err != nil {
		t.Fatal(err)
	}
	a.applies("zero")
	b.applies(b.subnet().String() + " <- ")
	a.check(health.Lease, api.Warning, "restart or reload")
	if err := a.agent.Reload(context.Background(), a.config); err != nil {
		t.Fatal(err)
	}
	a.ready()
	b.applies(fmt.Sprintf("%s <- a@%s", b.subnet(), a.subnet()))
}

func TestReload(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a").start()
	a.ready()
	ctx := context.Background()

	refused := a.config
	refused.DataDir, refused.Log.Level = "/elsewhere", "DEBUG"
	if err := a.agent.Reload(ctx, refused); err == nil || !strings.Contains(err.Error(), "data_dir") {
		t.Errorf("a new data_dir was not refused by name: %v", err)
	}
	if got := a.agent.self().Networks; len(got) != 1 {
		t.Errorf("networks %v", got)
	}

	more := a.config
	second := a.second()
	more.Networks = append(more.Networks[:1:1], second)
	if err := a.agent.Reload(ctx, more); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { _, err := os.Stat(second.SubnetFile); return err })

	if err := a.agent.Reload(ctx, a.config); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(second.SubnetFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the network that left the configuration has its file: %v", err)
	}
	if keys := store.Keys(memory.Prefix + "/leases/m/1"); len(keys) != 0 {
		t.Errorf("its lease stays: %v", keys)
	}
	a.ready()
}

func TestWatchNetworks(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a")
	local := a.config.Networks[0]
	a.config.Networks, a.config.WatchNetworks, a.config.AllowedNetworks = nil, true, []string{"team-*"}
	a.start()
	ctx := context.Background()
	for _, name := range []string{"team-red", "other"} {
		local.Name = name
		n, err := definition.FromBlock(local)
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Client().PutNetwork(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	networks := func(want string) {
		t.Helper()
		eventually(t, func() error {
			if got := fmt.Sprint(a.agent.self().Networks); got != want {
				return fmt.Errorf("takes part in %s, want %s", got, want)
			}
			return nil
		})
	}
	networks("[team-red]")
	if err := store.Client().DeleteNetwork(ctx, "team-red"); err != nil {
		t.Fatal(err)
	}
	networks("[]")
}

// TestWatchedNetworkDeletedAtOnce: the agent does not wait for a network that was deleted before the agent read its
// definition.
func TestWatchedNetworkDeletedAtOnce(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a")
	n, err := definition.FromBlock(a.config.Networks[0])
	must(t, err)
	n.Name = "short"
	a.config.WatchNetworks, a.config.AllowedNetworks = true, []string{"*"}
	a.start().ready()
	ctx := context.Background()
	networks := func(want ...string) {
		t.Helper()
		eventually(t, func() error {
			if got := a.agent.self().Networks; !slices.Equal(got, want) {
				return fmt.Errorf("takes part in %q, want %q", got, want)
			}
			return nil
		})
	}
	a.registry.SetOne("Network", registry.ErrUnavailable)
	must(t, store.Client().PutNetwork(ctx, n))
	networks("n", "short")
	must(t, store.Client().DeleteNetwork(ctx, "short"))
	a.registry.SetOne("Network", nil)
	networks("n")
	a.ready()
}

func TestReleaseOnStop(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a")
	a.config.Lease.ReleaseOnStop = true
	a.start().ready()
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	if got := a.recorder.last(); got != "zero" {
		t.Errorf("the datapath stays: %s", got)
	}
	if keys := store.Keys(memory.Prefix + "/leases/n/1"); len(keys) != 0 {
		t.Errorf("the lease stays: %v", keys)
	}
}

func TestStopLeavesEverything(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a").start()
	a.ready()
	subnet := a.subnet()
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	if got := a.recorder.last(); got != subnet.String()+" <- " {
		t.Errorf("the datapath was changed at the end: %s", got)
	}
	if _, err := os.Stat(a.config.Networks[0].SubnetFile); err != nil {
		t.Error(err)
	}
	_, session, ok := store.Get(memory.Prefix + "/leases/n/" + registry.SubnetKey(subnet))
	if !ok || session == "" {
		t.Errorf("the lease is not held any more: %t %q", ok, session)
	}
}

func TestBusyAddressIsAnErrorAtStart(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a").start()
	a.ready()
	b := newHost(t, store, "b")
	b.config.HTTP = a.config.HTTP
	b.start()
	if err := b.wait(); err == nil || !strings.Contains(err.Error(), "http.address") {
		t.Errorf("two agents on one address: %v", err)
	}
	c := newHost(t, store, "c")
	c.config.DataDir = a.config.DataDir
	c.start()
	if err := c.wait(); err == nil || !strings.Contains(err.Error(), a.config.DataDir) {
		t.Errorf("two agents on one data_dir: %v", err)
	}
}

func TestNetworkDeletedWhileItsHostWaits(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a")
	a.placeErr = errors.New("no interface fits")
	a.start()
	a.check(health.Underlay, api.Critical, "no interface fits")
	if err := store.Client().DeleteNetwork(context.Background(), "n"); err != nil {
		t.Fatal(err)
	}
	a.check(health.Network, api.Critical, "leno network apply")
}

func TestOverlappingNetworkWaits(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a").start()
	a.ready()
	more := a.config
	second := a.second()
	second.Pools = []config.Pool{{Prefix: netip.MustParsePrefix("10.5.2.0/23"), SubnetLen: 26}}
	more.Networks = append(more.Networks[:1:1], second)
	m, err := definition.FromBlock(second)
	must(t, err)
	must(t, store.Client().PutNetwork(t.Context(), m)) // as with leno network apply -force
	if err := a.agent.Reload(context.Background(), more); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		report, _ := a.agent.env.Reports.Health.Report()
		if report.Status != api.Critical || !strings.Contains(fmt.Sprint(report), `overlaps 10.5.0.0/22 of network "n"`) {
			return fmt.Errorf("%+v", report)
		}
		return nil
	})
}

func TestClaimIsMendedWhileWaiting(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a").start()
	a.ready()
	b := newHost(t, store, "b")
	own := b.place.Addrs
	b.place.Addrs = a.place.Addrs
	b.start()
	b.check(health.Conflict, api.Critical, "192.0.2.97")
	b.mu.Lock()
	b.place.Addrs = own
	b.mu.Unlock()
	b.ready()
	b.check(health.Conflict, api.Passing)
}

func TestBrokenStateFileIsPutAside(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a").start()
	a.ready()
	subnet := a.subnet()
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	path := state.Path(a.config.DataDir, "n")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.start().ready()
	if data, err := os.ReadFile(path + ".bad"); err != nil || string(data) != "{" {
		t.Errorf("the broken file was not kept: %q, %v", data, err)
	}
	if again := a.subnet(); again != subnet {
		t.Errorf("subnet %s, before %s", again, subnet)
	}
}

// TestContradictoryDefinition: a host that carries a network stops when the definition requires encryption and has a backend
// that does not encrypt. Packets are refused from then on, also by the next process, until the definition is right.
func TestContradictoryDefinition(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a").start()
	a.ready()
	change := func(encryption string) { a.define(func(n *registry.Network) { n.Encryption = encryption }) }
	refused := func(h *host) {
		t.Helper()
		h.check(health.Network, api.Critical, "not carried", "encryption is required, and backend recorder does not encrypt")
		eventually(t, func() error {
			h.mu.Lock()
			defer h.mu.Unlock()
			if len(h.guarded) == 0 || h.guarded[len(h.guarded)-1] != "[10.5.0.0/22] true" {
				return fmt.Errorf("guards %q", h.guarded)
			}
			return nil
		})
		eventually(t, func() error {
			h.recorder.mu.Lock()
			defer h.recorder.mu.Unlock()
			if last := h.recorder.states[len(h.recorder.states)-1]; !last.Zero() {
				return fmt.Errorf("applied %+v", last)
			}
			return nil
		})
	}
	change(registry.EncryptionRequired)
	refused(a)
	if err := a.stop(); err != nil {
		t.Error(err)
	}
	a.start()
	refused(a)
	change("")
	a.ready()
	a.check(health.Network, api.Passing)
	a.mu.Lock()
	defer a.mu.Unlock()
	if last := a.guarded[len(a.guarded)-1]; last != "[10.5.0.0/22] false" {
		t.Errorf("guards %q", a.guarded)
	}
}
