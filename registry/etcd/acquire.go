package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/registry"
	claims "github.com/lenonet/leno/registry/claim"
	"github.com/lenonet/leno/registry/flannel"
)

// Acquire implements registry.Leases.
func (c *Client) Acquire(ctx context.Context, n registry.Network, claim registry.Claim) (registry.Lease, error) {
	a := &acquisition{conn: c.own, network: n, claim: claim}
	c.own.claims.Add(1)
	defer c.own.claims.Add(-1)
	lease, err := a.run(ctx)
	for _, s := range a.created {
		if s.String() != lease.Session {
			c.own.sessions.drop(ctx, s)
		}
	}
	if err != nil {
		return registry.Lease{}, registry.Wrap(err, "acquire lease in network %s", n.Name)
	}
	for _, s := range a.replaced {
		c.own.sessions.discard(ctx, s)
	}
	if a.tree != nil {
		leases, _ := c.own.readLeases(a.tree, n)
		for _, other := range registry.Former(leases, lease) {
			c.own.dropSurplus(ctx, other)
		}
	}
	return lease, nil
}

// acquisition is one call of Acquire.
type acquisition struct {
	conn    *connection
	network registry.Network
	claim   registry.Claim

	tree    *tree     // that the last view is of
	view    situation // the last view
	onlyOwn bool      // the host may have no subnet but the one that it uses: see checkPlan
	marked  uint64    // the revision at which this attempt created the marker, 0 for none

	session  session   // for a new record, zero until one is needed
	version  uint64    // of its key, if it was created in this attempt
	created  []session // end with the call unless the lease has them
	replaced []session // held the lease before, and end once it has been acquired
}

var _ claims.Steps = (*acquisition)(nil)

func (a *acquisition) run(ctx context.Context) (registry.Lease, error) {
	if a.claim.TTL < minTTL || a.claim.TTL > maxTTL {
		return registry.Lease{}, fmt.Errorf("%w: ttl %s is not within %s..%s", registry.ErrInvalid, a.claim.TTL, minTTL,
			maxTTL)
	}
	first, _ := a.network.Plan.Range()
	if _, _, err := a.record(first); err != nil {
		return registry.Lease{}, err
	}
	return claims.Run(ctx, a, a.conn.lost, a.network, a.claim)
}

// Keep implements claim.Steps.
func (a *acquisition) Keep(ctx context.Context) (lease registry.Lease, ok bool, err error) {
	held, ok := parseSession(a.claim.Session)
	slot, err := a.network.Plan.Slot(a.claim.Prefer)
	if !ok || err != nil || a.network.ModifyIndex == 0 || a.conn.sessions.hasUnwanted() {
		return lease, false, nil
	}
	wanted, _, err := a.record(slot)
	if err != nil {
		return lease, false, err
	}
	keys, name := a.conn.keys, a.network.Name
	read, err := a.conn.doIf(ctx, []clientv3.Cmp{
		unchanged(keys.definition(name), a.network.ModifyIndex),
		clientv3.Compare(clientv3.LeaseValue(keys.lease(name, wanted.Subnets)), "=", held.kept),
		clientv3.Compare(clientv3.LeaseValue(keys.session(name, held.kept)), "=", held.alive),
	}, clientv3.OpGet(keys.lease(name, wanted.Subnets)))
	if err == errRefused {
		return lease, false, nil
	}
	if err != nil {
		return lease, false, err
	}
	r := newRecord(read.Responses[0].GetResponseRange().Kvs[0])
	own, foreign, err := flannel.ParseLease(a.network, path.Base(r.key), r.value)
	if err != nil || foreign || !own.SameValue(wanted) {
		return lease, false, nil
	}
	if fits, err := a.adopt(ctx, held); !fits || err != nil {
		return lease, false, err
	}
	return stored(own, r, held.String()), true, nil
}

