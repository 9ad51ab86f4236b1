package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
)

// A snapshot is the state of Consul at one moment.
type snapshot struct {
	data []byte
	at   time.Duration
}

func (r *run) save(ctx context.Context) (s snapshot, err error) {
	s.at = r.now()
	err = r.onLeader(ctx, "save a snapshot", func(ctx context.Context, leader *api.Client) error {
		reader, _, err := leader.Snapshot().Save((&api.QueryOptions{Token: operatorToken}).WithContext(ctx))
		if err != nil {
			return err
		}
		defer reader.Close()
		s.data, err = io.ReadAll(reader)
		return err
	})
	return s, err
}

// restore sets Consul back to a snapshot, except for the tokens: a snapshot that was taken while a
// token was revoked does not contain it.
func (r *run) restore(ctx context.Context, why Kind, s snapshot) error {
	r.operator.one.Lock()
	defer r.operator.one.Unlock()
	done := r.rewind(Rewind{Why: why, Saved: s.at})
	defer done()
	err := r.onLeader(ctx, "restore a snapshot", func(ctx context.Context, leader *api.Client) error {
		return leader.Snapshot().Restore((&api.WriteOptions{Token: operatorToken}).WithContext(ctx), bytes.NewReader(s.data))
	})
	if err != nil {
		return err
	}
	if err := r.setTokens(ctx, 0); err != nil {
		return err
	}
	return r.awaitEveryone(ctx)
}

// empty deletes everything below leno/.
func (r *run) empty(ctx context.Context, why Kind) error {
	r.operator.one.Lock()
	defer r.operator.one.Unlock()
	done := r.rewind(Rewind{Why: why})
	defer done()
	return r.onLeader(ctx, "delete everything", func(ctx context.Context, leader *api.Client) error {
		_, err := leader.KV().DeleteTree("leno/", (&api.WriteOptions{Token: operatorToken}).WithContext(ctx))
		return err
	})
}

// onLeader calls do with a client of the leading server until it succeeds.
func (r *run) onLeader(ctx context.Context, what string, do func(context.Context, *api.Client) error) error {
	return await(ctx, patience, "Consul to "+what, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		leader, err := r.leader(ctx)
		if err != nil {
			return err
		}
		return do(ctx, r.Servers[leader].Client())
	})
}

// leader returns the index of the leading server. The others may not know yet that they are
// connected again.
func (r *run) leader(ctx context.Context) (int, error) {
	for _, s := range r.Servers {
		addr, err := s.Client().Status().LeaderWithQueryOptions((&api.QueryOptions{}).WithContext(ctx))
		if err != nil || addr == "" {
			continue
		}
		for i, s := range r.Servers {
			if addr == s.Addr.String()+":8300" {
				return i, nil
			}
		}
	}
	return 0, errors.New("no server knows a leader")
}

// awaitEveryone calls awaitStore for all machines without a fault, and waits for the servers as
// well: a client agent may switch to another server at any time.
func (r *run) awaitEveryone(ctx context.Context) error {
	return await(ctx, patience, "the store to answer everywhere", func(ctx context.Context) error {
		errs := make([]error, len(r.machines))
		var asking sync.WaitGroup
		for _, s := range r.Servers {
			if err := asks(ctx, s, operatorToken); err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
		}
		if err := r.upToDate(ctx); err != nil {
			return err
		}
		for i, m := range r.machines {
			node, _ := m.now()
			if r.silentNow(node) {
				continue
			}
			asking.Go(func() {
				if err := m.asksStore(ctx); err != nil && !r.silentNow(node) {
					errs[i] = fmt.Errorf("%s: %w", m.Name, err)
				}
			})
		}
		asking.Wait()
		return errors.Join(errs...)
	})
}

