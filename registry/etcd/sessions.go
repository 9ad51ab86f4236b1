package etcd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/registry"
)

// Limits of the time to live of a session.
const (
	minTTL = 5 * time.Second
	maxTTL = 24 * time.Hour
)

// cleanupTimeout limits the time to end what is not needed, for a caller whose own context may have ended.
const cleanupTimeout = 5 * time.Second

// seconds returns a time to live as etcd has it, rounded up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// keptTTL returns how long a host's record stays after its last renewal. Flannel's hosts use it for as long.
func keptTTL(claim registry.Claim) int64 { return seconds(claim.TTL) + seconds(claim.Hold) }

// sessionValue is the value of a session's key.
type sessionValue struct {
	Node string `json:"node"`
}

// nodeOfSession returns the node in the record of a session.
func nodeOfSession(r *record) string {
	var v sessionValue
	if err := json.Unmarshal(r.value, &v); err != nil || v.Node == "" {
		return "the host of " + r.key
	}
	return v.Node
}

// sessions makes, renews and ends the sessions that hold the leases of this client's claims, and lists those of all
// hosts.
type sessions struct {
	conn *connection

	mu       sync.Mutex
	unwanted []session // that could not be ended: a claim with one of them may still take effect
}

// tag returns the upper half of the ids of the etcd leases that keep sessions of a network alive. The id tells which
// network a session belongs to even when its key is lost.
func (o *sessions) tag(network string) clientv3.LeaseID {
	h := fnv.New32a()
	fmt.Fprintf(h, "leno %s\n%s", o.conn.keys.prefix, network)
	return clientv3.LeaseID(h.Sum32()&0x7fffffff) << 32
}

const tagMask = ^clientv3.LeaseID(1<<32 - 1)

// The last bits of the id tell with which marker of the network the session was created.
const (
	generationBits = 14
	generationMask = clientv3.LeaseID(1<<generationBits - 1)
)

// generationOf returns these bits for a marker that was created at revision made, 0 for none.
func generationOf(made uint64) clientv3.LeaseID {
	h := fnv.New32a()
	fmt.Fprintln(h, made)
	return clientv3.LeaseID(h.Sum32()) & generationMask
}

// create creates a session: its etcd leases, and its key with the version that it returns. made is the revision at
// which the network's marker was created, 0 for none.
func (o *sessions) create(ctx context.Context, network string, claim registry.Claim, made uint64) (
	s session, version uint64, err error) {
	if s.kept, err = o.conn.grant(ctx, keptTTL(claim)); err != nil {
		return s, 0, registry.Wrap(err, "create session")
	}
	err = o.conn.call(ctx, func(ctx context.Context, api *clientv3.Client) error {
		// Etcd's client does not let its callers choose an id.
		leases := etcdserverpb.NewLeaseClient(api.ActiveConnection())
		for {
			s.alive = o.tag(network) | clientv3.LeaseID(rand.Uint32())&^generationMask | generationOf(made)
			_, err := leases.LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{TTL: seconds(claim.TTL), ID: int64(s.alive)})
			if err = rpctypes.Error(err); err != rpctypes.ErrLeaseExist {
				return err
			}
		}
	})
	if err == nil {
		version, err = o.conn.transact(ctx, nil, o.put(network, s, claim.Node))
	}
	if err != nil {
		o.discard(ctx, s) // other hosts would wait for a session without a record
	}
	return s, version, registry.Wrap(err, "create session")
}

// put writes the key of a session.
func (o *sessions) put(network string, s session, node string) clientv3.Op {
	value, _ := json.Marshal(sessionValue{node}) // a string always marshals
	return clientv3.OpPut(o.conn.keys.session(network, s.kept), string(value), clientv3.WithLease(s.alive))
}

// renew keeps a session alive. It returns ErrLeaseLost when one of its etcd leases has ended.
func (o *sessions) renew(ctx context.Context, s session) error {
	return o.conn.call(ctx, func(ctx context.Context, api *clientv3.Client) error {
		err := keepAlive(ctx, api, s)
		if needsLogin(err) { // a read replaces the token, a stream does not
			if _, err := api.Get(ctx, o.conn.keys.root()); err != nil {
				return err
			}
			err = keepAlive(ctx, api, s)
		}
		return rpctypes.Error(err)
	})
}

// keepAlive renews the etcd leases of a session, that of the record first: if the process ends in between, the record
// still outlives the session by Hold. KeepAliveOnce of etcd's client would try again without a pause.
func keepAlive(ctx context.Context, api *clientv3.Client, s session) error {
	ctx, cancel := context.WithCancel(ctx) // its end ends the stream
	defer cancel()
	stream, err := etcdserverpb.NewLeaseClient(api.ActiveConnection()).LeaseKeepAlive(ctx)
	if err != nil {
		return err
	}
	for _, id := range []clientv3.LeaseID{s.kept, s.alive} {
		// After an EOF, Recv returns the reason.
		if err := stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil && err != io.EOF {
			return err
		}
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		if resp.TTL <= 0 {
			return registry.ErrLeaseLost
		}
	}
	return nil
}

