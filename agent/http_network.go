package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

func (a *Agent) networkEndpoints() []endpoint {
	return []endpoint{
		{"GET /v1/networks", a.block(a.getNetworks)},
		{"GET /v1/network/{network}", a.block(a.getNetwork)},
		{"PUT /v1/network/{network}", a.wrap(a.putNetwork)},
		{"DELETE /v1/network/{network}", a.wrap(a.deleteNetwork)},
		{"POST /v1/network/{network}/plan", a.wrap(a.planNetwork)},
	}
}

func (a *Agent) getNetworks(*http.Request) (shown, error) {
	return shown{name: "networks", changes: a.networkChanges, memory: func() (reply, error) {
		known, ok, _ := a.env.networks.Get()
		networks := a.known(known)
		if !ok && len(networks) == 0 {
			return reply{}, fmt.Errorf("networks: %w: not read yet", registry.ErrUnavailable)
		}
		out := api.NetworkList{Networks: []api.Network{}, Skipped: skipped(known.set.Bad)}
		quiet := out
		for _, n := range networks {
			shown := a.network(n)
			out.Networks = append(out.Networks, shown)
			quiet.Networks = append(quiet.Networks, timeless(shown))
		}
		return reply{body: out, quiet: quiet}, nil
	}}, nil
}

// networkChanges close when a definition or a host's part in a network may be
// another one.
func (a *Agent) networkChanges() []<-chan struct{} {
	_, _, defined := a.env.networks.Get()
	_, _, shown := a.env.shown.Get()
	return []<-chan struct{}{defined, shown}
}

// timeless is a network without what moves though nothing has changed.
func timeless(n api.Network) api.Network {
	if n.Local != nil {
		local := *n.Local
		local.Applied, local.Renewed, local.Followed = time.Time{}, time.Time{}, time.Time{}
		n.Local = &local
	}
	return n
}

// known returns the networks in the store and those that this host takes part in, also
// where the watch does not show them: it may be a moment behind, or the store has
// lost the record, or it cannot be used any more.
func (a *Agent) known(set networkSet) []registry.Network {
	all := map[string]registry.Network{}
	for _, n := range set.set.Networks {
		all[n.Name] = n
	}
	for _, name := range a.self().Networks {
		run, ok := a.runner(name)
		if !ok {
			continue
		}
		_, found := all[name]
		_, deleted := set.set.Deletion(name)
		if v := run.shown(); v.defined && (!found && !deleted || v.definition.ModifyIndex > set.index) {
			all[name] = v.definition
		}
	}
	return slices.SortedFunc(maps.Values(all), func(x, y registry.Network) int { return strings.Compare(x.Name, y.Name) })
}

func (a *Agent) getNetwork(r *http.Request) (shown, error) {
	n, err := a.definition(r)
	return shown{name: "network " + n.Name, changes: a.networkChanges, memory: func() (reply, error) {
		n, err := a.definitionOf(n.Name)
		if err != nil {
			return reply{}, err
		}
		out := a.network(n)
		return reply{body: out, quiet: timeless(out)}, nil
	}}, err
}

// network is n as the API shows it, with this host's part in it.
func (a *Agent) network(n registry.Network) api.Network {
	out := api.Network{Name: n.Name, Pools: []api.Pool{}, ModifyIndex: n.ModifyIndex, Backend: json.RawMessage(n.Backend.Object)}
	for _, p := range n.Plan {
		out.Pools = append(out.Pools, api.Pool(p))
	}
	if run, ok := a.runner(n.Name); ok {
		local := run.shown().local
		local.Followed = run.followed()
		if local.Subnets == nil {
			local.Subnets = slices.Clip(local.Subnets[:0:0])
		}
		out.Local = &local
	}
	return out
}

func skipped(bad []registry.BadRecord) []api.Skipped {
	out := []api.Skipped{}
	for _, b := range bad {
		out = append(out, api.Skipped(b.Shortened()))
	}
	return out
}

// networkBody is what a request says of a network.
type networkBody struct {
	api.Network
	Reservations []api.Reservation `json:"reservations"`
}

