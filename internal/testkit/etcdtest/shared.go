package etcdtest

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/lenonet/leno/internal/testkit/owned"
)

// Shared is a server for all tests of a package that do not harm it. It is started for the first test that needs it.
// The zero value is ready for use. TestMain calls Stop after the tests. Tests that share a server use different
// prefixes for their keys.
type Shared struct {
	Options Options

	once   sync.Once
	server *Server
	dir    *owned.Dir
	err    error
}

// Get returns the server. Several tests may call it at the same time.
func (s *Shared) Get(tb testing.TB) *Server {
	tb.Helper()
	s.once.Do(func() {
		name := filepath.Join(os.TempDir(), "leno-etcd-")
		if s.err = owned.Sweep(name+"*", os.RemoveAll); s.err != nil { // of earlier runs that were killed
			return
		}
		if s.dir, s.err = owned.Make(name + rand.Text()); s.err != nil {
			return
		}
		s.server, s.err = start(s.dir.Path, s.Options)
	})
	if s.err != nil {
		tb.Fatal(s.err)
	}
	return s.server
}

// Stop stops the server, if it was started, and removes its data.
func (s *Shared) Stop() {
	if s.server != nil {
		s.server.kill()
	}
	if s.dir != nil {
		_ = s.dir.Remove() // the next run does
	}
}
