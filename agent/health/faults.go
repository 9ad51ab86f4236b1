package health

import (
	"sync"

	"github.com/hashicorp/go-hclog"
)

// ActiveFaults are the faults that something on this host causes at the moment, by what they affect: the name of a
// check, for example, or a setting. However often an operation is tried, a fault has one line in the log when it begins
// and one when it ends. The zero value is ready, and safe for concurrent use.
type ActiveFaults struct {
	mu    sync.Mutex
	known map[string]bool
}

// Begin adds a fault. It reports whether the fault is new.
func (f *ActiveFaults) Begin(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known == nil {
		f.known = map[string]bool{}
	}
	before := f.known[name]
	f.known[name] = true
	return !before
}

// End removes a fault. It reports whether there was one.
func (f *ActiveFaults) End(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.known[name]
	delete(f.known, name)
	return before
}

// Failing adds a check that fails, and logs it if it is new.
func (f *ActiveFaults) Failing(log hclog.Logger, check, reason string) {
	if f.Begin(check) {
		log.Error("operation failed on this host, retrying", "check", check, "error", reason)
	}
}

// Recovered removes a check that failed, and logs that if there was one.
func (f *ActiveFaults) Recovered(log hclog.Logger, check string) {
	if f.End(check) {
		log.Info("operation works again", "check", check)
	}
}
