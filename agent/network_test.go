package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

func TestReleaseGivesTheSubnetUp(t *testing.T) {
	simulated(t, func(t *testing.T) {
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
	})
}

func TestReload(t *testing.T) {
	simulated(t, func(t *testing.T) {
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

		run := mustRunner(t, a)
		more := a.config
		second := a.second()
		more.Networks = append(more.Networks[:1:1], second)
		if err := a.agent.Reload(ctx, more); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error { _, err := os.Stat(second.SubnetFile); return err })
		a.measures(is(1), telemetry.LeaseHeld, "m")

		if err := a.agent.Reload(ctx, a.config); err != nil {
			t.Fatal(err)
		}
		if v, ok := a.metric(telemetry.LeaseHeld, "m"); ok {
			t.Errorf("the metrics still have the network that was left, %v", v)
		}
		a.measures(is(1), telemetry.LeaseHeld, "n")
		if mustRunner(t, a) != run {
			t.Error("an unchanged network was started again")
		}
		if _, err := os.Stat(second.SubnetFile); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the network that left the configuration has its file: %v", err)
		}
		if keys := store.Keys(memory.Prefix + "/leases/m/1"); len(keys) != 0 {
			t.Errorf("its lease stays: %v", keys)
		}
		a.ready()
	})
}

func TestWatchNetworks(t *testing.T) {
	simulated(t, func(t *testing.T) {
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
	})
}

// TestWatchedNetworkDeletedAtOnce: the agent does not wait for a network that was deleted before the agent read its
// definition.
func TestWatchedNetworkDeletedAtOnce(t *testing.T) {
	simulated(t, func(t *testing.T) {
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
	})
}

func TestBusyAddressIsAnErrorAtStart(t *testing.T) {
	t.Parallel()
	store := memory.New()
	a := newHost(t, store, "a").real().start()
	a.ready()
	b := newHost(t, store, "b").real()
	b.config.HTTP = a.config.HTTP
	b.start()
	if err := b.wait(); err == nil || !strings.Contains(err.Error(), "http.address") {
		t.Errorf("two agents on one address: %v", err)
	}
	c := newHost(t, store, "c").real()
	c.config.DataDir = a.config.DataDir
	c.start()
	if err := c.wait(); err == nil || !strings.Contains(err.Error(), a.config.DataDir) {
		t.Errorf("two agents on one data_dir: %v", err)
	}
}
