// Package memory implements the registry in one process: for "agent -dev", which needs no Consul, and for tests of
// registry users. It keeps the same keys and values as registry/consul, so records are written, parsed and refused in
// the same way. Sessions, locks, indexes and blocking reads work as in Consul. Nothing is persisted.
package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-uuid"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/claim"
)

// Prefix is the first component of every key.
const Prefix = "leno"

// Store is the state that all clients share. Except for Client, its exported methods bypass the contract: they let
// tests play operators, dying hosts and other programs. All methods are safe for concurrent use.
type Store struct {
	mu       sync.Mutex
	records  map[string]record
	sessions map[string]session
	index    uint64
	dirs     map[string]uint64 // index of the last change in each directory
	revoked  map[string]string // keys whose record Revoke removed, if there is no new one, with the node id it had
	changed  chan struct{}     // closed and replaced on every change
	setBack  uint64            // how often Restore was called
}

type record struct {
	value       []byte
	session     string
	createIndex uint64
	modifyIndex uint64
}

type session struct {
	network, node string
	createIndex   uint64
	ttl           time.Duration
	expires       time.Time
}

// New returns an empty store.
func New() *Store {
	return &Store{
		records:  map[string]record{},
		sessions: map[string]session{},
		index:    1, // 0 asks for an answer at once
		dirs:     map[string]uint64{},
		revoked:  map[string]string{},
		changed:  make(chan struct{}),
	}
}

// Client returns a client with a host's own view of the store.
func (s *Store) Client() *Client {
	return &Client{store: s, clock: &registry.LapseClock{}, lost: &claim.LostLeases{}}
}

// Put writes a value under a whole key and keeps an existing lock, as a plain PUT in Consul does.
func (s *Store) Put(key string, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putLocked(key, value, s.records[key].session)
}

// Delete removes a key, locked or not. It does nothing if the key is absent.
func (s *Store) Delete(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleteLocked(key)
}

// Get returns a value and the session that holds it, "" for none.
func (s *Store) Get(key string) (value []byte, session string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLocked(time.Now())
	r, ok := s.records[key]
	return slices.Clone(r.value), r.session, ok
}

// Keys returns the keys that begin with prefix, sorted.
func (s *Store) Keys(prefix string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keysLocked(prefix)
}

// EndSession ends a session as if its host had died and the session had expired: the records it holds stay and lapse.
func (s *Store) EndSession(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(id)
}

func (s *Store) keysLocked(prefix string) []string {
	var out []string
	for key := range s.records {
		if strings.HasPrefix(key, prefix) {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

// putLocked writes a record under a lock ("" for none). Writing the same record again is no change and wakes no
// watcher.
func (s *Store) putLocked(key string, value []byte, session string) {
	r, ok := s.records[key]
	if ok && r.session == session && string(r.value) == string(value) {
		return
	}
	s.touchLocked(key)
	if !ok {
		r.createIndex = s.index
	}
	delete(s.revoked, key)
	r.value, r.session, r.modifyIndex = slices.Clone(value), session, s.index
	s.records[key] = r
}

func (s *Store) deleteLocked(key string) {
	if _, ok := s.records[key]; ok {
		delete(s.records, key)
		s.touchLocked(key)
	}
}

// touchLocked records a change of key in every directory that contains it, and wakes all watchers.
func (s *Store) touchLocked(key string) {
	s.index++
	for i, c := range key {
		if c == '/' {
			s.dirs[key[:i+1]] = s.index
		}
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// dirLocked returns the index of a directory, which is never 0.
func (s *Store) dirLocked(dir string) uint64 { return max(s.dirs[dir], 1) }

// openLocked returns a live session: the first of ids that is alive, renewed, or a new session with the claim's TTL.
func (s *Store) openLocked(network string, claim registry.Claim, ids ...string) (string, error) {
	for _, id := range ids {
		if s.renewLocked(id) {
			return id, nil
		}
	}
	id, err := uuid.GenerateUUID()
	if err != nil {
		return "", fmt.Errorf("create session: %w", err)
	}
	s.index++
	s.sessions[id] = session{
		network:     network,
		node:        claim.Node,
		createIndex: s.index,
		ttl:         claim.TTL,
		expires:     time.Now().Add(expiry(claim.TTL)),
	}
	return id, nil
}

// expiry returns the time until a session that is not renewed ends: twice the TTL, as in Consul.
func expiry(ttl time.Duration) time.Duration { return 2 * ttl }

func (s *Store) renewLocked(id string) bool {
	open, ok := s.sessions[id]
	if !ok {
		return false
	}
	open.expires = time.Now().Add(expiry(open.ttl))
	s.sessions[id] = open
	return true
}

// endLocked ends a session and unlocks what it held.
func (s *Store) endLocked(id string) {
	if _, ok := s.sessions[id]; !ok {
		return
	}
	delete(s.sessions, id)
	for key, r := range s.records {
		if r.session == id {
			s.putLocked(key, r.value, "")
		}
	}
}

// expireLocked ends the sessions that have expired and returns when the next one expires, if there is any.
func (s *Store) expireLocked(now time.Time) (next time.Time, ok bool) {
	for id, open := range s.sessions {
		switch {
		case !now.Before(open.expires):
			s.endLocked(id)
		case !ok || open.expires.Before(next):
			next, ok = open.expires, true
		}
	}
	return next, ok
}

// do runs f on the store atomically. Nothing here waits, but a caller whose context has ended must not write.
func (s *Store) do(ctx context.Context, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLocked(time.Now())
	return f()
}

// watch runs read until the index it returns differs from after. It also expires sessions while it waits, because there
// may be no other call that does.
func (s *Store) watch(ctx context.Context, after uint64, read func() (uint64, error)) (uint64, error) {
	for {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		s.mu.Lock()
		next, expiring := s.expireLocked(time.Now())
		index, err := read()
		changed := s.changed
		s.mu.Unlock()
		if index != after || errors.Is(err, registry.ErrUncertain) {
			return index, err
		}
		var expired <-chan time.Time
		if expiring {
			expired = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done(): // ends the next round
		case <-changed:
		case <-expired:
		}
	}
}
