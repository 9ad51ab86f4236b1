package soak

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
)

// A snapshot is the state of the store at one moment.
type snapshot struct {
	data []byte
	at   time.Duration
}

func (r *run) save(ctx context.Context) (s snapshot, err error) {
	s.at = r.now()
	err = r.onLeader(ctx, "save a snapshot", func(ctx context.Context) (err error) {
		s.data, err = r.store.save(ctx)
		return err
	})
	return s, err
}

// restore sets the store back to a snapshot, except for the tokens: a snapshot that was taken while a
// token was revoked does not contain it.
func (r *run) restore(ctx context.Context, why Kind, s snapshot) error {
	r.operator.one.Lock()
	defer r.operator.one.Unlock()
	if !r.hasConsul() { // all servers of etcd are down in between
		calm := r.storm(why)
		defer calm()
	}
	done := r.rewind(Rewind{Why: why, Saved: s.at})
	defer done()
	err := r.onLeader(ctx, "restore a snapshot", func(ctx context.Context) error { return r.store.restore(ctx, s.data) })
	if err != nil {
		return err
	}
	if err := r.setTokens(ctx, 0); err != nil {
		return err
	}
	return r.awaitEveryone(ctx)
}

// empty deletes everything that leno has written.
func (r *run) empty(ctx context.Context, why Kind) error {
	r.operator.one.Lock()
	defer r.operator.one.Unlock()
	done := r.rewind(Rewind{Why: why})
	defer done()
	return r.onLeader(ctx, "delete everything", r.store.deleteAll)
}

// awaitEveryone calls awaitStore for all machines without a fault, and waits for the servers as
// well: a client may switch to another server at any time.
func (r *run) awaitEveryone(ctx context.Context) error {
	return await(ctx, patience, "the store to answer everywhere", func(ctx context.Context) error {
		errs := make([]error, len(r.machines))
		var asking sync.WaitGroup
		for i, s := range r.StoreServers {
			if err := r.store.answers(ctx, i); err != nil {
				return fmt.Errorf("%s: %w", s.About().Name, err)
			}
		}
		if err := r.store.upToDate(ctx); err != nil {
			return err
		}
		for i, m := range r.machines {
			node, _ := m.now()
			if r.silentNow(node) {
				continue
			}
			asking.Go(func() {
				if err := r.store.answersOn(ctx, m); err != nil && !r.silentNow(node) {
					errs[i] = fmt.Errorf("%s: %w", m.Name, err)
				}
			})
		}
		asking.Wait()
		return errors.Join(errs...)
	})
}

// errStore means that the store cannot be repaired.
var errStore = errors.New("there is no way to repair the store")

// repairServers repairs all servers after a fault and waits until they respond. Servers that find no
// leader are killed and started again. If that does not help either, the error is errStore.
func (r *run) repairServers(ctx context.Context) error {
	const tries = 4
	var err error
	for try := range tries {
		var ended []lab.Store
		for _, s := range r.StoreServers {
			if mended := s.Mend(ctx); mended != nil {
				r.trouble("%s: %v", s.About().Name, mended)
			}
			if !s.Process().IsRunning() {
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
		r.trouble("servers of the store do not recover, try %d of %d: %v\n%s", try+1, tries, err, r.diagnose(ctx))
		if try < 2 {
			continue // they may only be slow
		}
		for _, s := range r.StoreServers {
			if err := s.Kill(); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("%w: %w", errStore, err)
}

// diagnose describes the state of each server.
func (r *run) diagnose(ctx context.Context) string {
	var out []string
	for i, s := range r.StoreServers {
		p := s.Process()
		out = append(out, fmt.Sprintf("%s: running %t, %s; the end of its log:\n%s",
			s.About().Name, p.IsRunning(), r.store.diagnose(ctx, i), lastLines(p.Output(), 12)))
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
	if m.token == nil { // the store is not Consul
		return nil
	}
	m.mu.Lock()
	m.revoked += revoke
	m.mu.Unlock()
	tries := 0
	return await(ctx, patience, "the token of "+m.Name+" to be set", func(ctx context.Context) error {
		m.setting.Lock() // otherwise a fault that ends could find the token that another call is about to delete
		defer m.setting.Unlock()
		m.mu.Lock()
		wanted := m.revoked == 0
		m.mu.Unlock()
		tries++ // a server may be dead or cut off at the moment
		return m.putToken(ctx, r.Servers[tries%len(r.Servers)].Client().ACL(), wanted)
	})
}