// networkOf is the definition in a request's body, effective, and what is to be
// kept in it from its first moment on.
func (a *Agent) networkOf(r *http.Request) (registry.Network, []registry.Reservation, error) {
	var body networkBody
	if err := readBody(r, &body); err != nil {
		return registry.Network{}, nil, err
	}
	n, err := a.effective(r, body.Network)
	if err != nil {
		return n, nil, err
	}
	var kept []registry.Reservation
	var errs []error
	for _, v := range body.Reservations {
		if err := checkReservedFor(v); err != nil {
			errs = append(errs, badRequest("reservations: %s: %v", v.Subnet, err))
		}
		kept = append(kept, registry.Reservation{Subnet: v.Subnet, Node: v.Node, NodeID: v.NodeID})
	}
	if err := errors.Join(errs...); err != nil {
		return n, nil, err
	}
	kept, err = registry.CheckKept(n, kept)
	return n, kept, err
}

// effective is a definition with its defaults.
func (a *Agent) effective(r *http.Request, body api.Network) (registry.Network, error) {
	n := registry.Network{Name: r.PathValue("network"), ModifyIndex: body.ModifyIndex}
	if body.Name != "" && body.Name != n.Name {
		return n, badRequest("name %q contradicts the path", body.Name)
	}
	if err := registry.CheckNetworkName(n.Name); err != nil {
		return n, err
	}
	for _, p := range body.Pools {
		n.Plan = append(n.Plan, registry.Pool(p))
	}
	var err error
	if n.Plan, err = n.Plan.Normalize(); err != nil {
		return n, err
	}
	n.Backend, err = a.normalizedBackend(body.Backend)
	return n, err
}

// planNetwork tells what putNetwork would change, and changes nothing.
func (a *Agent) planNetwork(r *http.Request) (reply, error) {
	n, _, err := a.networkOf(r)
	if err != nil {
		return reply{}, err
	}
	c, err := a.changeTo(r.Context(), n, a.recentLeases)
	if err != nil {
		return reply{}, err
	}
	return reply{body: c.Plan()}, nil
}

// changeTo gathers what a change to n is judged by, under the agent's own token
// as all that is only read.
func (a *Agent) changeTo(ctx context.Context, n registry.Network, leases func(context.Context, registry.Network) (registry.LeaseSet, error)) (definition.Change, error) {
	c := definition.Change{New: n, Backends: a.env.backends}
	known, _, _ := a.env.networks.Get() // none in a store that is new
	c.Others = known.set.Networks
	old, err := a.env.registry.Network(ctx, n.Name)
	switch {
	case errors.Is(err, registry.ErrNetworkNotFound):
		left, err := a.env.registry.Reservations(ctx, registry.Network{Name: n.Name})
		c.Leftover = reservations(left)
		return c, err
	case errors.Is(err, registry.ErrInvalid):
		return c, unusable(n.Name, err)
	}
	if err != nil {
		return c, err
	}
	c.Old = old
	set, err := leases(ctx, old)
	if err != nil {
		return c, err
	}
	reservations, err := a.env.registry.Reservations(ctx, old)
	c.Leases, c.BadRecords, c.Reservations = set.Leases, set.Bad, reservations.Reservations
	return c, err
}

// readLeases reads all leases of a network, for a decision.
func (a *Agent) readLeases(ctx context.Context, n registry.Network) (registry.LeaseSet, error) {
	set, _, err := a.env.registry.WatchLeases(ctx, n, 0)
	return set, err
}

// recentLeases returns the leases of a network as read a moment ago, for information.
func (a *Agent) recentLeases(ctx context.Context, n registry.Network) (registry.LeaseSet, error) {
	run, ok := a.runner(n.Name)
	if !ok {
		set, _, err := a.leasesElsewhere(ctx, n, 0)
		return set, err
	}
	run.fresh.refresh(ctx, n)
	return run.leases(false)
}

// allowed refuses what takes subnets or packets from hosts, unless forced, also
// where that cannot be known. A version that is not there any more is for the
// store to refuse.
func (a *Agent) allowed(ctx context.Context, n registry.Network, force bool) error {
	c, err := a.changeTo(ctx, n, a.readLeases)
	switch {
	case err != nil && force:
		return nil
	case err != nil || c.Old.ModifyIndex != n.ModifyIndex:
		return err
	}
	var reasons []string
	for _, r := range c.Plan().Refused {
		if !r.Force || !force {
			reasons = append(reasons, fmt.Sprintf("%s (%s)", r.Reason, r.Way))
		}
	}
	if len(reasons) == 0 {
		return nil
	}
	return &api.Error{Code: http.StatusConflict, Message: "network " + n.Name + " is left as it is: " + strings.Join(reasons, "; ")}
}

