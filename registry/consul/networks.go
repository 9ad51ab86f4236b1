package consul

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/keys"
	"github.com/lenonet/leno/registry/consul/transport"
)

// networkStore reads and writes the definitions of networks.
type networkStore struct {
	kv   *kv
	last *networkList // the last answer of WatchNetworks
}

// Network implements registry.Networks.
func (ns networkStore) Network(ctx context.Context, name string) (n registry.Network, err error) {
	if err := registry.CheckNetworkName(name); err != nil {
		return n, err
	}
	defer func() { err = registry.Wrap(err, "network %s", name) }()
	key := ns.kv.keys.Network(name)
	// A newly elected leader may not have applied a later definition yet.
	for _, r := range []transport.Read{{}, {Consistent: true}} {
		var pair *api.KVPair
		if pair, _, err = ns.kv.Get(ctx, key, r); err != nil {
			return n, err
		}
		if n, err = parseNetworkPair(name, pair); pair == nil {
			err = fmt.Errorf("%w: there is no key %s", err, key)
		}
		if !errors.Is(err, registry.ErrNetworkNotFound) {
			break
		}
	}
	return n, err
}

// firstSubnet returns the first subnet of the slot that has subnet as one of its subnets. A subnet that is not in the
// network's plan, or whose network does not exist, is returned as it is.
func (ns networkStore) firstSubnet(ctx context.Context, network string, subnet netip.Prefix) (netip.Prefix, error) {
	if err := registry.CheckNetworkName(network); err != nil {
		return netip.Prefix{}, err
	}
	if !subnet.IsValid() {
		return netip.Prefix{}, &transport.RefusedError{Reasons: []string{"not a subnet"}} // which no record can have
	}
	n, err := ns.Network(ctx, network)
	switch {
	case err == nil:
		return n.Plan.First(subnet), nil
	case !errors.Is(err, registry.ErrNetworkNotFound) && !errors.Is(err, registry.ErrInvalid):
		return netip.Prefix{}, err
	}
	return subnet, nil
}

// networkList assigns indexes to the answers of WatchNetworks.
type networkList struct {
	mu      sync.Mutex
	version uint64 // of the last answer, 0 before the first
	index   uint64 // Consul's index of that answer
	set     registry.NetworkSet
}

// update returns the index of set: that of the last answer if the sets are equal, and otherwise a new one that was
// never used before, even when Consul's index went back.
func (l *networkList) update(set registry.NetworkSet, index uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.version == 0 || !reflect.DeepEqual(l.set, set) {
		l.version = max(l.version+1, index)
	}
	l.index, l.set = index, set
	return l.version
}

// behind returns Consul's index of the answer with the index version, or 0 if that is not the last answer.
func (l *networkList) behind(version uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if version != l.version {
		return 0
	}
	return l.index
}

// WatchNetworks implements registry.Networks. As with WatchLeases, the index never decreases within one client.
func (ns networkStore) WatchNetworks(ctx context.Context, after uint64) (registry.NetworkSet, uint64, error) {
	for {
		set, version, err := ns.watch(ctx, after)
		if err != nil {
			ns.kv.Doubts.Add(ns.kv.keys.Networks()) // the next call does not block
			return registry.NetworkSet{}, 0, fmt.Errorf("watch networks: %w", err)
		}
		if version != after {
			return set, version, nil
		}
	}
}

// watch reads all networks. When after is the index of the last answer, it first waits for a change below their prefix.
func (ns networkStore) watch(ctx context.Context, after uint64) (set registry.NetworkSet, version uint64, err error) {
	var notified uint64
	if last := ns.last.behind(after); after > 0 && last > 0 {
		if notified, err = ns.kv.AwaitChange(ctx, ns.kv.keys.Networks(), last); err != nil {
			return set, 0, err
		}
	}
	set, index, err := ns.list(ctx)
	if err != nil {
		return set, 0, err
	}
	return set, ns.last.update(set, max(index, notified)), nil
}

// list reads all networks.
func (ns networkStore) list(ctx context.Context) (set registry.NetworkSet, index uint64, err error) {
	prefix := ns.kv.keys.Networks()
	pairs, index, err := ns.listMarked(ctx, prefix)
	if err != nil {
		return set, 0, err
	}
	for _, pair := range pairs {
		name := strings.TrimPrefix(pair.Key, prefix)
		if name == keys.Marker {
			continue
		}
		n, err := parseNetworkPair(name, pair)
		set.Add(pair.Key, name, n, err)
	}
	return set, index, nil
}

// listMarked reads everything below a prefix. When the list lacks the marker and a read of the marker alone does not
// find it either, the store is new or was emptied.
func (ns networkStore) listMarked(ctx context.Context, prefix string) (api.KVPairs, uint64, error) {
	key := prefix + keys.Marker
	isMarker := func(p *api.KVPair) bool { return p.Key == key }
	pairs, index, err := ns.kv.List(ctx, prefix, transport.Read{})
	if err != nil || slices.ContainsFunc(pairs, isMarker) {
		return pairs, index, err
	}
	marker, _, err := ns.kv.Get(ctx, key, transport.Read{Consistent: true})
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", registry.ErrUncertain, err)
	}
	if marker == nil {
		return pairs, index, nil
	}
	// Either the marker was created after the list, or the list hid it.
	pairs, index, err = ns.kv.List(ctx, prefix, transport.Read{Consistent: true})
	if err == nil && !slices.ContainsFunc(pairs, isMarker) {
		err = transport.Hidden(prefix)
	}
	return pairs, index, err
}
