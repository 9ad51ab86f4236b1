package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// awaitDefinition blocks until the network is defined in the store, and puts
// this host's own definition there when nobody has.
func (r *runner) awaitDefinition(ctx context.Context) (registry.Network, error) {
	retry := r.env.contact.retry()
	var missed time.Time // since when every answer of the store was that it has none
	for {
		_, _, networksChanged := r.env.networks.get()
		n, err := r.definition(ctx)
		if ctx.Err() == nil {
			r.used(useDefinition, err)
		}
		if err == nil {
			r.deleted = false
			differs := r.differs(n)
			r.show(func(v *view) { v.definition, v.defined, v.local.Differs = n, true, differs })
			r.seen.Store(true) // last: see join
			if len(differs) > 0 {
				r.log.Warn("the network's definition in the store wins over the configuration", "differs", strings.Join(differs, "; "))
			}
			return n, nil
		}
		if ctx.Err() != nil {
			return registry.Network{}, ctx.Err()
		}
		if errors.Is(err, errNetworkGone) && !r.deleted {
			return registry.Network{}, err
		}
		switch {
		case !errors.Is(err, registry.ErrNetworkNotFound) || !r.env.missing(r.local.Name):
			missed = time.Time{}
		case missed.IsZero():
			missed = time.Now()
		case !r.deleted && time.Since(missed) > r.env.goneFor && r.leftBehind():
			return registry.Network{}, errNetworkGone
		}
		reason := fmt.Sprintf("waiting for the store: %v", err)
		switch {
		case errors.Is(err, registry.ErrNetworkNotFound), errors.Is(err, errNetworkGone):
			reason = "waiting for the network to be defined: use `leno network apply` or give its block a prefix"
		case errors.Is(err, registry.ErrInvalid):
			reason = fmt.Sprintf("the network's definition cannot be used: %v", err)
		case errors.Is(err, registry.ErrDenied):
			reason = fmt.Sprintf("waiting for rights: %v", err)
		}
		r.wait(checkNetwork, reason)
		if err := retry.wait(ctx, err, networksChanged); err != nil {
			return registry.Network{}, err
		}
	}
}

func (r *runner) definition(ctx context.Context) (registry.Network, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	n, err := r.env.registry.Network(ctx, r.local.Name)
	if !errors.Is(err, registry.ErrNetworkNotFound) || len(r.local.Pools) == 0 {
		return n, err
	}
	if r.seen.Load() {
		// Not there any more: put back what the store lost, not what somebody
		// deleted.
		lost, err := r.lostByStore(ctx)
		if err != nil {
			return n, err
		}
		if !lost {
			return n, errNetworkGone
		}
	}
	n, err = Definition(r.local)
	if err != nil {
		return n, err
	}
	switch err := r.env.registry.PutNetwork(ctx, n); {
	case err == nil:
		r.log.Info("network defined", "pools", n.Plan.Prefixes(), "backend", n.Backend.Type)
	case !errors.Is(err, registry.ErrNetworkExists): // another host was first
		return n, fmt.Errorf("define the network: %w", err)
	}
	return r.env.registry.Network(ctx, r.local.Name)
}

// Definition is the network a configuration block defines. The block has
// pools and a backend, and its options are effective.
func Definition(local config.Network) (registry.Network, error) {
	n := registry.Network{Name: local.Name}
	for _, p := range local.Pools {
		n.Plan = append(n.Plan, registry.Pool(p))
	}
	var err error
	if n.Plan, err = n.Plan.Normalize(); err != nil {
		return n, err
	}
	if local.Backend == nil {
		return n, fmt.Errorf("network %s: %w: no backend", local.Name, registry.ErrInvalid)
	}
	n.Backend, err = registry.NewBackend(local.Backend.Type, local.Backend.Options)
	return n, err
}

// differs says where the block of this host and the store disagree.
func (r *runner) differs(n registry.Network) []string {
	if len(r.local.Pools) == 0 {
		return nil
	}
	own, err := Definition(r.local)
	if err != nil {
		return []string{err.Error()}
	}
	return Differences(own, n)
}

// Differences lists what want has otherwise than have, in words.
func Differences(want, have registry.Network) []string {
	var out []string
	for i := range max(len(want.Plan), len(have.Plan)) {
		switch {
		case i >= len(have.Plan):
			out = append(out, fmt.Sprintf("pool %s is not in the store", want.Plan[i].Prefix))
		case i >= len(want.Plan):
			out = append(out, fmt.Sprintf("pool %s is only in the store", have.Plan[i].Prefix))
		case want.Plan[i] != have.Plan[i]:
			w, h := want.Plan[i], have.Plan[i]
			out = append(out, fmt.Sprintf("pool %s/%d %s-%s is %s/%d %s-%s in the store",
				w.Prefix, w.SubnetLen, w.Min, w.Max, h.Prefix, h.SubnetLen, h.Min, h.Max))
		}
	}
	if !want.Backend.Equal(have.Backend) {
		out = append(out, fmt.Sprintf("backend %s is %s in the store", want.Backend.Object, have.Backend.Object))
	}
	return out
}

// watchDefinition returns when the definition in the store is another one than
// n, or certainly gone. One that cannot be used changes nothing.
func (r *runner) watchDefinition(ctx context.Context, n registry.Network) error {
	warned := false
	for {
		known, ok, changed := r.env.networks.get()
		if ok {
			now, found := known.find(n.Name)
			switch {
			case found && known.index >= n.ModifyIndex && now.ModifyIndex != n.ModifyIndex && len(Differences(now, n)) > 0:
				return errDefinitionChanged
			case !found && !known.bad(n.Name) && known.index > n.ModifyIndex:
				return errNetworkGone
			}
			reason, bad := known.reason(n.Name)
			switch {
			case bad:
				r.check(checkNetwork, api.Warning, "the definition in the store cannot be used, the one before stays in force: "+cut(reason, maxShownReason))
			case warned:
				r.check(checkNetwork, api.Passing, "defined")
			}
			warned = bad
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}
