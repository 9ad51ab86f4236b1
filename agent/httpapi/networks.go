package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/query"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/plural"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
)

// networkHandlers handle requests about networks.
type networkHandlers struct {
	directory
	backends map[string]backend.Type
}

func (h networkHandlers) queryAll(*http.Request) (query.Query, error) {
	return query.Query{Name: "networks", Changes: h.changes, Read: func() (query.Content, error) {
		known, _ := h.agent.Networks()
		networks := h.knownNetworks(known)
		if !known.Read && len(networks) == 0 {
			return query.Content{}, fmt.Errorf("networks: %w: not read yet", registry.ErrUnavailable)
		}
		out := api.NetworkList{Networks: []api.Network{}, Skipped: skippedRecords(known.Bad)}
		basis := out
		for _, n := range networks {
			shown := h.network(n)
			out.Networks = append(out.Networks, shown)
			basis.Networks = append(basis.Networks, withoutTimes(shown))
		}
		return query.Content{Body: out, Basis: basis}, nil
	}}, nil
}

// withoutTimes returns a network without the times that move although nothing else has changed.
func withoutTimes(n api.Network) api.Network {
	if n.Local != nil {
		local := *n.Local
		local.Applied, local.Renewed, local.Followed = time.Time{}, time.Time{}, time.Time{}
		n.Local = &local
	}
	return n
}

func (h networkHandlers) queryOne(r *http.Request) (query.Query, error) {
	n, err := h.requestedNetwork(r)
	return query.Query{Name: "network " + n.Name, Changes: h.changes, Read: func() (query.Content, error) {
		n, err := h.find(n.Name)
		if err != nil {
			return query.Content{}, err
		}
		out := h.network(n)
		return query.Content{Body: out, Basis: withoutTimes(out)}, nil
	}}, err
}

// network returns n as the API shows it, with this host's part in it.
func (h networkHandlers) network(n registry.Network) api.Network {
	out := api.Network{
		Name:        n.Name,
		Pools:       []api.Pool{},
		ModifyIndex: n.ModifyIndex,
		Backend:     json.RawMessage(n.Backend.Object),
		Encryption:  n.Encryption,
	}
	if n.Switch != nil {
		out.SwitchTo = n.Switch.To.Object
	}
	for _, p := range n.Plan {
		out.Pools = append(out.Pools, api.Pool(p))
	}
	if part, ok := h.agent.Network(n.Name); ok {
		local := part.Status().Local
		if local.Subnets == nil { // before the host has a lease; null is no array
			local.Subnets = []netip.Prefix{}
		}
		if local.Underlay.Addresses == nil {
			local.Underlay.Addresses = []netip.Addr{}
		}
		out.Local = &local
	}
	return out
}

// networkBody is the body of a request about a network.
type networkBody struct {
	api.Network
	Local        json.RawMessage   `json:"local"` // ignored, whatever another version puts there
	Reservations []api.Reservation `json:"reservations"`
}