// Known implements claim.Steps with the tree that the client follows. That is not enough if a new host with flannel
// would be unable to reach this host.
func (a *acquisition) Known(ctx context.Context) (claims.View, bool, error) {
	first, _ := a.network.Plan.Range()
	example, _, err := a.record(first)
	if err != nil || flannel.WhyIgnored(example) != "" || a.conn.sessions.hasUnwanted() {
		return claims.View{}, false, err
	}
	t := a.conn.known(ctx, a.network.Name)
	if t == nil {
		return claims.View{}, false, nil
	}
	view, err := a.see(t)
	return view, err == nil, err
}

// Current implements claim.Steps.
func (a *acquisition) Current(ctx context.Context) (claims.View, error) {
	t, err := a.conn.refreshSurely(ctx)
	if err == nil {
		err = a.conn.sessions.endUnwanted(ctx, t)
	}
	if err != nil {
		return claims.View{}, err
	}
	return a.see(t)
}

// see returns the view of t, and keeps it for the following steps.
func (a *acquisition) see(t *tree) (_ claims.View, err error) {
	a.version, a.marked, a.tree = 0, 0, t
	if a.onlyOwn, err = a.checkPlan(t); err != nil {
		return claims.View{}, err
	}
	a.view = a.conn.situation(t, a.network, a.claim)
	return a.view.View, nil
}

// Mark implements claim.Steps.
func (a *acquisition) Mark(ctx context.Context) (err error) {
	key := a.conn.keys.marker(a.network.Name)
	a.marked, err = a.conn.transact(ctx, []clientv3.Cmp{unchanged(key, 0)}, clientv3.OpPut(key, markerValue))
	return err
}

// Holders implements claim.Steps. This host has the session of its claim. A session without a key was lost by the
// store, unless it is as new as the marker: then its key was never written.
func (a *acquisition) Holders(ctx context.Context) ([]registry.Holder, error) {
	ids, err := a.conn.sessions.ids(ctx, a.network.Name)
	if err != nil {
		return nil, registry.Wrap(err, "list sessions of network %s", a.network.Name)
	}
	if made := a.view.Made; made != 0 {
		generation := generationOf(made)
		ids = slices.DeleteFunc(ids, func(id clientv3.LeaseID) bool { return id&generationMask == generation })
	}
	holders := a.conn.sessions.holdersOf(a.tree.Below(a.conn.keys.sessions(a.network.Name)), ids)
	own, ok := parseSession(a.claim.Session)
	for i, h := range holders {
		if ok && h.Session == formatLeaseID(own.alive) { // its key is lost
			holders[i].Session, holders[i].Node = a.claim.Session, a.claim.Node
		}
	}
	return holders, nil
}

// errOtherPlan means that a claim is for a plan that the network no longer has.
var errOtherPlan = fmt.Errorf("%w: the network has another plan now", registry.ErrConflict)

// checkPlan returns an ErrConflict if there is another plan now, and a *DeletedError if the network was deleted. If the
// definition cannot be read, the one before stays in force. So it does if flannel's operator wrote the other plan,
// until that is confirmed: onlyOwn is true then, and the host may have the subnet that it uses and no other.
func (a *acquisition) checkPlan(t *tree) (onlyOwn bool, err error) {
	n, err := parseNetwork(a.network.Name, t.Get(a.conn.keys.definition(a.network.Name)))
	_, isDeleted := errors.AsType[*registry.DeletedError](err)
	switch {
	case isDeleted:
		return false, err
	case err != nil || slices.Equal(n.Plan, a.network.Plan):
		return false, nil
	case n.Foreign:
		return true, nil
	}
	return false, errOtherPlan
}

