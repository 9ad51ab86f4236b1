package report

import (
	"errors"

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

// Written sets the check of the files that this host keeps for its next process, after a write that ended with err.
// Nothing waits for these files, packets least of all.
func (r *Reporter) Written(file File, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files[file] = err
	if all := errors.Join(r.files[LeaseFile], r.files[PeersFile]); all != nil {
		r.Failing(health.DataDir, api.Warning, advice.DataDir, all)
		return
	}
	r.Recovered(health.DataDir)
	r.Check(health.DataDir, api.Passing, "the state for the next process is saved")
}