// fits reports whether a live session can be used unchanged for the claim.
func (o *sessions) fits(ctx context.Context, s session, claim registry.Claim) (fits bool, err error) {
	err = o.conn.call(ctx, func(ctx context.Context, api *clientv3.Client) error {
		fits = true
		for id, ttl := range map[clientv3.LeaseID]int64{s.alive: seconds(claim.TTL), s.kept: keptTTL(claim)} {
			lease, err := api.TimeToLive(ctx, id)
			if err != nil {
				return err
			}
			fits = fits && lease.GrantedTTL == ttl
		}
		return nil
	})
	return fits, err
}

// end ends a session.
func (o *sessions) end(ctx context.Context, s session) error {
	if err := o.conn.revoke(ctx, s.kept); err != nil {
		return err
	}
	return o.conn.revoke(ctx, s.alive)
}

// discard ends a session that is not needed, even if ctx has ended, and reports whether it has ended. Otherwise it ends
// by itself.
func (o *sessions) discard(ctx context.Context, s session) (ended bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	err := o.end(ctx, s)
	if err != nil {
		o.conn.logger.Warn("unused session not ended, it ends by itself", "session", s.String(), "error", err)
	}
	return err == nil
}

// drop ends a session of a claim that failed. One that cannot be ended is unwanted.
func (o *sessions) drop(ctx context.Context, s session) {
	if !o.discard(ctx, s) {
		o.mu.Lock()
		o.unwanted = append(o.unwanted, s)
		o.mu.Unlock()
	}
}

func (o *sessions) hasUnwanted() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.unwanted) > 0
}

// endUnwanted ends the sessions of earlier claims whose outcome is not known, so that these claims can have no effect
// any more. A claim that has a record in t has taken place.
func (o *sessions) endUnwanted(ctx context.Context, t *tree) error {
	o.mu.Lock()
	all := slices.Clone(o.unwanted)
	o.mu.Unlock()
	for _, s := range all {
		isAttached := func(r *record) bool { return r.lease == s.kept }
		if !slices.ContainsFunc(t.Records, isAttached) {
			if err := o.end(ctx, s); err != nil {
				return fmt.Errorf("end the session of an earlier claim: %w", err)
			}
		}
		o.mu.Lock()
		o.unwanted = slices.DeleteFunc(o.unwanted, func(u session) bool { return u == s })
		o.mu.Unlock()
	}
	return nil
}

// keyPause is how long a session may be without its key: a host that claims writes the key shortly after it has created
// the session.
const keyPause = 250 * time.Millisecond

// Holders implements registry.Networks. The node of a session whose key is lost is not known, and shown as the id of
// its etcd lease. Etcd 3.4 and 3.6 list the etcd leases for every user.
func (c *Client) Holders(ctx context.Context, network string) ([]registry.Holder, error) {
	holders, err := c.own.sessions.holders(ctx, network)
	isKeyless := func(h registry.Holder) bool { return h.CreateIndex == keyless }
	for end := time.Now().Add(keyPause); err == nil && slices.ContainsFunc(holders, isKeyless) && time.Now().Before(end); {
		before := holders
		if err = registry.Sleep(ctx, keyPause/10); err == nil {
			holders, err = c.own.sessions.holders(ctx, network)
			holders = slices.DeleteFunc(holders, func(h registry.Holder) bool {
				return isKeyless(h) && !slices.Contains(before, h) // it was created since
			})
		}
	}
	return holders, registry.Wrap(err, "list sessions of network %s", network)
}

// keyless is the CreateIndex of a session whose key is lost: it is older than anything in the store.
const keyless = 1

func (o *sessions) holders(ctx context.Context, network string) ([]registry.Holder, error) {
	ids, err := o.ids(ctx, network) // first, so that a session that is created now is not taken for a lost one
	if err != nil {
		return nil, err
	}
	sessions, err := o.conn.list(ctx, o.conn.keys.sessions(network))
	if err != nil {
		return nil, err
	}
	return o.holdersOf(sessions.Records, ids), nil
}

// ids returns the ids of the etcd leases that keep sessions of a network alive.
func (o *sessions) ids(ctx context.Context, network string) (ids []clientv3.LeaseID, err error) {
	err = o.conn.call(ctx, func(ctx context.Context, api *clientv3.Client) error {
		leases, err := api.Leases(ctx)
		if err != nil {
			return err
		}
		for _, l := range leases.Leases {
			if l.ID&tagMask == o.tag(network) {
				ids = append(ids, l.ID)
			}
		}
		return nil
	})
	return ids, err
}

// holdersOf returns the holders of the sessions with the given records, and of those that have an id and no record.
func (o *sessions) holdersOf(sessions []*record, ids []clientv3.LeaseID) (out []registry.Holder) {
	named := map[clientv3.LeaseID]bool{}
	for _, r := range sessions {
		kept, ok := parseLeaseID(path.Base(r.key))
		if !ok || r.lease == 0 {
			continue
		}
		named[r.lease] = true
		out = append(out, registry.Holder{Node: nodeOfSession(r), Session: session{r.lease, kept}.String(),
			CreateIndex: r.created})
	}
	for _, id := range ids {
		if !named[id] {
			name := formatLeaseID(id)
			out = append(out, registry.Holder{Node: "the host of etcd lease " + name, Session: name, CreateIndex: keyless})
		}
	}
	slices.SortFunc(out, func(a, b registry.Holder) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Session, b.Session))
	})
	return out
}