// Take implements claim.Steps.
func (a *acquisition) Take(ctx context.Context, choice registry.Choice) (registry.Lease, error) {
	t, s := a.tree, a.view
	if a.onlyOwn && !choice.Own && !a.claim.TakesBack(a.network.Plan.Subnets(choice.Slot)[0]) {
		return registry.Lease{}, errOtherPlan
	}
	if err := a.checkPositions(s); err != nil {
		return registry.Lease{}, err
	}
	wanted, value, err := a.record(choice.Slot)
	if err != nil {
		return registry.Lease{}, err
	}
	if s.flannel || (reader{a.conn.keys, a.network}).isDefinedByFlannel(t) {
		if err := a.checkUsable(wanted, choice); err != nil {
			return registry.Lease{}, err
		}
	}
	keys, key := a.conn.keys, a.conn.keys.lease(a.network.Name, wanted.Subnets)
	before := a.conn.recordOn(t, a.network.Name, wanted.Subnet())
	if old := choice.Existing; old != nil {
		if held, ok := parseSession(old.Session); ok && choice.Own {
			fits, err := a.adopt(ctx, held)
			if err != nil {
				return registry.Lease{}, err
			}
			if fits && before.key == key && old.SameValue(wanted) {
				return *old, a.confirm(ctx, before)
			}
		}
	}
	if err := a.ensureSession(ctx, max(s.Made, a.marked)); err != nil {
		return registry.Lease{}, err
	}
	sessionKey := keys.session(a.network.Name, a.session.kept)
	definition, marker := keys.definition(a.network.Name), keys.marker(a.network.Name)
	reservation := keys.reservation(a.network.Name, wanted.Subnet())
	conditions := []clientv3.Cmp{
		unchanged(definition, t.Modified(definition)),
		unchanged(marker, max(a.marked, t.Modified(marker))),
		unchanged(reservation, t.Modified(reservation)),
		// Of several transactions with this session whose outcome is not known, only one can take place.
		unchanged(sessionKey, max(a.version, t.Modified(sessionKey))),
	}
	ops := []clientv3.Op{
		clientv3.OpPut(key, string(value), clientv3.WithLease(a.session.kept)),
		a.conn.sessions.put(a.network.Name, a.session, a.claim.Node),
		clientv3.OpDelete(keys.revoked(a.network.Name, wanted.Subnet())),
	}
	if keep := a.flannelReservation(before, s, choice); keep != nil {
		ops = append(ops, clientv3.OpPut(reservation, string(keep)))
	}
	if before != nil {
		conditions = append(conditions, unchanged(before.key, before.modified))
		if choice.Existing != nil && !choice.Existing.Held() { // its host may have returned without writing the record
			conditions = append(conditions, unchanged(keys.session(a.network.Name, before.lease), 0))
		}
	}
	switch {
	case before == nil:
		conditions = append(conditions, isFree(a.network, key))
	case before.key != key:
		conditions = append(conditions, unchanged(key, 0))
		// First, because flanneld removes the routes to both subnets of a deleted record, also if a later one has one.
		ops = slices.Insert(ops, 0, clientv3.OpDelete(before.key))
		if len(wanted.Subnets) > 1 { // giveWay would leave the host without the record that this deletes
			conditions = append(conditions, notWrittenSince(keys.leases(a.network.Name), a.tree.Revision))
		}
	}
	revision, err := a.conn.transact(ctx, conditions, ops...)
	switch {
	case err == nil:
		created := revision
		if before != nil && before.key == key {
			created = before.created
		}
		if before == nil {
			err = a.giveWay(ctx, wanted, revision)
		}
		if err != nil {
			return registry.Lease{}, err
		}
		return stored(wanted, &record{created: created, modified: revision}, a.session.String()), nil
	case errors.Is(err, rpctypes.ErrLeaseNotFound): // the session has just ended
		a.session, a.claim.Session = session{}, ""
		return registry.Lease{}, errRefused
	case !errors.Is(err, registry.ErrUnavailable):
		return registry.Lease{}, err
	}
	return a.resolve(ctx, wanted, key, value, err)
}

