package consul

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/catalog"
	"github.com/lenonet/leno/registry/consul/transport"
)

// The range of session TTLs that Consul accepts.
const (
	minTTL = 10 * time.Second
	maxTTL = 24 * time.Hour
)

// lockDelay is as short as the API can express: it omits 0, which Consul reads as 15 s. A longer delay would keep a
// host from its own slot after its session ended.
const lockDelay = time.Millisecond

// cleanupTimeout limits the cleanup after an error, which runs on its own context.
const cleanupTimeout = 10 * time.Second

// sessionStore makes requests about the sessions of hosts.
type sessionStore struct {
	kv    *kv
	agent catalog.Agent
}

// list returns all sessions that the token may see, and whether these are all sessions.
func (ss sessionStore) list(ctx context.Context) (entries []*api.SessionEntry, all bool, err error) {
	opts, cancel := ss.kv.query(ctx, read{consistent: true})
	defer cancel()
	entries, meta, err := ss.kv.API.Session().List(opts)
	if err != nil {
		return nil, false, fmt.Errorf("list sessions: %w", transport.Classify(err))
	}
	return entries, !meta.ResultsFilteredByACLs, nil
}

// Holders implements registry.Networks.
func (ss sessionStore) Holders(ctx context.Context, network string) ([]registry.Holder, error) {
	out, _, err := ss.holders(ctx, network)
	return out, err
}

// holders is Holders, and reports whether the token may see all sessions.
func (ss sessionStore) holders(ctx context.Context, network string) (out []registry.Holder, all bool, err error) {
	entries, all, err := ss.list(ctx)
	if err != nil {
		return nil, false, err
	}
	prefix := ss.kv.keys.session(network, "")
	for _, s := range entries {
		if node, ok := strings.CutPrefix(s.Name, prefix); ok && node != "" {
			out = append(out, registry.Holder{Node: node, Session: s.ID, CreateIndex: s.CreateIndex})
		}
	}
	slices.SortFunc(out, func(a, b registry.Holder) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Session, b.Session))
	})
	return out, all, nil
}

// create creates a session for one agent in one network. The session has no checks: with the default check, a failure
// of the node for five seconds would end it.
func (ss sessionStore) create(ctx context.Context, network string, claim registry.Claim) (string, error) {
	opts, cancel := ss.kv.Write(ctx)
	defer cancel()
	id, _, err := ss.kv.API.Session().CreateNoChecks(&api.SessionEntry{
		Name:      ss.kv.keys.session(network, claim.Node),
		Behavior:  api.SessionBehaviorRelease,
		LockDelay: lockDelay,
		TTL:       claim.TTL.String(),
	}, opts)
	if err != nil {
		return "", fmt.Errorf("create session: %w", ss.explain(ctx, claim, err))
	}
	return id, nil
}

// ttlRange matches the TTLs that Consul accepts, in its answer to a session with another one.
var ttlRange = regexp.MustCompile(`Invalid Session TTL .*between \[(\S+)=(\S+)\]`)

// explain returns the error for a session that cannot be created. Consul reports what only an operator can change as an
// internal error.
func (ss sessionStore) explain(ctx context.Context, claim registry.Claim, err error) error {
	if m := ttlRange.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("%w: lease.ttl is %s, and Consul's servers accept %s to %s: set lease.ttl to at least %s on every "+
			"host, or session_ttl_min of Consul's servers to at most %s",
			registry.ErrNotSupported, claim.TTL, m[1], m[2], m[1], claim.TTL)
	}
	wanted := ss.kv.conf.Datacenter
	if wanted == "" || !strings.Contains(err.Error(), "Missing node registration") {
		return transport.Classify(err)
	}
	if self, asked := ss.agent.Self(ctx); asked == nil && self.Datacenter != wanted {
		return fmt.Errorf("%w: consul.datacenter is %q, and this Consul agent is of %q: a session needs an agent of its "+
			"own datacenter: set consul.address to an agent of %[2]s, or remove consul.datacenter",
			registry.ErrNotSupported, wanted, self.Datacenter)
	}
	return transport.Classify(err)
}

// renew extends the session by another TTL. The entry is nil when the session has ended. Consul reports that with 404,
// but so does a newly elected leader that has not applied its log yet, so renew confirms a 404 with a consistent read.
func (ss sessionStore) renew(ctx context.Context, id string) (*api.SessionEntry, error) {
	opts, cancel := ss.kv.Write(ctx)
	defer cancel()
	entry, _, err := ss.kv.API.Session().Renew(id, opts)
	if err != nil {
		return nil, fmt.Errorf("renew session %s: %w", id, transport.Classify(err))
	}
	if entry == nil {
		if there, err := ss.find(ctx, id); err != nil || there != nil {
			err = cmp.Or(err, uncertain("it was not found, and then it was"))
			return nil, fmt.Errorf("renew session %s: %w", id, err)
		}
	}
	return entry, nil
}

// find reads one session consistently and returns nil when there is none.
func (ss sessionStore) find(ctx context.Context, id string) (*api.SessionEntry, error) {
	opts, cancel := ss.kv.query(ctx, read{consistent: true})
	defer cancel()
	entry, _, err := ss.kv.API.Session().Info(id, opts)
	return entry, transport.Classify(err)
}

// destroy ends a session. If the session has already ended, that is no error.
func (ss sessionStore) destroy(ctx context.Context, id string) error {
	opts, cancel := ss.kv.Write(ctx)
	defer cancel()
	if _, err := ss.kv.API.Session().Destroy(id, opts); err != nil {
		return fmt.Errorf("destroy session %s: %w", id, transport.Classify(err))
	}
	return nil
}

// discard ends a session that holds no lock, even if ctx has ended. If that fails, the session expires within twice its
// TTL.
func (ss sessionStore) discard(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := ss.destroy(ctx, id); err != nil {
		ss.kv.logger.Warn("unused consul session not destroyed", "session", id, "error", err)
	}
}

// fits reports whether a live session can be used unchanged for the claim.
func fits(entry *api.SessionEntry, claim registry.Claim) bool {
	ttl, err := time.ParseDuration(entry.TTL)
	return err == nil && ttl == claim.TTL && entry.Behavior == api.SessionBehaviorRelease && len(entry.NodeChecks) == 0
}
