package report

import (
	"errors"
	"sync"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
)

// A File is something that a host writes down for its next process.
type File string

// The files.
const (
	LeaseFile File = "lease"
	PeersFile File = "peers"
)

// fileWrites holds why files could not be written, by file.
type fileWrites struct {
	mu      sync.Mutex
	failing map[File]error
}

// set records the result of a write and returns the errors of all files.
func (w *fileWrites) set(file File, err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failing == nil {
		w.failing = map[File]error{}
	}
	w.failing[file] = err
	return errors.Join(w.failing[LeaseFile], w.failing[PeersFile])
}

// Written sets the check of the files that this host keeps for its next process, after a write that ended with err.
// Nothing waits for these files, packets least of all.
func (r *Reporter) Written(file File, err error) {
	if all := r.files.set(file, err); all != nil {
		r.Failing(health.DataDir, api.Warning, advice.DataDir, all)
		return
	}
	r.Mended(health.DataDir)
	r.Check(health.DataDir, api.Passing, "the state for the next process is saved")
}
