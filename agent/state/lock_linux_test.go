package state

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/internal/testkit/nstest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestHostIsLocked: one agent a network namespace, whatever its state directory.
func TestHostIsLocked(t *testing.T) {
	here, elsewhere := nstest.New(t), nstest.New(t)
	lock := func(ns *nstest.NS) (unlock func() error, err error) {
		ns.Do(func() { unlock, err = LockHost() })
		return unlock, err
	}
	unlock, err := lock(here)
	must(t, err)
	if _, err := lock(here); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprint("pid ", os.Getpid())) {
		t.Errorf("a second one: %v", err)
	}
	other, err := lock(elsewhere)
	must(t, err)
	must(t, other())
	must(t, unlock())
	unlock, err = lock(here)
	must(t, err)
	must(t, unlock())
}

// TestLockOfADyingAgent: a lock that is given up a moment later, as that of an agent that was killed while it started a
// program, is waited for.
func TestLockOfADyingAgent(t *testing.T) {
	ns, dir := nstest.New(t), t.TempDir()
	for name, lock := range map[string]func() (func() error, error){
		"host":     LockHost,
		"data_dir": func() (func() error, error) { return LockDataDir(dir) },
	} {
		t.Run(name, func(t *testing.T) {
			ns.Do(func() {
				dying, err := lock()
				must(t, err)
				gone := make(chan error, 1)
				time.AfterFunc(5*lockPause, func() { gone <- dying() })
				unlock, err := lock()
				must(t, err)
				must(t, <-gone)
				must(t, unlock())
			})
		})
	}
}

func TestMayRunAgents(t *testing.T) {
	for _, tt := range []struct {
		uid  uint32
		own  int
		want bool
	}{{0, 0, true}, {0, 990, true}, {990, 990, true}, {1000, 0, false}, {1000, 990, false}} {
		if got := MayRunAgents(tt.uid, tt.own); got != tt.want {
			t.Errorf("uid %d, own %d: %v", tt.uid, tt.own, got)
		}
	}
}
