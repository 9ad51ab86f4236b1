package consul

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// The range of session TTLs that Consul accepts.
const (
	minTTL = 10 * time.Second
	maxTTL = 24 * time.Hour
)

// lockDelay is as short as the API can express: it omits 0, which Consul reads as 15 s. A longer delay would keep a
// host from its own slot after its session ended.
const lockDelay = time.Millisecond

// sessionName returns a name that tells people, and a host that forgot its session, which host and network the session
// belongs to.
func (c *Client) sessionName(network, node string) string {
	return c.conf.KVPrefix + "/" + network + "/" + node
}

// Holders implements registry.Networks.
func (c *Client) Holders(ctx context.Context, network string) ([]registry.Holder, error) {
	opts, cancel := c.kv.query(ctx, read{consistent: true})
	defer cancel()
	sessions, _, err := c.api.Session().List(opts)
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", classify(err))
	}
	var out []registry.Holder
	for _, s := range sessions {
		if node, ok := strings.CutPrefix(s.Name, c.sessionName(network, "")); ok && node != "" {
			out = append(out, registry.Holder{Node: node, Session: s.ID, CreateIndex: s.CreateIndex})
		}
	}
	slices.SortFunc(out, func(a, b registry.Holder) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Session, b.Session))
	})
	return out, nil
}

// createSession creates a session for one agent in one network. The session has no checks: with the default check, a
// failure of the node for five seconds would end it.
func (c *Client) createSession(ctx context.Context, network string, claim registry.Claim) (string, error) {
	opts, cancel := c.kv.write(ctx)
	defer cancel()
	id, _, err := c.api.Session().CreateNoChecks(&api.SessionEntry{
		Name:      c.sessionName(network, claim.Node),
		Behavior:  api.SessionBehaviorRelease,
		LockDelay: lockDelay,
		TTL:       claim.TTL.String(),
	}, opts)
	if err != nil {
		return "", fmt.Errorf("create session: %w", classify(err))
	}
	return id, nil
}

// renewSession extends the session by another TTL. The entry is nil when the session has ended. Consul reports that
// with 404, but so does a newly elected leader that has not applied its log yet, so renewSession confirms a 404 with a
// consistent read.
func (c *Client) renewSession(ctx context.Context, id string) (*api.SessionEntry, error) {
	opts, cancel := c.kv.write(ctx)
	defer cancel()
	entry, _, err := c.api.Session().Renew(id, opts)
	if err != nil {
		return nil, fmt.Errorf("renew session %s: %w", id, classify(err))
	}
	if entry == nil {
		if there, err := c.session(ctx, id); err != nil || there != nil {
			return nil, fmt.Errorf("renew session %s: %w", id, cmp.Or(err, uncertain("it was not found, and then it was")))
		}
	}
	return entry, nil
}

// session reads one session consistently and returns nil when there is none.
func (c *Client) session(ctx context.Context, id string) (*api.SessionEntry, error) {
	opts, cancel := c.kv.query(ctx, read{consistent: true})
	defer cancel()
	entry, _, err := c.api.Session().Info(id, opts)
	return entry, classify(err)
}

// destroySession ends a session. If the session has already ended, that is no error.
func (c *Client) destroySession(ctx context.Context, id string) error {
	opts, cancel := c.kv.write(ctx)
	defer cancel()
	if _, err := c.api.Session().Destroy(id, opts); err != nil {
		return fmt.Errorf("destroy session %s: %w", id, classify(err))
	}
	return nil
}

// discardSession ends a session that holds no lock, even if ctx has ended. If that fails, the session expires within
// twice its TTL.
func (c *Client) discardSession(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := c.destroySession(ctx, id); err != nil {
		c.logger.Warn("unused consul session not destroyed", "session", id, "error", err)
	}
}

// fits reports whether a live session can be used unchanged for the claim.
func fits(entry *api.SessionEntry, claim registry.Claim) bool {
	ttl, err := time.ParseDuration(entry.TTL)
	return err == nil && ttl == claim.TTL && entry.Behavior == api.SessionBehaviorRelease && len(entry.NodeChecks) == 0
}
