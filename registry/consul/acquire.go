package consul

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/changelog"
)

// maxRaces limits how often one Acquire chooses again after another host was faster. After each lost race another host
// has got a slot.
const maxRaces = 64

// racePause is the longest pause before choosing again.
const racePause = 20 * time.Millisecond

// Acquire implements registry.Leases.
func (ls leaseStore) Acquire(ctx context.Context, n registry.Network, claim registry.Claim) (registry.Lease, error) {
	if claim.TTL < minTTL || claim.TTL > maxTTL {
		return registry.Lease{}, fmt.Errorf("acquire lease in network %s: %w: ttl %s is not within %s..%s",
			n.Name, registry.ErrInvalid, claim.TTL, minTTL, maxTTL)
	}
	a := &acquisition{ls: ls, network: n, claim: claim}
	first, _ := n.Plan.Range()
	if _, _, err := a.record(first); err != nil {
		return registry.Lease{}, fmt.Errorf("acquire lease in network %s: %w", n.Name, err)
	}
	lease, err := a.run(ctx)
	a.cleanUp(ctx, lease)
	if err != nil {
		return registry.Lease{}, fmt.Errorf("acquire lease in network %s: %w", n.Name, err)
	}
	return lease, nil
}

// acquisition is one call of Acquire.
type acquisition struct {
	ls      leaseStore
	network registry.Network
	claim   registry.Claim

	version uint64   // of the definition that has the plan; 0 when the store has lost it
	session string   // locks a new record, "" until one is needed
	created []string // sessions created here; all except the lease's are destroyed at the end
	surplus []registry.Lease
}

func (a *acquisition) run(ctx context.Context) (registry.Lease, error) {
	var lost error
	unmarked := 0
	a.version = a.network.ModifyIndex
	for range maxRaces {
		if lost != nil {
			if err := pause(ctx, jitter(racePause)); err != nil {
				return registry.Lease{}, err
			}
		}
		if lost != nil || a.network.ModifyIndex == 0 {
			if err := a.confirmPlan(ctx); err != nil {
				return registry.Lease{}, err
			}
		}
		view, made, err := a.ls.situation(ctx, a.network, a.claim)
		if err != nil {
			return registry.Lease{}, err
		}
		if made == 0 {
			created, err := a.ls.kv.ensureMarker(ctx, a.ls.kv.keys.leases(a.network.Name))
			if err != nil {
				return registry.Lease{}, err
			}
			if err := a.ls.kv.ensureWatermark(ctx, a.ls.kv.keys.changes(a.network.Name)); err != nil {
				return registry.Lease{}, err
			}
			if !created {
				// Either the marker was created after the list, or the list hid it.
				if unmarked++; unmarked > 2 {
					return registry.Lease{}, hidden(a.ls.kv.keys.leases(a.network.Name))
				}
				continue
			}
			made = math.MaxUint64
		}
		a.ls.lost.Attempt(a.network.Name, made, a.claim, time.Now())
		choice, err := registry.Choose(view, a.claim, rand.Uint64N)
		if err != nil {
			return registry.Lease{}, err
		}
		if choice.TakesNew(a.network.Plan, a.claim) {
			holders, err := a.ls.sessions.Holders(ctx, a.network.Name)
			if err != nil {
				return registry.Lease{}, err
			}
			if err := a.ls.lost.Check(a.network.Name, holders, view.Leases, made, a.claim, time.Now()); err != nil {
				return registry.Lease{}, err
			}
		}
		lease, err := a.take(ctx, choice)
		switch {
		case err == nil:
			a.surplus = registry.Surplus(view.Leases, lease)
			a.ls.lost.Forget(a.network.Name)
			return lease, nil
		case !isRefused(err):
			return registry.Lease{}, err
		}
		lost = err
	}
	return registry.Lease{}, fmt.Errorf("%w: other hosts were faster %d times: %w",
		registry.ErrConflict, maxRaces, lost)
}

// confirmPlan reads the version of the definition that has the claim's plan. The error is ErrConflict when there is
// another plan now, and a *DeletedError when the network was deleted. If the definition cannot be read, the previous
// one stays in force.
func (a *acquisition) confirmPlan(ctx context.Context) error {
	key := a.ls.kv.keys.network(a.network.Name)
	pair, _, err := a.ls.kv.get(ctx, key, read{consistent: true})
	if err != nil {
		return err
	}
	if pair == nil {
		a.version = 0
		return nil
	}
	deleted := &registry.DeletedError{}
	if _, err := parseNetworkPair(a.network.Name, pair); errors.As(err, &deleted) {
		return err
	}
	if a.otherPlan(pair) {
		return fmt.Errorf("%w: the network has another plan now", registry.ErrConflict)
	}
	a.version = pair.ModifyIndex
	return nil
}

