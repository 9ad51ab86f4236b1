package etcd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
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

// tag returns the upper half of the ids of the etcd leases that keep sessions of a network alive. The id tells which
// network a session belongs to even when its key is lost.
func (c *connection) tag(network string) clientv3.LeaseID {
	h := fnv.New32a()
	fmt.Fprintf(h, "leno %s\n%s", c.keys.prefix, network)
	return clientv3.LeaseID(h.Sum32()&0x7fffffff) << 32
}

const tagMask = ^clientv3.LeaseID(1<<32 - 1)

// createSession creates a session: its etcd leases and its key.
func (c *connection) createSession(ctx context.Context, network string, claim registry.Claim) (session, error) {
	var s session
	err := c.call(ctx, func(ctx context.Context, api *clientv3.Client) error {
		kept, err := api.Grant(ctx, keptTTL(claim))
		if err != nil {
			return err
		}
		s.kept = kept.ID
		// Etcd's client does not let its callers choose an id.
		leases := etcdserverpb.NewLeaseClient(api.ActiveConnection())
		for {
			request := &etcdserverpb.LeaseGrantRequest{TTL: seconds(claim.TTL), ID: int64(c.tag(network)) | int64(rand.Uint32())}
			alive, err := leases.LeaseGrant(ctx, request)
			if err = rpctypes.Error(err); err == rpctypes.ErrLeaseExist {
				continue
			}
			if err == nil {
				s.alive = clientv3.LeaseID(alive.ID)
			}
			return err
		}
	})
	if err == nil {
		_, err = c.transact(ctx, nil, c.putSession(network, s, claim.Node))
	}
	if err != nil {
		c.end(ctx, s)
	}
	return s, wrap(err, "create session")
}

// putSession writes the key of a session.
func (c *connection) putSession(network string, s session, node string) clientv3.Op {
	value, _ := json.Marshal(sessionValue{node}) // a string always marshals
	return clientv3.OpPut(c.keys.session(network, s.kept), string(value), clientv3.WithLease(s.alive))
}

// renew keeps a session alive. It returns ErrLeaseLost when one of its etcd leases has ended.
func (c *connection) renew(ctx context.Context, s session) error {
	err := c.call(ctx, func(ctx context.Context, api *clientv3.Client) error {
		for _, id := range []clientv3.LeaseID{s.alive, s.kept} {
			if _, err := api.KeepAliveOnce(ctx, id); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return registry.ErrLeaseLost
	}
	return err
}

// fits reports whether a live session can be used unchanged for the claim.
func (c *connection) fits(ctx context.Context, s session, claim registry.Claim) (fits bool, err error) {
	err = c.call(ctx, func(ctx context.Context, api *clientv3.Client) error {
		alive, err := api.TimeToLive(ctx, s.alive)
		if err != nil {
			return err
		}
		kept, err := api.TimeToLive(ctx, s.kept)
		if err != nil {
			return err
		}
		fits = alive.GrantedTTL == seconds(claim.TTL) && kept.GrantedTTL == keptTTL(claim)
		return nil
	})
	return fits, err
}

// revoke ends an etcd lease; keys attached to it are deleted. It is no error if the lease has ended.
func (c *connection) revoke(ctx context.Context, id clientv3.LeaseID) error {
	if id == 0 {
		return nil
	}
	err := c.call(ctx, func(ctx context.Context, api *clientv3.Client) error {
		_, err := api.Revoke(ctx, id)
		return err
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return err
}

// end ends a session that is not needed, even if ctx has ended. If that fails, it ends by itself.
func (c *connection) end(ctx context.Context, s session) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	for _, id := range []clientv3.LeaseID{s.alive, s.kept} {
		if err := c.revoke(ctx, id); err != nil {
			c.logger.Warn("unused etcd lease not revoked, it ends by itself", "id", fmt.Sprintf("%x", int64(id)), "error", err)
		}
	}
}

// keyPause is how long a session may be without its key: a host that claims writes the key shortly after it has created
// the session.
const keyPause = 250 * time.Millisecond

// Holders implements registry.Networks. The node of a session whose key is lost is not known, and shown as the id of its
// etcd lease.
func (c *Client) Holders(ctx context.Context, network string) ([]registry.Holder, error) {
	holders, err := c.own.holders(ctx, network)
	isKeyless := func(h registry.Holder) bool { return h.CreateIndex == keyless }
	for end := time.Now().Add(keyPause); err == nil && slices.ContainsFunc(holders, isKeyless) && time.Now().Before(end); {
		before := holders
		if err = sleep(ctx, keyPause/10); err == nil {
			holders, err = c.own.holders(ctx, network)
			holders = slices.DeleteFunc(holders, func(h registry.Holder) bool {
				return isKeyless(h) && !slices.Contains(before, h) // it was created since
			})
		}
	}
	return holders, wrap(err, "list sessions of network %s", network)
}

// keyless is the CreateIndex of a session whose key is lost: it is older than anything in the store.
const keyless = 1

func (c *connection) holders(ctx context.Context, network string) ([]registry.Holder, error) {
	var records []*record
	var ids []clientv3.LeaseStatus
	err := c.call(ctx, func(ctx context.Context, api *clientv3.Client) error {
		leases, err := api.Leases(ctx) // first, so that a session that is created now is not taken for a lost one
		if err != nil {
			return err
		}
		ids = leases.Leases
		resp, err := api.Get(ctx, c.keys.sessions(network), clientv3.WithPrefix())
		if err != nil {
			return err
		}
		for _, kv := range resp.Kvs {
			records = append(records, newRecord(kv))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var out []registry.Holder
	named := map[clientv3.LeaseID]bool{}
	for _, r := range records {
		kept, ok := parseLeaseID(lastComponent(r.key))
		if !ok || r.lease == 0 {
			continue
		}
		named[r.lease] = true
		out = append(out, registry.Holder{Node: nodeOfSession(r), Session: session{r.lease, kept}.String(), CreateIndex: r.created})
	}
	for _, id := range ids {
		if id.ID&tagMask == c.tag(network) && !named[id.ID] {
			name := formatLeaseID(id.ID)
			out = append(out, registry.Holder{Node: "the host of etcd lease " + name, Session: name, CreateIndex: keyless})
		}
	}
	slices.SortFunc(out, func(a, b registry.Holder) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Session, b.Session))
	})
	return out, nil
}

// sleep waits for a time, or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// racePause is the longest pause before a change is tried again.
const racePause = 20 * time.Millisecond

func pause(ctx context.Context) error { return sleep(ctx, rand.N(racePause)) }
