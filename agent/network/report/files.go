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
	mu      sync.Mutex // also held while the check is set, so that the check shows the last write
	failing map[File]error
}

// Written sets the check of the files that this host keeps for its next process, after a write that ended with err.
// Nothing waits for these files, packets least of all.
func (r *Reporter) Written(file File, err error) {
	r.files.mu.Lock()
	defer r.files.mu.Unlock()
	if r.files.failing == nil {
		r.files.failing = map[File]error{}
	}
	r.files.failing[file] = err
	if all := errors.Join(r.files.failing[LeaseFile], r.files.failing[PeersFile]); all != nil {
		r.Failing(health.DataDir, api.Warning, advice.DataDir, all)
		return
	}
	r.Mended(health.DataDir)
	r.Check(health.DataDir, api.Passing, "the state for the next process is saved")
}
