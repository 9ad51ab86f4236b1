package httpapi

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
)

// A directory finds networks: as this host takes part in them, as the store was read last, and in the store.
type directory struct {
	agent Agent
	store registry.Registry // under the agent's own token
	kind  string            // of the store, such as config.StoreConsul
}

// storeFor returns the registry under the caller's own token. The agent's token is never lent. Its certificate is lent
// only to callers without a token on a socket, which are root and members of the socket's group: a store that knows its
// clients by certificates alone has no tokens.
func (d directory) storeFor(r *http.Request) registry.Registry {
	token := tokenOf(r)
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if _, isSocket := local.(*net.UnixAddr); isSocket && token == "" && d.store.Abilities().IsCertified {
		return d.store
	}
	return d.store.As(token)
}

// requestedNetwork returns the definition of the network that a request names.
func (d directory) requestedNetwork(r *http.Request) (registry.Network, error) {
	return d.find(r.PathValue("network"))
}

// find returns the definition of a network: the one that this agent has in force, otherwise the one that was read last
// from the store.
func (d directory) find(name string) (registry.Network, error) {
	if part, ok := d.agent.Network(name); ok {
		if status := part.Status(); status.Defined {
			return status.Definition, nil
		}
	}
	known, _ := d.agent.Networks()
	if !known.Read {
		return registry.Network{}, fmt.Errorf("network %q: %w: the networks have not been read yet",
			name, registry.ErrUnavailable)
	}
	if n, ok := known.Find(name); ok {
		return n, nil
	}
	if reason, unusable := known.Unusable(name); unusable {
		return registry.Network{}, d.unusableRecord(name, reason)
	}
	if d, deleted := known.Deletion(name); deleted {
		return registry.Network{}, fmt.Errorf("network %q: %w; `leno network apply` defines it again",
			name, &registry.DeletedError{Deletion: d})
	}
	var names []string
	for _, n := range known.Networks {
		names = append(names, n.Name)
	}
	list := "no network is known"
	if len(names) > 0 {
		list = "known are " + strings.Join(names, ", ")
	}
	return registry.Network{}, fmt.Errorf("network %q: %w: %s", name, registry.ErrNetworkNotFound, list)
}

// unusableRecord returns the error about a network whose record cannot be read.
func (d directory) unusableRecord(name string, reason any) error {
	tool := "consul kv put"
	if d.kind == config.StoreKubernetes {
		return api.Errorf(http.StatusConflict, "network %q: its configuration cannot be used: %v", name, reason)
	}
	if d.kind == config.StoreEtcd {
		tool = "etcdctl put"
	}
	if d.isFlannels(name) {
		return api.Errorf(http.StatusConflict,
			"network %q: its record in the store, which is flannel's configuration, cannot be used: %v; "+
				"if hosts run flannel with it, leave it as it is and define a network of another name (etcd.network is that of "+
				"flannel's); otherwise write a good one with `%s`", name, reason, tool)
	}
	return api.Errorf(http.StatusConflict, "network %q: its record in the store cannot be used: %v; "+
		"write a good one with `%s`, or delete it with `leno network delete -force`", name, reason, tool)
}

// isFlannels reports whether a network is stored as flannel's configuration, which hosts may run even if leno cannot
// use it.
func (d directory) isFlannels(network string) bool {
	return d.kind == config.StoreEtcd && network == d.agent.Config().Etcd.Network
}

// joinedNetwork returns this host's part in a network. The error says that it takes no part, or that there is no such
// network: a block keeps a part in a network that was deleted.
func (d directory) joinedNetwork(network string) (Network, error) {
	if _, err := d.find(network); err != nil {
		return nil, err
	}
	part, ok := d.agent.Network(network)
	if !ok {
		return nil, api.Errorf(http.StatusNotFound, "this host takes no part in network %s", network)
	}
	return part, nil
}

// knownNetworks returns the networks in the store and those in which this host takes part, also if the watch does not
// show them: it may be a moment behind, or the store has lost the record or was set back to an earlier deletion of the
// network, or the record can no longer be used.
func (d directory) knownNetworks(known Networks) []registry.Network {
	all := map[string]registry.Network{}
	for _, n := range known.Networks {
		all[n.Name] = n
	}
	for _, name := range d.agent.Self().Networks {
		part, ok := d.agent.Network(name)
		if !ok {
			continue
		}
		now := part.Status()
		stored, found := all[name]
		deletion, deleted := known.Deletion(name)
		ended := deleted && part.Judge(stored, &registry.DeletedError{Deletion: deletion}) == belief.Ended
		if now.Defined && (!found && !ended || now.Definition.ModifyIndex > known.Index ||
			part.Judge(stored, nil) == belief.Declined) {
			all[name] = now.Definition
		}
	}
	return slices.SortedFunc(maps.Values(all), func(x, y registry.Network) int { return strings.Compare(x.Name, y.Name) })
}

// recentLeases returns the leases of a network as they were a moment ago, for information.
func (d directory) recentLeases(ctx context.Context, n registry.Network) (registry.LeaseSet, error) {
	part, ok := d.agent.Network(n.Name)
	if !ok {
		set, _, err := d.agent.LeasesElsewhere(ctx, n, 0)
		return set, err
	}
	part.RefreshLeases(ctx, n)
	return part.Leases(false)
}

// readDefined reads something of a network from the store with read, using the definition in force: a blocking read
// ends when the definition changes. A change that does not move the store's index is seen by reading again after pace.
func (d directory) readDefined(ctx context.Context, network string, after uint64, pace time.Duration,
	read func(ctx context.Context, n registry.Network, after uint64) error) error {
	n, err := d.find(network)
	if err != nil {
		return err
	}
	if after == 0 {
		return read(ctx, n, 0)
	}
	reading, cancel := context.WithTimeout(ctx, pace)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		d.awaitRedefinition(reading, n)
	})
	err = read(reading, n, after)
	over := reading.Err() != nil && ctx.Err() == nil
	cancel()
	wg.Wait()
	if !over {
		return err
	}
	if n, err = d.find(network); err != nil {
		return err
	}
	return read(ctx, n, 0)
}

// awaitRedefinition blocks until a network has another definition than n, or until this host has joined or left some
// network.
func (d directory) awaitRedefinition(ctx context.Context, n registry.Network) {
	joined := d.agent.Joined()
	for {
		_, changed := d.agent.Networks()
		if now, err := d.find(n.Name); err != nil || now.ModifyIndex != n.ModifyIndex {
			return
		}
		select {
		case <-joined:
			return
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// await blocks until the watch of all networks shows a change that was just made, so that later answers show it, too.
// It gives up after a moment: the change is made either way.
func (d directory) await(ctx context.Context, shown func(Networks) bool) {
	ctx, cancel := context.WithTimeout(ctx, networksWait)
	defer cancel()
	for {
		known, changed := d.agent.Networks()
		if shown(known) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// networksWait is many times what the watch takes with a store that answers.
const networksWait = 2 * time.Second

// changes returns channels of which one is closed when a definition or this host's part in a network may have
// changed.
func (d directory) changes() []<-chan struct{} {
	_, defined := d.agent.Networks()
	return []<-chan struct{}{defined, d.agent.StatusChanged()}
}