// putNetwork defines a network or replaces the version the body names.
func (a *Agent) putNetwork(r *http.Request) (reply, error) {
	n, kept, err := a.networkOf(r)
	if err != nil {
		return reply{}, err
	}
	force, err := flag(r, "force")
	if err != nil {
		return reply{}, err
	}
	if err := a.allowed(r.Context(), n, force); err != nil {
		return reply{}, err
	}
	name, reg := n.Name, a.caller(r)
	if err := reg.PutNetwork(r.Context(), n, kept...); err != nil {
		return reply{}, err
	}
	n, err = reg.Network(r.Context(), name)
	if err != nil {
		return reply{}, err
	}
	a.awaitNetworks(r.Context(), func(s networkSet) bool {
		shown, ok := s.set.Find(name)
		return ok && shown.ModifyIndex >= n.ModifyIndex
	})
	return reply{body: a.network(n)}, nil
}

// awaitNetworks blocks until the watch of all networks shows a change that was
// just made, so that whoever made it sees it in every later answer. It gives up
// after a moment: the change stands either way.
func (a *Agent) awaitNetworks(ctx context.Context, shown func(networkSet) bool) {
	ctx, cancel := context.WithTimeout(ctx, showWait)
	defer cancel()
	for {
		known, _, changed := a.env.networks.Get()
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

// showWait is many times what the watch takes with a store that answers.
const showWait = 2 * time.Second

// normalizedBackend checks a backend object and fills in its defaults.
func (a *Agent) normalizedBackend(object json.RawMessage) (registry.Backend, error) {
	var given registry.Backend
	types := strings.Join(slices.Sorted(maps.Keys(a.env.backends)), ", ")
	if len(object) == 0 || string(object) == "null" {
		return given, badRequest("backend: it is missing, want an object with a type, which is one of %s", types)
	}
	if err := json.Unmarshal(object, &given); err != nil {
		return given, badRequest("%v", err) // which begins with "backend"
	}
	if given.Type == "" {
		return given, badRequest("backend: its type is missing, which is one of %s", types)
	}
	kind, ok := a.env.backends[given.Type]
	if !ok {
		return given, badRequest("backend: this leno has no %q, the type is one of %s", given.Type, types)
	}
	options, err := kind.Normalize(given.Options())
	if err != nil {
		return given, badRequest("backend %q: %v", given.Type, err)
	}
	return registry.NewBackend(given.Type, options)
}

// deleteNetwork refuses while hosts hold leases, or when its record does not tell
// whether they do, unless forced.
func (a *Agent) deleteNetwork(r *http.Request) (reply, error) {
	force, err := flag(r, "force")
	if err != nil {
		return reply{}, err
	}
	n, err := a.definition(r)
	if errors.Is(err, registry.ErrNetworkNotFound) {
		return reply{}, a.deleteLeft(r, err)
	}
	known, _, _ := a.env.networks.Get()
	if _, unusable := known.set.Unusable(r.PathValue("network")); unusable && force {
		n.Name, err = r.PathValue("network"), nil
	}
	if err != nil {
		return reply{}, err
	}
	reg := a.caller(r)
	if !force {
		set, _, err := reg.WatchLeases(r.Context(), n, 0)
		if err != nil {
			return reply{}, err
		}
		var hosts []string
		for _, l := range set.Leases {
			if l.Held() {
				hosts = append(hosts, l.Node)
			}
		}
		if len(hosts) > 0 {
			return reply{}, &api.Error{Code: http.StatusConflict,
				Message: fmt.Sprintf("network %s is in use by %d hosts (%s): force=true takes it from them", n.Name, len(hosts), strings.Join(hosts, ", "))}
		}
	}
	if err := reg.DeleteNetwork(r.Context(), n.Name); err != nil {
		return reply{}, err
	}
	a.awaitNetworks(r.Context(), func(s networkSet) bool {
		_, found := s.set.Find(n.Name)
		_, unusable := s.set.Unusable(n.Name)
		return !found && !unusable
	})
	return reply{}, nil
}

// deleteLeft deletes the reservations of a network that is not defined; missing
// says so when there are none.
func (a *Agent) deleteLeft(r *http.Request, missing error) error {
	name, reg := r.PathValue("network"), a.caller(r)
	// The watch may be behind.
	if _, err := reg.Network(r.Context(), name); !errors.Is(err, registry.ErrNetworkNotFound) {
		if err == nil {
			err = fmt.Errorf("network %s: %w: it was defined just now", name, registry.ErrConflict)
		}
		return err
	}
	err := reg.DeleteNetwork(r.Context(), name)
	if errors.Is(err, registry.ErrNetworkNotFound) {
		return missing
	}
	return err
}
