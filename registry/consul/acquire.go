package consul

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
	claims "github.com/lenonet/leno/registry/claim"
	"github.com/lenonet/leno/registry/consul/changelog"
	"github.com/lenonet/leno/registry/consul/keys"
	"github.com/lenonet/leno/registry/consul/sessions"
	"github.com/lenonet/leno/registry/consul/transport"
)

// Acquire implements registry.Leases.
func (ls leaseStore) Acquire(ctx context.Context, n registry.Network, claim registry.Claim) (registry.Lease, error) {
	if claim.TTL < sessions.MinTTL || claim.TTL > sessions.MaxTTL {
		return registry.Lease{}, fmt.Errorf("acquire lease in network %s: %w: ttl %s is not within %s..%s",
			n.Name, registry.ErrInvalid, claim.TTL, sessions.MinTTL, sessions.MaxTTL)
	}
	ls.claims.Add(1)
	defer ls.claims.Add(-1)
	a := &acquisition{ls: ls, network: n, claim: claim, version: n.ModifyIndex}
	first, _ := n.Plan.Range()
	_, _, err := claims.Record(n, claim, first)
	var lease registry.Lease
	if err == nil {
		lease, err = claims.Run(ctx, a, ls.lost, n, claim)
		for _, id := range a.created {
			// A session whose lock could not be transferred still holds the lease.
			if id != lease.Session && (lease.Session != "" || id == a.session) {
				ls.sessions.Discard(ctx, id)
			}
		}
	}
	if err != nil {
		return registry.Lease{}, fmt.Errorf("acquire lease in network %s: %w", n.Name, err)
	}
	for _, other := range registry.Former(a.view.Leases, lease) {
		ls.drop(ctx, other, lease)
	}
	return lease, nil
}

// acquisition is one call of Acquire.
type acquisition struct {
	ls      leaseStore
	network registry.Network
	claim   registry.Claim

	version  uint64      // of the definition that has the plan; 0 when the store has lost it
	session  string      // locks a new record, "" until one is needed
	created  []string    // sessions created here; all except the lease's are destroyed at the end
	view     claims.View // the last one
	unmarked int         // how many views lacked a marker that exists
}

var _ claims.Steps = (*acquisition)(nil)

// Keep implements claim.Steps.
func (a *acquisition) Keep(ctx context.Context) (lease registry.Lease, ok bool, err error) {
	slot, err := a.network.Plan.Slot(a.claim.Prefer)
	if err != nil || a.version == 0 {
		return lease, false, nil
	}
	wanted, _, err := claims.Record(a.network, a.claim, slot)
	if err != nil {
		return lease, false, err
	}
	key := a.ls.kv.keys.Lease(a.network.Name, wanted.Subnet())
	results, err := a.ls.kv.TransactWith(ctx, transport.Read{Consistent: true},
		&api.KVTxnOp{Verb: api.KVCheckIndex, Key: a.ls.kv.keys.Network(a.network.Name), Index: a.version},
		&api.KVTxnOp{Verb: api.KVCheckSession, Key: key, Session: a.claim.Session},
		&api.KVTxnOp{Verb: api.KVGet, Key: key})
	if err != nil {
		if transport.IsRefused(err) {
			err = nil
		}
		return lease, false, err
	}
	prefix := a.ls.kv.keys.Leases(a.network.Name)
	if lease, err = parseLease(a.network, prefix, results[len(results)-1]); err != nil {
		return lease, false, nil
	}
	if !lease.SameValue(wanted) {
		return lease, false, nil
	}
	entry, err := a.ls.sessions.Renew(ctx, a.claim.Session)
	return lease, entry != nil && sessions.Fits(entry, a.claim), err
}