// readDefinition returns the definition in a request's body, with defaults, and the reservations to create with it.
func (h networkHandlers) readDefinition(r *http.Request) (registry.Network, []registry.Reservation, error) {
	var body networkBody
	if err := readBody(r, &body); err != nil {
		return registry.Network{}, nil, err
	}
	n, err := h.normalize(r, body.Network)
	if err != nil {
		return n, nil, err
	}
	var kept []registry.Reservation
	var errs []error
	for _, v := range body.Reservations {
		if err := checkReservedFor(v); !v.Subnet.IsValid() {
			errs = append(errs, badRequest("reservations: subnet is missing"))
		} else if err != nil {
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

// normalize returns a definition with its defaults.
func (h networkHandlers) normalize(r *http.Request, body api.Network) (registry.Network, error) {
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
	if len(body.SwitchTo) > 0 {
		return n, badRequest("switch_to: only leno sets it: set backend to the one that you want to switch to")
	}
	if n.Backend, err = h.normalizeBackend(body.Backend); err != nil {
		return n, err
	}
	if err := backend.CheckMTUOption(n.Backend.Options(), n.Plan.Prefixes()); err != nil {
		return n, badRequest("backend %q: %v", n.Backend.Type, err)
	}
	if err := registry.CheckEncryption(body.Encryption); err != nil {
		return n, err
	}
	n.Encryption = body.Encryption
	return n, definition.CheckEncryption(n, h.backends)
}

// plan returns what put would change, and changes nothing.
func (h networkHandlers) plan(r *http.Request) (out api.NetworkPlan, err error) {
	n, _, err := h.readDefinition(r)
	if err != nil {
		return out, err
	}
	c, err := h.planChange(r.Context(), n, h.recentLeases)
	gradual := c.Gradual()
	if err != nil && !(c.Lost && gradual.IsNone()) {
		return out, err
	}
	return gradual.Plan(), nil
}

// planChange returns the change to n with everything by which it is judged. If the store has lost the definition, and
// this host has it in force, that is the one that n changes. Like everything that is only read, it is read under the
// agent's own token.
func (h networkHandlers) planChange(ctx context.Context, n registry.Network,
	leases func(context.Context, registry.Network) (registry.LeaseSet, error)) (definition.Change, error) {
	c := definition.Change{New: n, Backends: h.backends}
	known, _ := h.agent.Networks() // none in a store that is new
	c.Others = known.Networks
	old, err := h.readBase(ctx, h.store, n.Name)
	switch {
	case errors.Is(err, registry.ErrNetworkNotFound):
		if deleted, ok := errors.AsType[*registry.DeletedError](err); ok {
			c.Old.Lineage = deleted.Lineage
		}
		left, _, err := h.store.WatchReservations(ctx, registry.Network{Name: n.Name}, 0)
		c.Leftover = reservations(left)
		return c, err
	case errors.Is(err, registry.ErrInvalid):
		return c, h.unusableRecord(n.Name, err)
	case err != nil:
		return c, err
	}
	c.Old, c.Lost, c.Declined, c.Stored = old.Network, old.lost, old.declined, old.version
	if c.Lost {
		leases = h.knownLeases
	}
	set, err := leases(ctx, c.Old)
	if err != nil {
		return c, err
	}
	kept, _, err := h.store.WatchReservations(ctx, c.Old, 0)
	c.Leases, c.BadRecords, c.Reservations = set.Leases, set.Bad, kept.Reservations
	if c.Lost {
		c.Leftover = reservations(kept)
	}
	return c, err
}

// readLeases reads all leases of a network, for a decision.
func (h networkHandlers) readLeases(ctx context.Context, n registry.Network) (registry.LeaseSet, error) {
	set, _, err := h.store.WatchLeases(ctx, n, 0)
	return set, err
}

// knownLeases returns the leases of a network as this host knows them, with its own, some of which the store may have
// lost.
func (h networkHandlers) knownLeases(ctx context.Context, n registry.Network) (registry.LeaseSet, error) {
	set, err := h.recentLeases(ctx, n)
	part, joined := h.agent.Network(n.Name)
	if err != nil || !joined {
		return set, err
	}
	own := part.Status().Lease
	isOwn := func(l registry.Lease) bool { return l.NodeID == own.NodeID }
	if own.Subnets != nil && !slices.ContainsFunc(set.Leases, isOwn) {
		set.Leases = append(slices.Clone(set.Leases), own)
		slices.SortFunc(set.Leases, func(a, b registry.Lease) int { return cmp.Compare(a.Slot, b.Slot) })
	}
	return set, nil
}

// decide returns the revision to store: n, or one with which the network is switched to n's backend. It refuses a
// change that takes subnets or packets from hosts, or of which that cannot be known, unless it is forced. Only a forced
// change that cannot be made gradually, or of which that cannot be known, takes effect at once. A change to an old
// version is left for the store to refuse. A definition that the store has lost is put back, with what n changes.
func (h networkHandlers) decide(ctx context.Context, n registry.Network, force bool) (registry.Network, error) {
	c, err := h.planChange(ctx, n, h.readLeases)
	gradual, read := c.Gradual(), err == nil || c.Old.Name != ""
	switch {
	case read && n.ModifyIndex != c.Version():
		return n.Replacing(c.Old), nil
	case c.Lost && gradual.IsNone():
		return withRestore(c.Old, c.Stored), nil
	case err != nil && !force:
		return n, err
	case err != nil || force && gradual.NeedsForce():
		c = c.Forced(time.Now())
	default:
		c = gradual
	}
	var reasons []string
	for _, r := range c.Plan().Refused {
		if !r.Force || !force {
			reasons = append(reasons, fmt.Sprintf("%s (%s)", r.Reason, r.Way))
		}
	}
	if len(reasons) > 0 {
		return n, api.Errorf(http.StatusConflict, "network %s was not changed: %s", n.Name, strings.Join(reasons, "; "))
	}
	if err := definition.CheckEncryption(c.New, h.backends); err != nil {
		return n, err // hosts would refuse to carry the network
	}
	return definitionBase{c.Old, c.Lost, c.Declined, c.Stored}.replacement(c.New), nil
}

// A definitionBase is the definition from which a change starts.
type definitionBase struct {
	registry.Network
	lost     bool   // the store has lost it, or its last change
	declined bool   // the store has another one, which hosts do not follow
	version  uint64 // the ModifyIndex of what the store has, 0 for none or a deletion
}

// replacement returns n as the revision to store after b.
func (b definitionBase) replacement(n registry.Network) registry.Network {
	n = n.Replacing(b.Network)
	if b.declined {
		n.ModifyIndex = b.version
	}
	if b.lost {
		return withRestore(n, b.version)
	}
	return n
}

// withRestore returns n as it is written to a store that has lost its last change, and has the given version instead.
func withRestore(n registry.Network, version uint64) registry.Network {
	n = n.Restoring(0)
	n.ModifyIndex = version
	return n
}

// readBase returns the network's definition as the store has it or, if the store has lost the one that this host has in
// force, or has one that is not confirmed, that one: hosts do not follow the store's.
func (h networkHandlers) readBase(ctx context.Context, store registry.Registry, name string) (definitionBase, error) {
	stored, err := store.Network(ctx, name)
	base := definitionBase{Network: stored, version: stored.ModifyIndex}
	if part, joined := h.agent.Network(name); joined {
		verdict := part.Judge(stored, err)
		if base.lost, base.declined = verdict == belief.Lost, verdict == belief.Declined; base.lost || base.declined {
			base.Network, err = part.Status().Definition, nil
		}
	}
	return base, err
}

// put defines a network, or replaces the version that the body names.
func (h networkHandlers) put(r *http.Request) (out api.Network, err error) {
	n, kept, err := h.readDefinition(r)
	if err != nil {
		return out, err
	}
	force, err := flag(r, "force")
	if err != nil {
		return out, err
	}
	if n, err = h.decide(r.Context(), n, force); err != nil {
		return out, err
	}
	name, store := n.Name, h.storeFor(r)
	if err := store.PutNetwork(r.Context(), n, kept...); err != nil {
		return out, err
	}
	if n, err = h.readWritten(r.Context(), store, name); err != nil {
		return out, err
	}
	return h.network(n), nil
}

// readWritten returns a network that was just written, as the store has it, when the watch of all networks shows it.
func (h networkHandlers) readWritten(
	ctx context.Context, store registry.Registry, name string,
) (registry.Network, error) {
	n, err := store.Network(ctx, name)
	if err == nil {
		h.await(ctx, func(known Networks) bool {
			shown, ok := known.Find(name)
			return ok && shown.ModifyIndex >= n.ModifyIndex
		})
	}
	return n, err
}

// normalizeBackend checks a backend object and fills in its defaults.
func (h networkHandlers) normalizeBackend(object json.RawMessage) (registry.Backend, error) {
	var given registry.Backend
	types := strings.Join(slices.Sorted(maps.Keys(h.backends)), ", ")
	if len(object) == 0 || string(object) == "null" {
		return given, badRequest("backend is missing: want an object with a type, one of %s", types)
	}
	if err := json.Unmarshal(object, &given); err != nil {
		return given, badRequest("%v", err) // which begins with "backend"
	}
	if given.Type == "" {
		return given, badRequest("backend: the type is missing: want one of %s", types)
	}
	kind, ok := h.backends[given.Type]
	if !ok {
		return given, badRequest("backend: this version of leno has no type %q: want one of %s", given.Type, types)
	}
	options, err := kind.Normalize(given.Options())
	if err != nil {
		return given, badRequest("backend %q: %v", given.Type, err)
	}
	return registry.NewBackend(given.Type, options)
}

// delete refuses while hosts hold leases, or when the record does not say whether they do, unless it is forced.
func (h networkHandlers) delete(r *http.Request) error {
	force, err := flag(r, "force")
	if err != nil {
		return err
	}
	n, err := h.requestedNetwork(r)
	if errors.Is(err, registry.ErrNetworkNotFound) {
		return h.deleteReservations(r, err)
	}
	known, _ := h.agent.Networks()
	if name := r.PathValue("network"); force && !h.isFlannels(name) {
		if _, unusable := known.Unusable(name); unusable {
			n.Name, err = name, nil
		}
	}
	if err != nil {
		return err
	}
	store := h.storeFor(r)
	if !force {
		set, _, err := store.WatchLeases(r.Context(), n, 0)
		if err != nil {
			return err
		}
		var hosts []string
		for _, l := range set.Leases {
			if l.Held() {
				hosts = append(hosts, l.Node)
			}
		}
		if len(hosts) > 0 {
			return api.Errorf(http.StatusConflict, "network %s is in use by %s (%s): force=true takes it from them",
				n.Name, plural.Count(len(hosts), "host"), strings.Join(hosts, ", "))
		}
	}
	if err := store.DeleteNetwork(r.Context(), n.Name); err != nil {
		return err
	}
	h.await(r.Context(), func(known Networks) bool {
		_, found := known.Find(n.Name)
		_, unusable := known.Unusable(n.Name)
		return !found && !unusable
	})
	return nil
}

// deleteReservations deletes the reservations of a network that is not defined. It returns missing when there are none.
func (h networkHandlers) deleteReservations(r *http.Request, missing error) error {
	name, store := r.PathValue("network"), h.storeFor(r)
	// The watch may be behind.
	if _, err := store.Network(r.Context(), name); !errors.Is(err, registry.ErrNetworkNotFound) {
		if err == nil {
			err = fmt.Errorf("network %s: %w: it has just been defined", name, registry.ErrConflict)
		}
		return err
	}
	err := store.DeleteNetwork(r.Context(), name)
	if errors.Is(err, registry.ErrNetworkNotFound) {
		return missing
	}
	return err
}
