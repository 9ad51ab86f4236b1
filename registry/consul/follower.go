package consul

import (
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
	"github.com/lenonet/leno/registry/consul/changelog"
	"github.com/lenonet/leno/registry/consul/keys"
)

// follower follows the leases of one network. It has no goroutine: every call of WatchLeases runs the loop (watch) and
// makes the requests under its own token (kv), and all calls share what they learn.
//
// A lease takes this way from Consul to the caller, one file after the other:
//
//	watch.go        WatchLeases: the call
//	followers.go    finds the network's follower
//	loop.go         the loop: waits for changes, an audit or a lost record's end, and decides what to read
//	audit.go        now and then compares the leases with the directory, publishes manual edits, trims the directory
//	readall.go      reads all leases when the directory does not tell what happened
//	advance.go      follows the directory to a reading, and checks what its entries say
//	directory.go    the requests that read the directory
//	changelog/      the directory's format, and the rules for following it
//	follower.go     what is known of the network, and its lock
//	judge.go        turns answers into observations for the belief, which decides: package belief
type follower struct {
	leases  string        // prefix of the leases' keys, with a trailing slash
	changes string        // prefix of the directory of changes
	settle  *atomic.Int64 // Config.Settle, a time.Duration

	failed    atomic.Bool  // the last call returned an error
	confirmed atomic.Int64 // when Consul last confirmed the known state, Unix nanoseconds; 0 for never

	lapses registry.LapseClock // has its own lock

	// mu guards the fields below. It is held while a list is read, so an index lower than the last one is caused by the
	// store.
	mu       *semaphore.Weighted // of 1: a caller waits for it no longer than its context
	network  registry.Network    // whose plan the records are parsed with
	belief   belief.Belief
	evidence evidence
	cursor   changelog.Cursor
	schedule schedule
}

// schedule is what a follower has planned.
type schedule struct {
	notBefore time.Time // no call asks for changes before this time
	audit     time.Time // when to compare all leases with the known state, zero before the first round
	failures  int       // how often in a row the directory could not be followed at all
}

func newFollower(l keys.Layout, network string, settle *atomic.Int64) *follower {
	return &follower{
		leases:  l.Leases(network),
		changes: l.Changes(network),
		settle:  settle,
		mu:      semaphore.NewWeighted(1),
		cursor:  changelog.NewCursor(l.Changes(network)),
	}
}

// longestAudit limits the time between two audits of one host.
const longestAudit = 2 * time.Hour

// auditPeriod returns the average time between two audits of this host, so that all hosts of the network take turns.
func (f *follower) auditPeriod(kv *kv) time.Duration {
	return min(kv.conf.Audit*time.Duration(max(f.belief.Usable(), 1)), longestAudit)
}