// Known implements claim.Steps. It reads only the changes since the client last read leases, and the record on the
// preferred subnet, because the changes do not tell that a lease has lapsed.
func (a *acquisition) Known(ctx context.Context) (claims.View, bool, error) {
	if a.version == 0 {
		if err := a.confirmPlan(ctx); err != nil {
			return claims.View{}, false, err
		}
	}
	f, done := a.ls.followers.use(a.network.Name)
	defer done()
	records, made, err := f.learnRecords(ctx, a.ls.kv, a.network)
	if err != nil || made == 0 {
		return claims.View{}, false, err
	}
	if slot, err := a.network.Plan.Slot(a.claim.Prefer); err == nil {
		key := a.ls.kv.keys.Lease(a.network.Name, a.network.Plan.Subnets(slot)[0])
		own, _, err := a.ls.kv.Get(ctx, key, transport.Read{Consistent: true})
		if err != nil {
			return claims.View{}, false, err
		}
		records = slices.DeleteFunc(records, func(r *belief.Record) bool { return r.Key == key })
		if own != nil {
			records = append(records, parseRecord(a.network, a.ls.kv.keys.Leases(a.network.Name), own))
		}
	}
	a.view, err = a.ls.situation(ctx, f, a.network, a.claim, records, made)
	isUnclear := func(l registry.Lease) bool { return l.Session == registry.UnknownSession && a.claim.Same(l) }
	return a.view, !slices.ContainsFunc(a.view.Leases, isUnclear), err
}

// Current implements claim.Steps. If the definition cannot be read, the previous one stays in force.
func (a *acquisition) Current(ctx context.Context) (claims.View, error) {
	if err := a.confirmPlan(ctx); err != nil {
		return claims.View{}, err
	}
	f, done := a.ls.followers.use(a.network.Name)
	defer done()
	prefix, made := a.ls.kv.keys.Leases(a.network.Name), uint64(0)
	pairs, _, err := a.ls.kv.List(ctx, prefix, transport.Read{Consistent: true, Large: true})
	if err != nil {
		return a.view, err
	}
	records := make([]*belief.Record, 0, len(pairs))
	for _, p := range pairs {
		if p.Key == prefix+keys.Marker {
			made = p.CreateIndex
		} else {
			records = append(records, parseRecord(a.network, prefix, p))
		}
	}
	if err := f.readAgain(ctx, a.ls.kv, made); err != nil {
		return a.view, err
	}
	a.view, err = a.ls.situation(ctx, f, a.network, a.claim, records, made)
	f.lapses.Observe(a.network.Name, a.view.Leases, time.Now())
	return a.view, err
}