// giveWay removes the record that was just written at a revision, and returns errRefused, if another host has one of
// its subnets under another key: a host that runs flannel chooses the subnets of the families independently, and may
// have written its record since the view. That host does not look again, so this one does.
func (a *acquisition) giveWay(ctx context.Context, wanted registry.Lease, revision uint64) error {
	if len(wanted.Subnets) == 1 {
		return nil
	}
	prefix, key := a.conn.keys.leases(a.network.Name), a.conn.keys.lease(a.network.Name, wanted.Subnets)
	since, err := a.conn.do(ctx, clientv3.OpGet(prefix, clientv3.WithPrefix(),
		clientv3.WithMinModRev(int64(a.tree.Revision)+1), clientv3.WithKeysOnly()))
	if err != nil {
		return registry.Wrap(err, "read %s", prefix)
	}
	isWanted := func(p netip.Prefix) bool { return slices.Contains(wanted.Subnets, p) }
	for _, kv := range since.Get().Kvs {
		subnets, err := flannel.ParseSubnetKey(string(kv.Key)[len(prefix):])
		if err != nil || string(kv.Key) == key || !slices.ContainsFunc(subnets, isWanted) {
			continue
		}
		a.conn.logger.Info("slot given up, another host has taken a subnet of it", "network", wanted.Network,
			"subnets", wanted.Subnets, "key", string(kv.Key))
		_, err = a.conn.transact(ctx, []clientv3.Cmp{unchanged(key, revision)}, clientv3.OpDelete(key))
		if err != nil {
			return err
		}
		return errRefused
	}
	return nil
}

// confirm returns errRefused if a record has changed since it was read.
func (a *acquisition) confirm(ctx context.Context, before *record) error {
	now, err := a.conn.get(ctx, before.key)
	if err == nil && (now == nil || !now.Same(before)) {
		err = errRefused
	}
	return err
}

// checkUsable returns an error if this host would be the first to use a subnet that hosts with flannel cannot reach. A
// host that uses the subnet already only warns, because its packets to and from hosts with leno must not stop.
func (a *acquisition) checkUsable(wanted registry.Lease, choice registry.Choice) error {
	reason := flannel.WhyIgnored(wanted)
	switch {
	case reason == "":
		return nil
	case choice.Own || a.claim.TakesBack(wanted.Subnet()):
		a.conn.logger.Warn("lease is of no use to hosts with flannel",
			"network", wanted.Network, "subnet", wanted.Subnet(), "reason", reason)
		return nil
	}
	return registry.InvalidRecord(reason)
}

// checkPositions returns an error if flannel gave this host subnets at different positions of their pools, one of which
// the host would lose. A reservation for the host says that its operator accepts that.
func (a *acquisition) checkPositions(s situation) error {
	isFor := func(r registry.Reservation) bool { return r.For(a.claim) }
	if s.former == nil || a.claim.TakesBack(s.former.Subnet()) || slices.ContainsFunc(s.Reservations, isFor) {
		return nil
	}
	return fmt.Errorf("%w: flannel gave this host %s and %s, and leno gives a host the same position in both pools: "+
		"the containers here would lose their IPv6 subnet; `leno flannel adopt -renumber-ipv6` accepts that",
		registry.ErrInvalid, s.former.Subnets[0], s.former.Subnets[1])
}

// flannelReservation returns the record of a reservation for this host if it takes over a subnet that was reserved for
// it in flannel's way, by a lease that never ends; nil otherwise. The host's own record ends with the host.
func (a *acquisition) flannelReservation(before *record, s situation, choice registry.Choice) []byte {
	if before == nil || before.lease != 0 || !choice.Own {
		return nil
	}
	if _, foreign, _ := flannel.ParseLease(a.network, path.Base(before.key), before.value); !foreign {
		return nil
	}
	subnet := a.network.Plan.Subnets(choice.Slot)[0]
	for _, r := range s.Reservations {
		if r.For(a.claim) || r.Slot == choice.Slot {
			return nil
		}
	}
	value, err := registry.FormatReservation(registry.Reservation{
		Network: a.network.Name,
		Slot:    choice.Slot,
		Subnet:  subnet,
		Node:    a.claim.Node,
	})
	if err != nil {
		return nil // the host has its subnet all the same
	}
	return value
}

