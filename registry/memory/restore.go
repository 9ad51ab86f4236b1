package memory

import (
	"maps"
	"time"
)

// Backup is the content of a store at one moment.
type Backup struct {
	records  map[string]record
	sessions map[string]session
	dirs     map[string]uint64
	index    uint64
}

// Backup returns the current content of the store.
func (s *Store) Backup() Backup {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLocked(time.Now())
	return Backup{maps.Clone(s.records), maps.Clone(s.sessions), maps.Clone(s.dirs), s.index}
}

// Restore sets the store back, like restoring a snapshot of Consul: records have the indexes they had, and sessions
// live again for their whole time. The next write gets an index above all that ever existed in s or in the backup. A
// New store in which the backup of another store is restored is a new cluster.
func (s *Store) Restore(b Backup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records, s.sessions, s.dirs = maps.Clone(b.records), maps.Clone(b.sessions), maps.Clone(b.dirs)
	s.index = max(s.index, b.index)
	for id := range s.sessions {
		s.renewLocked(id)
	}
	s.setBack++
	close(s.changed)
	s.changed = make(chan struct{})
}