// confirmPlan reads the version of the definition that has the claim's plan. The error is ErrConflict when there is
// another plan now, and a *DeletedError when the network was deleted.
func (a *acquisition) confirmPlan(ctx context.Context) error {
	key := a.ls.kv.keys.Network(a.network.Name)
	pair, _, err := a.ls.kv.Get(ctx, key, transport.Read{Consistent: true})
	if err != nil {
		return err
	}
	if pair == nil {
		a.version = 0
		return nil
	}
	_, err = parseNetworkPair(a.network.Name, pair)
	if _, isDeleted := errors.AsType[*registry.DeletedError](err); isDeleted {
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

// Mark implements claim.Steps.
func (a *acquisition) Mark(ctx context.Context) error {
	created, err := a.ls.kv.ensureMarker(ctx, a.ls.kv.keys.Leases(a.network.Name))
	if err == nil {
		err = a.ls.kv.ensureWatermark(ctx, a.ls.kv.keys.Changes(a.network.Name))
	}
	if err != nil || created {
		return err
	}
	// Either the marker was created after the list, or the list hid it.
	if a.unmarked++; a.unmarked > 2 {
		return transport.Hidden(a.ls.kv.keys.Leases(a.network.Name))
	}
	return claims.ErrOutdated
}

// isSettled reports whether no session is older than the marker, except those that held leases when the marker was
// flagged. A session that is created later is younger. The flags are the marker's own index, so those of a marker that
// was copied count for nothing.
func isSettled(marker *api.KVPair) bool { return marker.Flags == marker.CreateIndex }

// Holders implements claim.Steps. It lists the sessions only until the marker says that none of them matters.
func (a *acquisition) Holders(ctx context.Context) ([]registry.Holder, error) {
	key := a.ls.kv.keys.Leases(a.network.Name) + keys.Marker
	marker, _, err := a.ls.kv.Get(ctx, key, transport.Read{Consistent: true})
	switch {
	case err != nil:
		return nil, err
	case marker == nil || a.view.Made != 0 && marker.CreateIndex != a.view.Made:
		return nil, claims.ErrOutdated
	case isSettled(marker):
		return nil, nil
	}
	holders, all, err := a.ls.sessions.Holders(ctx, a.network.Name)
	if err != nil {
		return nil, err
	}
	isLost := func(h registry.Holder) bool {
		holds := func(l registry.Lease) bool { return l.Session == h.Session }
		return h.CreateIndex < marker.CreateIndex && !slices.ContainsFunc(a.view.Leases, holds)
	}
	if !all || slices.ContainsFunc(holders, isLost) {
		return holders, nil
	}
	marker.Flags = marker.CreateIndex
	opts, cancel := a.ls.kv.Write(ctx)
	defer cancel()
	if _, _, err := a.ls.kv.API.KV().CAS(marker, opts); err != nil {
		a.ls.kv.logger.Debug("marker not marked as settled", "key", key, "error", err)
	}
	return holders, nil
}

// Take implements claim.Steps.
func (a *acquisition) Take(ctx context.Context, choice registry.Choice) (registry.Lease, error) {
	wanted, value, err := claims.Record(a.network, a.claim, choice.Slot)
	if err != nil {
		return registry.Lease{}, err
	}
	key := a.ls.kv.keys.Lease(a.network.Name, wanted.Subnet())

	var checks []*api.KVTxnOp
	session := ""
	// When a record is only locked again, watchers need no entry.
	tell := choice.Existing == nil || !choice.Existing.SameValue(wanted)
	switch old := choice.Existing; {
	case old == nil:
		checks = append(checks,
			&api.KVTxnOp{Verb: api.KVGetOrEmpty, Key: a.ls.kv.keys.Reservations(a.network.Name) + keys.Last(key)},
			&api.KVTxnOp{Verb: api.KVCheckNotExists, Key: key})
	case !old.Held():
		checks = append(checks, &api.KVTxnOp{Verb: api.KVCheckIndex, Key: key, Index: old.ModifyIndex})
	default:
		entry, err := a.ls.sessions.Renew(ctx, old.Session)
		if err != nil {
			return registry.Lease{}, err
		}
		switch {
		case entry == nil:
			reason := "the session of " + key + " has just ended"
			return registry.Lease{}, &transport.RefusedError{Reasons: []string{reason}}
		case !sessions.Fits(entry, a.claim):
			// The TTL was changed: transfer the lock without releasing it.
			checks = append(checks, &api.KVTxnOp{Verb: api.KVUnlock, Key: key, Value: value, Session: old.Session})
			a.created = append(a.created, old.Session)
		case old.SameValue(wanted):
			a.session = old.Session
			return *old, a.confirm(ctx, key, old)
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
		checks = append(checks, changelog.WriteOp(a.ls.kv.keys.Changes(a.network.Name), keys.Last(key), value, 0))
	}
	definition := a.ls.kv.keys.Network(a.network.Name)
	if a.version > 0 {
		checks = append(checks, &api.KVTxnOp{Verb: api.KVCheckIndex, Key: definition, Index: a.version})
	} else { // KVCheckNotExists would need the right to write there
		checks = append(checks, &api.KVTxnOp{Verb: api.KVGetOrEmpty, Key: definition})
	}
	marker := a.ls.kv.keys.Leases(a.network.Name) + keys.Marker
	checks = append(checks, &api.KVTxnOp{Verb: api.KVGetOrEmpty, Key: marker})
	checks = append(checks, &api.KVTxnOp{Verb: api.KVLock, Key: key, Value: value, Session: session})
	results, err := a.ls.kv.Transact(ctx, checks...)
	if err != nil {
		return a.resolveFailure(ctx, key, value, session, err)
	}
	lease := stored(wanted, results[len(results)-1])
	reason := ""
	switch {
	case choice.Existing == nil && a.reserved(results[0]):
		reason = key + " was reserved at the same time"
	case choice.Existing == nil && a.view.Made != 0 && findPair(results, marker).CreateIndex != a.view.Made:
		reason = marker + " was created again at the same time"
	case a.version == 0 && a.otherPlan(findPair(results, definition)):
		reason = definition + " was defined at the same time"
		if choice.Existing != nil { // the slot is in use, and may also be one of the other plan
			return registry.Lease{}, &transport.RefusedError{Reasons: []string{reason}}
		}
	default:
		return lease, nil
	}
	if err := a.ls.deleteOwn(ctx, key, lease); err != nil {
		return registry.Lease{}, err
	}
	return registry.Lease{}, &transport.RefusedError{Reasons: []string{reason}}
}

// confirm returns ErrOutdated unless the record at key still is that of a lease.
func (a *acquisition) confirm(ctx context.Context, key string, l *registry.Lease) error {
	pair, _, err := a.ls.kv.Get(ctx, key, transport.Read{Consistent: true})
	if err == nil && (pair == nil || pair.ModifyIndex != l.ModifyIndex || pair.Session != l.Session) {
		err = claims.ErrOutdated
	}
	return err
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
	r, err := registry.ParseReservation(a.network, keys.Last(pair.Key), pair.Value)
	return err != nil || !r.For(a.claim)
}

// resolveFailure handles a transaction that failed. If it may have taken place nevertheless, it reads the key to find
// out.
func (a *acquisition) resolveFailure(
	ctx context.Context, key string, value []byte, session string, failure error,
) (registry.Lease, error) {
	if transport.IsRefused(failure) {
		if strings.Contains(failure.Error(), "invalid session") {
			a.session, a.claim.Session = "", ""
		}
		return registry.Lease{}, failure
	}
	if !errors.Is(failure, registry.ErrUnavailable) {
		return registry.Lease{}, fmt.Errorf("write %s: %w", key, failure)
	}
	pair, _, err := a.ls.kv.Get(ctx, key, transport.Read{Consistent: true})
	switch {
	case err != nil:
		return registry.Lease{}, fmt.Errorf("write %s: %w", key, failure)
	case pair != nil && pair.Session == session && bytes.Equal(pair.Value, value):
		lease, err := registry.ParseLease(a.network, keys.Last(key), pair.Value)
		return stored(lease, pair), err
	case pair == nil || pair.Session != session:
		// The transaction may still be in progress, and the next choice may be another slot. Without its session the
		// transaction cannot take effect.
		if err := a.ls.sessions.Destroy(ctx, session); err != nil {
			return registry.Lease{}, err
		}
		a.session, a.claim.Session = "", ""
	}
	return registry.Lease{}, &transport.RefusedError{Reasons: []string{failure.Error()}}
}

// ensureSession provides a session to lock a record that we have not locked yet: the session of an earlier process if
// it is alive, or a new one.
func (a *acquisition) ensureSession(ctx context.Context) error {
	if a.session != "" {
		return nil
	}
	if a.claim.Session != "" {
		entry, err := a.ls.sessions.Renew(ctx, a.claim.Session)
		if err != nil {
			return err
		}
		if entry != nil && sessions.Fits(entry, a.claim) {
			a.session = a.claim.Session
			return nil
		}
	}
	id, err := a.ls.sessions.Create(ctx, a.network.Name, a.claim)
	if err != nil {
		return err
	}
	a.created = append(a.created, id)
	a.session = id
	return nil
}

// Drop implements claim.Steps.
func (a *acquisition) Drop(ctx context.Context, other, lease registry.Lease) {
	a.ls.drop(ctx, other, lease)
}

// drop removes another lease of this host, which has lease.
func (ls leaseStore) drop(ctx context.Context, other, lease registry.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sessions.CleanupTimeout)
	defer cancel()
	err := ls.deleteOwn(ctx, ls.kv.keys.Lease(other.Network, other.Subnet()), other)
	if err != nil {
		ls.kv.logger.Warn("second lease of this host could not be removed",
			"network", other.Network, "subnet", other.Subnet(), "error", err)
		return
	}
	ls.kv.logger.Warn("second lease of this host removed", "network", other.Network, "subnet", other.Subnet())
	if other.Held() && other.Session != lease.Session {
		ls.sessions.Discard(ctx, other.Session)
	}
}

// dropSeconds removes other records of this host that are under the session of a lease that was just renewed, or have
// lapsed. Claims whose outcome was not known may have left them, or someone else wrote them: the session is no secret.
// The records are those that are known anyway.
func (ls leaseStore) dropSeconds(ctx context.Context, own registry.Lease) {
	f := ls.followers.find(own.Network)
	if f == nil || ls.claims.Load() > 0 { // a claim in progress may be about to replace the lease by the other one
		return
	}
	isKept := &api.KVTxnOp{Verb: api.KVCheckIndex, Key: ls.kv.keys.Lease(own.Network, own.Subnet()),
		Index: own.ModifyIndex}
	for _, other := range secondsOf(f, own) {
		err := ls.deleteRecord(ctx, own.Network, other.Key, other.Lease.ModifyIndex, nil, 0, isKept)
		if err == nil {
			ls.kv.logger.Warn("second lease of this host removed", "network", own.Network, "subnet", other.Lease.Subnet())
		}
	}
}
