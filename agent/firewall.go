package agent

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/firewall"
)

// Rules are the firewall of this host, written as a whole. Apply is called by
// one goroutine at a time.
type Rules interface {
	Apply(ctx context.Context, s firewall.State) (firewall.Report, error)
}

var _ Rules = (*firewall.Firewall)(nil)

// firewallKeeper gathers what the networks want of the firewall, which is
// written as a whole. Safe for concurrent use.
type firewallKeeper struct {
	mu      sync.Mutex
	rules   Rules
	config  config.Firewall
	wanted  map[string]firewall.Network
	applied map[string]firewall.Network
	checked time.Time

	expected expectation
}

func newFirewallKeeper(rules Rules, c config.Firewall) *firewallKeeper {
	return &firewallKeeper{rules: rules, config: c, wanted: map[string]firewall.Network{}}
}

func firewallNetwork(local config.Network, pools, subnets []netip.Prefix) firewall.Network {
	return firewall.Network{Name: local.Name, Pools: pools, Subnets: subnets, IPMasq: local.IPMasq, Forward: local.Forward}
}

// remember starts from what an earlier process left for the networks this host
// still wants, so that the first network that is ready does not take the others'
// rules away.
func (k *firewallKeeper) remember(c config.Config, wanted func(name string) (config.Network, bool)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range savedNetworks(c.DataDir) {
		// A broken state file is reported where the lease needs it.
		before, err := loadSaved(c.DataDir, name)
		local, ok := wanted(name)
		if err == nil && ok && len(before.Subnets) > 0 && before.Backend.Type != "alloc" {
			k.wanted[name] = firewallNetwork(local, before.Pools, before.Subnets)
		}
	}
}

// put sets one network's wishes. The tables are read and mended when a wish
// changed, and otherwise once in a slow tick.
func (k *firewallKeeper) put(ctx context.Context, n firewall.Network) error {
	k.want(n)
	k.expected.meet(n.Name)
	k.expected.wait(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	if reflect.DeepEqual(k.wanted, k.applied) && time.Since(k.checked) < slowTick/2 {
		return nil
	}
	return k.apply(ctx)
}

func (k *firewallKeeper) want(n firewall.Network) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.wanted[n.Name] = n
}

// drop takes one network's rules away, also those of an earlier process that were
// not remembered.
func (k *firewallKeeper) drop(ctx context.Context, name string) error {
	k.expected.meet(name)
	k.mu.Lock()
	defer k.mu.Unlock()
	_, known := k.wanted[name]
	if !known && k.applied != nil {
		return nil
	}
	delete(k.wanted, name)
	err := k.apply(ctx)
	if !known && errors.Is(err, firewall.ErrNotInstalled) {
		return nil // there are no rules where nothing could have made them
	}
	return err
}

func (k *firewallKeeper) apply(ctx context.Context) error {
	state := firewall.State{Type: firewall.Type(k.config.Type), RandomFully: k.config.RandomFully}
	for _, name := range slices.Sorted(maps.Keys(k.wanted)) {
		state.Networks = append(state.Networks, k.wanted[name])
	}
	if _, err := k.rules.Apply(ctx, state); err != nil {
		k.applied = nil
		return err
	}
	k.applied, k.checked = maps.Clone(k.wanted), time.Now()
	return nil
}