// otherPlan reports whether a record is a definition with another plan than the claim's.
func (a *acquisition) otherPlan(pair *api.KVPair) bool {
	n, err := parseNetworkPair(a.network.Name, pair)
	return pair.ModifyIndex != 0 && err == nil && !slices.Equal(n.Plan, a.network.Plan)
}

// take carries out one choice. After a *refusedError the caller must read and choose again.
func (a *acquisition) take(ctx context.Context, choice registry.Choice) (registry.Lease, error) {
	key, value, err := a.record(choice.Slot)
	if err != nil {
		return registry.Lease{}, err
	}
	wanted, err := registry.ParseLease(a.network, lastComponent(key), value)
	if err != nil {
		return registry.Lease{}, err
	}

	var checks []*api.KVTxnOp
	session := ""
	// When a record is only locked again, watchers need no entry.
	tell := choice.Existing == nil || !choice.Existing.SameValue(wanted)
	switch old := choice.Existing; {
	case old == nil:
		checks = append(checks,
			&api.KVTxnOp{Verb: api.KVGetOrEmpty, Key: a.ls.kv.keys.reservations(a.network.Name) + lastComponent(key)},
			&api.KVTxnOp{Verb: api.KVCheckNotExists, Key: key})
	case !old.Held():
		checks = append(checks, &api.KVTxnOp{Verb: api.KVCheckIndex, Key: key, Index: old.ModifyIndex})
	default:
		entry, err := a.ls.sessions.renew(ctx, old.Session)
		if err != nil {
			return registry.Lease{}, err
		}
		switch {
		case entry == nil:
			return registry.Lease{}, &refusedError{reasons: []string{"the session of " + key + " has just ended"}}
		case !fits(entry, a.claim):
			// The TTL was changed: transfer the lock without releasing it.
			checks = append(checks, &api.KVTxnOp{Verb: api.KVUnlock, Key: key, Value: value, Session: old.Session})
			a.created = append(a.created, old.Session)
		case old.SameValue(wanted):
			a.session = old.Session
			return *old, nil
		default:
			session = old.Session
			checks = append(checks, &api.KVTxnOp{Verb: api.KVCheckSession, Key: key, Session: session})
		}
	}
	if session == "" {
		if err := a.ensureSession(ctx); err != nil {
			return registry.Lease{}, err
		}
		session = a.session
	}
	if tell {
		checks = append(checks, changelog.WriteOp(a.ls.kv.keys.changes(a.network.Name), lastComponent(key), value, 0))
	}
	definition := a.ls.kv.keys.network(a.network.Name)
	if a.version > 0 {
		checks = append(checks, &api.KVTxnOp{Verb: api.KVCheckIndex, Key: definition, Index: a.version})
	} else { // KVCheckNotExists would need the right to write there
		checks = append(checks, &api.KVTxnOp{Verb: api.KVGetOrEmpty, Key: definition})
	}
	checks = append(checks, &api.KVTxnOp{Verb: api.KVLock, Key: key, Value: value, Session: session})
	results, err := a.ls.kv.transact(ctx, checks...)
	if err != nil {
		return a.resolveFailure(ctx, key, value, session, err)
	}
	lease := stored(wanted, results[len(results)-1])
	reason := ""
	switch {
	case choice.Existing == nil && a.reserved(results[0]):
		reason = key + " was reserved at the same time"
	case a.version == 0 && a.otherPlan(findPair(results, definition)):
		reason = definition + " was defined at the same time"
		if choice.Existing != nil { // the slot is in use, and may also be one of the other plan
			return registry.Lease{}, &refusedError{reasons: []string{reason}}
		}
	default:
		return lease, nil
	}
	if err := a.ls.deleteOwn(ctx, key, lease); err != nil {
		return registry.Lease{}, err
	}
	return registry.Lease{}, &refusedError{reasons: []string{reason}}
}

// findPair returns the result for key, which must be among the results.
func findPair(results []*api.KVPair, key string) *api.KVPair {
	return results[slices.IndexFunc(results, func(p *api.KVPair) bool { return p.Key == key })]
}

