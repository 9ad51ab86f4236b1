package network

import (
	"context"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// pollEvery is how often a file is examined that cannot be watched. With the pause before a repair, a subnet file is
	// back within a second.
	pollEvery = time.Second - subnetFileSettle
	// resyncEvery is how often a file is examined that is watched: a file system that is mounted over its directory, or
	// a parent of its directory that is renamed, is not announced.
	resyncEvery = 20 * time.Second
)

// A fileWatch waits for changes of one file, which need not exist. It is for one goroutine.
type fileWatch struct {
	path string
	// open returns a watcher of a directory. An error means that the file is polled for the present.
	open func(dir string) (*fsnotify.Watcher, error)

	watcher *fsnotify.Watcher // nil while the file is polled
}

// WatchDirectory returns a watcher of one directory, which the caller closes.
func WatchDirectory(dir string) (*fsnotify.Watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := w.Add(dir); err != nil {
		_ = w.Close() // it watches nothing
		return nil, err
	}
	return w, nil
}

// wait blocks until the file may have changed, and returns the error of ctx when that ends. announced reports that the
// watch caused the return: a change found after another return was missed by the watch.
func (f *fileWatch) wait(ctx context.Context) (announced bool, err error) {
	interval := resyncEvery
	if f.watcher == nil {
		if f.watcher, err = f.open(filepath.Dir(f.path)); err == nil {
			return true, ctx.Err() // of what happened before the watch began
		}
		f.watcher, interval = nil, pollEvery
	}
	var events chan fsnotify.Event
	var failures chan error
	if f.watcher != nil {
		events, failures = f.watcher.Events, f.watcher.Errors
	}
	timer := time.NewTimer(interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-timer.C:
			return false, nil
		case <-failures: // events were lost
			f.close()
			return true, nil
		case e, open := <-events:
			if !open || e.Name == filepath.Dir(f.path) { // the directory is gone
				f.close()
				return true, nil
			}
			if e.Name == f.path {
				return true, nil
			}
		}
	}
}

// close ends the watch. The next wait begins another one.
func (f *fileWatch) close() {
	if f.watcher != nil {
		_ = f.watcher.Close() // only its descriptors
		f.watcher = nil
	}
}
