// Package sessions makes requests about the sessions of hosts, which lock the records of their leases.
package sessions

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/catalog"
	"github.com/lenonet/leno/registry/consul/transport"
)

// The range of session TTLs that Consul accepts.
const (
	MinTTL = 10 * time.Second
	MaxTTL = 24 * time.Hour
)

// lockDelay is as short as the API can express: it omits 0, which Consul reads as 15 s. A longer delay would keep a
// host from its own slot after its session ended.
const lockDelay = time.Millisecond

// CleanupTimeout limits the cleanup after an error, which runs on its own context.
const CleanupTimeout = 3 * time.Second

// Store makes the requests.
type Store struct {
	client     *transport.Client
	agent      catalog.Agent
	prefix     string // of names
	datacenter string // in the configuration
	logger     hclog.Logger
}

// New returns a store that makes its requests with a client. The names of sessions begin with prefix.
func New(client *transport.Client, agent catalog.Agent, prefix, datacenter string, logger hclog.Logger) Store {
	return Store{client, agent, prefix, datacenter, logger}
}

// name returns the name of a session, which tells people, and a host that forgot its session, which host and network
// the session belongs to: "leno/default/host-1".
func (s Store) name(network, node string) string { return s.prefix + "/" + network + "/" + node }

// Of returns the network and the host to which a session belongs. It returns false for a session of another program.
func (s Store) Of(entry *api.SessionEntry) (network, node string, ok bool) {
	network, node, ok = strings.Cut(strings.TrimPrefix(entry.Name, s.prefix+"/"), "/")
	return network, node, ok && entry.Name == s.name(network, node)
}

// List returns all sessions that the token may see, and whether these are all sessions.
func (s Store) List(ctx context.Context) (entries []*api.SessionEntry, all bool, err error) {
	opts, cancel := s.client.Query(ctx, transport.Read{Consistent: true})
	defer cancel()
	entries, meta, err := s.client.API.Session().List(opts)
	if err != nil {
		return nil, false, fmt.Errorf("list sessions: %w", transport.Classify(err))
	}
	return entries, !meta.ResultsFilteredByACLs, nil
}

// Holders returns the hosts that have sessions for a network, and whether the token may see all sessions.
func (s Store) Holders(ctx context.Context, network string) (out []registry.Holder, all bool, err error) {
	entries, all, err := s.List(ctx)
	if err != nil {
		return nil, false, err
	}
	for _, entry := range entries {
		if in, node, ok := s.Of(entry); ok && in == network && node != "" {
			out = append(out, registry.Holder{Node: node, Session: entry.ID, CreateIndex: entry.CreateIndex})
		}
	}
	slices.SortFunc(out, func(a, b registry.Holder) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Session, b.Session))
	})
	return out, all, nil
}

// Create creates a session for one agent in one network. The session has no checks: with the default check, a failure
// of the node for five seconds would end it.
func (s Store) Create(ctx context.Context, network string, claim registry.Claim) (string, error) {
	opts, cancel := s.client.Write(ctx)
	defer cancel()
	id, _, err := s.client.API.Session().CreateNoChecks(&api.SessionEntry{
		Name:      s.name(network, claim.Node),
		Behavior:  api.SessionBehaviorRelease,
		LockDelay: lockDelay,
		TTL:       claim.TTL.String(),
	}, opts)
	if err != nil {
		return "", fmt.Errorf("create session: %w", s.explain(ctx, claim, err))
	}
	return id, nil
}

// ttlRange matches the TTLs that Consul accepts, in its answer to a session with another one.
var ttlRange = regexp.MustCompile(`Invalid Session TTL .*between \[(\S+)=(\S+)\]`)

// explain returns the error for a session that cannot be created. Consul reports what only an operator can change as an
// internal error.
func (s Store) explain(ctx context.Context, claim registry.Claim, err error) error {
	if m := ttlRange.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("%w: lease.ttl is %s, and Consul's servers accept %s to %s; set lease.ttl to at least %s on every "+
			"host, or session_ttl_min of Consul's servers to at most %s",
			registry.ErrNotSupported, claim.TTL, m[1], m[2], m[1], claim.TTL)
	}
	wanted := s.datacenter
	if !strings.Contains(err.Error(), "Missing node registration") {
		return transport.Classify(err)
	}
	if self, asked := s.agent.Self(ctx); wanted != "" && asked == nil && self.Datacenter != wanted {
		return fmt.Errorf("%w: consul.datacenter is %q, and this Consul agent is of %q: a session needs an agent of its "+
			"own datacenter; set consul.address to an agent of %[2]s, or remove consul.datacenter",
			registry.ErrNotSupported, wanted, self.Datacenter)
	}
	return fmt.Errorf("%w: the catalog lacks the node of this Consul agent, which registers it soon: %w",
		registry.ErrUncertain, err)
}

// Renew extends the session by another TTL. The entry is nil when the session has ended. Consul reports that with 404,
// but so does a newly elected leader that has not applied its log yet, so Renew confirms a 404 with a consistent read.
func (s Store) Renew(ctx context.Context, id string) (*api.SessionEntry, error) {
	opts, cancel := s.client.Write(ctx)
	defer cancel()
	entry, _, err := s.client.API.Session().Renew(id, opts)
	if err != nil {
		return nil, fmt.Errorf("renew session %s: %w", id, transport.Classify(err))
	}
	if entry == nil {
		read, cancel := s.client.Query(ctx, transport.Read{Consistent: true})
		defer cancel()
		if there, _, err := s.client.API.Session().Info(id, read); err != nil || there != nil {
			err = cmp.Or(transport.Classify(err), transport.Uncertain("it was not found, and then it was"))
			return nil, fmt.Errorf("renew session %s: %w", id, err)
		}
	}
	return entry, nil
}

// Destroy ends a session. If the session has already ended, that is no error.
func (s Store) Destroy(ctx context.Context, id string) error {
	opts, cancel := s.client.Write(ctx)
	defer cancel()
	if _, err := s.client.API.Session().Destroy(id, opts); err != nil {
		return fmt.Errorf("destroy session %s: %w", id, transport.Classify(err))
	}
	return nil
}

// Discard ends a session that holds no lock, even if ctx has ended. If that fails, the session expires within twice its
// TTL.
func (s Store) Discard(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanupTimeout)
	defer cancel()
	if err := s.Destroy(ctx, id); err != nil {
		s.logger.Warn("unused consul session not destroyed", "session", id, "error", err)
	}
}

// Fits reports whether a live session can be used unchanged for the claim.
func Fits(entry *api.SessionEntry, claim registry.Claim) bool {
	ttl, err := time.ParseDuration(entry.TTL)
	return err == nil && ttl == claim.TTL && entry.Behavior == api.SessionBehaviorRelease && len(entry.NodeChecks) == 0
}
