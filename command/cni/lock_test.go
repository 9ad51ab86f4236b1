package cni

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLockContainer: calls of one container wait for each other, also when one of them removes the lock file, and a call
// that is given up says which file is locked.
func TestLockContainer(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	first, err := lockContainer(ctx, dir, "c1", true)
	must(err)
	other, err := lockContainer(ctx, dir, "c2", false)
	must(err)
	short, cancel := context.WithTimeout(ctx, 3*lockPause)
	defer cancel()
	if _, err := lockContainer(short, dir, "c1", false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("locked twice: %v", err)
	}
	locked := make(chan func())
	go func() {
		unlock, err := lockContainer(ctx, dir, "c1", false)
		if err != nil {
			t.Error(err)
			unlock = func() {}
		}
		locked <- unlock
	}()
	select {
	case <-locked:
		t.Fatal("locked twice")
	case <-time.After(2 * lockPause):
	}
	first()
	(<-locked)()
	names := func() (out []string) {
		files, err := os.ReadDir(lockDir(dir))
		must(err)
		for _, f := range files {
			out = append(out, f.Name())
		}
		return out
	}
	if got := names(); len(got) != 2 {
		t.Errorf("lock files %q", got)
	}
	must(removeLocks(dir))
	if got := names(); len(got) != 1 || got[0] != "c2" {
		t.Errorf("while a call for c2 is at work: %q", got)
	}
	other()
	must(removeLocks(dir, "c2"))
	if got := names(); len(got) != 1 {
		t.Errorf("of a container that is to be kept: %q", got)
	}
	long := strings.Repeat("c", 300)
	unlock, err := lockContainer(ctx, dir, long, false)
	must(err)
	unlock()
	must(removeLocks(dir, long))
	if got := names(); len(got) != 1 {
		t.Errorf("of a container with a long name: %q", got)
	}
	must(removeLocks(dir))
	if got := names(); len(got) != 0 {
		t.Errorf("left behind: %q", got)
	}
}

// TestLockPatience: a call gives up while another one keeps the lock, although the runtime would wait for longer.
func TestLockPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		runtime, cancel := context.WithTimeout(t.Context(), 10*lockPatience)
		defer cancel()
		unlock, err := lockContainer(runtime, dir, "c1", true)
		if err != nil {
			t.Fatal(err)
		}
		defer unlock()
		_, err = lockContainer(runtime, dir, "c1", false)
		if !errors.Is(err, context.DeadlineExceeded) || runtime.Err() != nil {
			t.Errorf("the call: %v, the runtime: %v", err, runtime.Err())
		}
	})
}