// upToDate returns nil when every server knows what the store contained at the time of the call. A
// server that was away for long must rejoin first and returns stale data until then.
func (r *run) upToDate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var now uint64
	for i, s := range append([]*lab.Consul{r.Servers[0]}, r.Servers...) {
		options := &api.QueryOptions{Token: operatorToken, RequireConsistent: i == 0, AllowStale: i > 0}
		_, meta, err := s.Client().KV().Keys("", "", options.WithContext(ctx))
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", s.Name, err)
		case i == 0:
			now = meta.LastIndex
		case meta.LastIndex < now:
			return fmt.Errorf("%s is at index %d, the store is at %d", s.Name, meta.LastIndex, now)
		}
	}
	return nil
}

// errConsul means that Consul cannot be repaired.
var errConsul = errors.New("there is no way to repair Consul")

// healServers repairs all servers after a fault and waits until they respond. Servers that find no
// leader are killed and started again. If that does not help either, the error is errConsul.
func (r *run) healServers(ctx context.Context) error {
	const tries = 4
	var err error
	for try := range tries {
		var ended []*lab.Consul
		for _, s := range r.Servers {
			if mended := s.Mend(ctx); mended != nil {
				r.trouble("%s: %v", s.Name, mended)
			}
			if !s.Process().Running() {
				ended = append(ended, s)
			}
		}
		// StartAll waits for a minute.
		if err = lab.StartAll(ctx, ended); err == nil {
			err = r.awaitEveryone(ctx)
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		r.trouble("servers of Consul do not recover, try %d of %d: %v\n%s", try+1, tries, err, r.diagnose(ctx))
		if try < 2 {
			continue // they may only be slow
		}
		for _, s := range r.Servers {
			if err := s.Kill(); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("%w: %w", errConsul, err)
}

// diagnose describes the state of each server.
func (r *run) diagnose(ctx context.Context) string {
	var out []string
	for _, s := range r.Servers {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		leader, err := s.Client().Status().LeaderWithQueryOptions((&api.QueryOptions{}).WithContext(ctx))
		cancel()
		out = append(out, fmt.Sprintf("%s: running %t, its leader is %q (%v); the end of its log:\n%s", s.Name, s.Process().Running(), leader, err,
			lastLines(s.Process().Output(), 12)))
	}
	return strings.Join(out, "\n")
}

func (r *run) setTokens(ctx context.Context, revoke int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, m := range r.machines {
		g.Go(func() error { return r.setToken(ctx, m, revoke) })
	}
	return g.Wait()
}

// setToken deletes or restores a machine's token, with the same id. Faults may overlap: the token
// is restored after the last one.
func (r *run) setToken(ctx context.Context, m *machine, revoke int) error {
	m.mu.Lock()
	m.revoked += revoke
	m.mu.Unlock()
	tries := 0
	return await(ctx, patience, "the token of "+m.Name+" to be set", func(ctx context.Context) error {
		m.mu.Lock()
		wanted := m.revoked == 0
		m.mu.Unlock()
		tries++ // a server may be dead or cut off at the moment
		return m.putToken(ctx, r.Servers[tries%len(r.Servers)].Client().ACL(), wanted)
	})
}

func (m *machine) putToken(ctx context.Context, acl *api.ACL, wanted bool) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	write := (&api.WriteOptions{Token: operatorToken}).WithContext(ctx)
	_, _, err := acl.TokenRead(m.token.AccessorID, (&api.QueryOptions{Token: operatorToken, RequireConsistent: true}).WithContext(ctx))
	var answer api.StatusError
	there := err == nil
	if err != nil && (!errors.As(err, &answer) || answer.Code != http.StatusForbidden && answer.Code != http.StatusNotFound) {
		return err
	}
	switch {
	case wanted && !there:
		_, _, err = acl.TokenCreate(&api.ACLToken{
			AccessorID: m.token.AccessorID, SecretID: m.token.SecretID, Description: m.token.Description, Policies: m.token.Policies,
		}, write)
		return err
	case !wanted && there:
		_, err = acl.TokenDelete(m.token.AccessorID, write)
		return err
	}
	return nil
}