// resolve finds out whether a transaction that failed has taken place. If not, it may still be in progress; the next
// attempt writes the session's key too, so that at most one of them takes place.
func (a *acquisition) resolve(ctx context.Context, wanted registry.Lease, key string, value []byte, failure error) (
	registry.Lease, error) {
	r, err := a.conn.get(ctx, key)
	switch {
	case err != nil:
		return registry.Lease{}, fmt.Errorf("write %s: %w", key, failure)
	case r != nil && r.lease == a.session.kept && bytes.Equal(r.value, value):
		if r.created == r.modified {
			if err := a.giveWay(ctx, wanted, r.modified); err != nil {
				return registry.Lease{}, err
			}
		}
		return stored(wanted, r, a.session.String()), nil
	}
	return registry.Lease{}, errRefused
}

// adopt keeps a session of this host alive and uses it, if it fits the claim.
func (a *acquisition) adopt(ctx context.Context, s session) (fits bool, err error) {
	fits, err = a.conn.sessions.fits(ctx, s, a.claim)
	if err != nil || !fits {
		if !slices.Contains(a.replaced, s) {
			a.replaced = append(a.replaced, s)
		}
		return false, err
	}
	if err := a.conn.sessions.renew(ctx, s); errors.Is(err, registry.ErrLeaseLost) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	a.session = s
	return true, nil
}

// ensureSession provides a session for a new record: the one of an earlier process if it is alive, or a new one. made
// is the revision at which the network's marker was created.
func (a *acquisition) ensureSession(ctx context.Context, made uint64) error {
	if a.session != (session{}) {
		return nil
	}
	if s, ok := parseSession(a.claim.Session); ok {
		if fits, err := a.adopt(ctx, s); fits || err != nil {
			return err
		}
	}
	s, version, err := a.conn.sessions.create(ctx, a.network.Name, a.claim, made)
	if err != nil {
		return err
	}
	a.session, a.version, a.created = s, version, append(a.created, s)
	return nil
}

// Drop implements claim.Steps.
func (a *acquisition) Drop(ctx context.Context, other, _ registry.Lease) {
	a.conn.dropSurplus(ctx, other)
	if s, ok := parseSession(other.Session); ok && s != a.session {
		a.conn.sessions.discard(ctx, s)
	}
}

// dropSurplus removes another lease of this host, if the conditions hold.
func (c *connection) dropSurplus(ctx context.Context, other registry.Lease, conditions ...clientv3.Cmp) {
	key := c.keys.lease(other.Network, other.Subnets)
	conditions = append(conditions, unchanged(key, other.ModifyIndex))
	_, err := c.transact(ctx, conditions, clientv3.OpDelete(key))
	c.logger.Warn("second lease of this host removed",
		"network", other.Network, "subnet", other.Subnet(), "error", err)
}

// dropSecond removes a second lease of the session of a lease that was just renewed. It was left by a claim whose
// outcome was not known and that took effect late: after another claim had found the lease as it should be. The records
// are those that are known anyway.
func (c *connection) dropSecond(ctx context.Context, l registry.Lease, s session) {
	t := c.mirror.Followed()
	if t == nil || c.claims.Load() > 0 { // a claim in progress may be about to replace the lease by the other one
		return
	}
	own := t.Get(c.keys.lease(l.Network, l.Subnets))
	if own == nil || own.modified != l.ModifyIndex {
		return
	}
	for _, r := range t.Records {
		if r.lease != s.kept || r == own {
			continue
		}
		if other, ok := c.anyLease(t, r); ok && other.Network == l.Network {
			c.dropSurplus(ctx, other, unchanged(own.key, own.modified))
		}
	}
}

// record returns the claim's lease on slot and the value of its record.
func (a *acquisition) record(slot uint64) (registry.Lease, []byte, error) {
	l := claims.Lease(a.network, a.claim, slot)
	value, err := flannel.FormatLease(a.network, l)
	if err != nil {
		return l, nil, err
	}
	// Other hosts check the record with the same rules: failing here is better than being skipped.
	l, _, err = flannel.ParseLease(a.network, flannel.SubnetKey(l.Subnets), value)
	return l, value, err
}
