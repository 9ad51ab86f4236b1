package network

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
)

// TestFileWatch checks that each kind of change of a file is announced, and that files beside it are not.
func TestFileWatch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	path, beside := filepath.Join(dir, "n.env"), filepath.Join(dir, "m.env")
	w := fileWatch{path: path, open: WatchDirectory}
	defer w.close()
	write := func(path string) error { return os.WriteFile(path, []byte(time.Now().String()), 0o600) }
	// announced reports whether a wait returns because of the watch within a time.
	announced := func(within time.Duration) bool {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		announced, err := w.wait(ctx)
		return announced && err == nil
	}
	// quiet waits until all announcements so far have been taken.
	quiet := func() {
		for announced(50 * time.Millisecond) {
		}
	}
	must(t, os.Mkdir(dir, 0o700))
	if !announced(time.Minute) {
		t.Error("a new watch does not ask for a look at what was before")
	}
	for _, step := range []struct {
		name string
		do   func() error
		want bool
	}{
		{"another file", func() error { return errors.Join(write(beside), os.Remove(beside)) }, false},
		{"created", func() error { return write(path) }, true},
		{"changed", func() error { return write(path) }, true},
		{"replaced", func() error { return errors.Join(write(beside), os.Rename(beside, path)) }, true},
		{"removed", func() error { return os.Remove(path) }, true},
		{"its directory created again", func() error { return errors.Join(os.Remove(dir), os.Mkdir(dir, 0o700)) }, true},
		{"created there", func() error { return write(path) }, true},
		{"its directory moved", func() error { return errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o700)) }, true},
		{"created in the new one", func() error { return write(path) }, true},
	} {
		quiet()
		must(t, step.do())
		limit := time.Minute
		if !step.want {
			limit = time.Second
		}
		if got := announced(limit); got != step.want {
			t.Errorf("%s: announced %t", step.name, got)
		}
	}
}

// TestFilePolled checks that a file is polled while its directory cannot be watched, and watched as soon
// as it can.
func TestFilePolled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		w := fileWatch{path: "/run/leno/n.env", open: func(dir string) (*fsnotify.Watcher, error) {
			if tries++; tries <= 3 {
				return nil, errors.New(dir)
			}
			return &fsnotify.Watcher{}, nil
		}}
		for i := range 4 {
			began := time.Now()
			announced, err := w.wait(t.Context())
			if took := time.Since(began); err != nil || announced != (i == 3) || took != map[bool]time.Duration{true: 0, false: pollEvery}[i == 3] {
				t.Errorf("try %d returned %t, %v after %s", i, announced, err, took)
			}
		}
		if began := time.Now(); true {
			announced, err := w.wait(t.Context())
			if took := time.Since(began); err != nil || announced || took != resyncEvery {
				t.Errorf("a watched file: %t, %v after %s", announced, err, took)
			}
		}
	})
}