// reserved reports whether pair, the record at a reservation's key when the slot was taken, keeps the slot for another
// host. A call that adds a reservation looks for leases afterwards, so of two concurrent calls at least one sees the
// other.
func (a *acquisition) reserved(pair *api.KVPair) bool {
	if pair.ModifyIndex == 0 {
		return false
	}
	r, err := registry.ParseReservation(a.network, lastComponent(pair.Key), pair.Value)
	return err != nil || !r.For(a.claim)
}

// resolveFailure handles a transaction that failed. If it may have taken place nevertheless, it reads the key to find
// out.
func (a *acquisition) resolveFailure(
	ctx context.Context, key string, value []byte, session string, failure error,
) (registry.Lease, error) {
	if isRefused(failure) {
		if strings.Contains(failure.Error(), "invalid session") {
			a.session, a.claim.Session = "", ""
		}
		return registry.Lease{}, failure
	}
	if !errors.Is(failure, registry.ErrUnavailable) {
		return registry.Lease{}, fmt.Errorf("write %s: %w", key, failure)
	}
	pair, _, err := a.ls.kv.get(ctx, key, read{consistent: true})
	switch {
	case err != nil:
		return registry.Lease{}, fmt.Errorf("write %s: %w", key, failure)
	case pair != nil && pair.Session == session && bytes.Equal(pair.Value, value):
		lease, err := registry.ParseLease(a.network, lastComponent(key), pair.Value)
		return stored(lease, pair), err
	case pair == nil || pair.Session != session:
		// The transaction may still be in progress, and the next choice may be another slot. Without its session the
		// transaction cannot take effect.
		if err := a.ls.sessions.destroy(ctx, session); err != nil {
			return registry.Lease{}, err
		}
		a.session, a.claim.Session = "", ""
	}
	return registry.Lease{}, &refusedError{reasons: []string{failure.Error()}}
}

// ensureSession provides a session to lock a record that we have not locked yet: the session of an earlier process if
// it is alive, or a new one.
func (a *acquisition) ensureSession(ctx context.Context) error {
	if a.session != "" {
		return nil
	}
	if a.claim.Session != "" {
		entry, err := a.ls.sessions.renew(ctx, a.claim.Session)
		if err != nil {
			return err
		}
		if entry != nil && fits(entry, a.claim) {
			a.session = a.claim.Session
			return nil
		}
	}
	id, err := a.ls.sessions.create(ctx, a.network.Name, a.claim)
	if err != nil {
		return err
	}
	a.created = append(a.created, id)
	a.session = id
	return nil
}

// cleanUp leaves one session and one record of this host, or none: lease is the zero value when none was acquired.
// Errors are only logged, because sessions that are not renewed end by themselves.
func (a *acquisition) cleanUp(ctx context.Context, lease registry.Lease) {
	for _, id := range a.created {
		// A session whose lock could not be transferred still holds the lease.
		if id != lease.Session && (lease.Session != "" || id == a.session) {
			a.ls.sessions.discard(ctx, id)
		}
	}
	for _, other := range a.surplus {
		a.ls.dropSurplus(ctx, other, lease)
	}
}

func (ls leaseStore) dropSurplus(ctx context.Context, other, lease registry.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	err := ls.deleteOwn(ctx, ls.kv.keys.lease(other.Network, other.Subnet()), other)
	ls.kv.logger.Warn("second lease of this host removed",
		"network", other.Network, "subnet", other.Subnet(), "error", err)
	if other.Session != lease.Session {
		ls.sessions.discard(ctx, other.Session)
	}
}

// record returns the key and value of the claim's lease on slot.
func (a *acquisition) record(slot uint64) (key string, value []byte, err error) {
	l := registry.Lease{
		Network:   a.network.Name,
		Slot:      slot,
		Subnets:   a.network.Plan.Subnets(slot),
		Node:      a.claim.Node,
		NodeID:    a.claim.NodeID,
		PublicIPs: a.claim.PublicIPs,
		MTU:       a.claim.MTU,
		Backend:   a.claim.Backend,
	}
	value, err = registry.FormatLease(l)
	if err != nil {
		return "", nil, err
	}
	// Peers check the record with the same rules: failing here is better than being skipped.
	if _, err := registry.ParseLease(a.network, registry.SubnetKey(l.Subnet()), value); err != nil {
		return "", nil, err
	}
	return a.ls.kv.keys.lease(a.network.Name, l.Subnet()), value, nil
}
