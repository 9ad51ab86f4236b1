package claim

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lenonet/leno/registry"
)

// LostLeases finds the hosts whose leases the store has lost, and makes the claims of other hosts wait until these
// hosts have claimed again. Otherwise a host that remembers no lease would take a subnet that is in use. LostLeases is
// safe for concurrent use. The zero value is ready.
type LostLeases struct {
	mu     sync.Mutex
	claims map[string]openClaim // by network
}

// openClaim is a claim that has not succeeded yet.
type openClaim struct {
	last    time.Time // of its attempts
	made    uint64    // the index at which the tree of leases was created, as of the last attempt
	before  uint64    // that of the tree before, as the claim has seen it; 0 for none
	lost    time.Time // when the tree was found to have been created again, zero for never
	waiting time.Time // when it first had to wait for hosts since then, zero for never
}

// lostLeasesWait is the number of TTLs that a claim waits at most. The session of a host that died has ended by then,
// so the remaining hosts are ones that cannot claim.
const lostLeasesWait = 3

// givenUp is how long after its last attempt a claim counts as given up, in addition to two TTLs.
const givenUp = 30 * time.Second

// note notes an attempt to claim a lease, before it is decided whether it can succeed. made is the index at which the
// network's tree of leases was created, or math.MaxUint64 if the attempt itself has just created it. A view that may be
// old, and that shows again the tree which another one has replaced, tells nothing.
func (w *LostLeases) note(network string, made uint64, claim registry.Claim, now time.Time, old bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, open := w.claims[network]
	switch {
	case !open || now.Sub(c.last) > 2*claim.TTL+givenUp:
		c = openClaim{}
	case old && made == c.before:
		made = c.made
	case made != c.made && c.made != math.MaxUint64: // otherwise this claimer created it
		c.lost, c.waiting = now, time.Time{} // all hosts must claim once more, and have as long for it
		c.before = c.made
	}
	c.made, c.last = made, now
	if w.claims == nil {
		w.claims = map[string]openClaim{}
	}
	w.claims[network] = c
}

// check decides on the attempt noted last. It returns an ErrLeasesLost when there are holders whose sessions are older
// than the network's tree of leases, created at index made, and hold none of leases. The claimer itself is not one of
// them, and does not wait when its session is older.
//
// A store that was set back also has no sessions of hosts, so a claimer that saw the loss waits for a TTL: that is how
// long other hosts may take to notice, and to restore the leases of hosts that are away. The wait ends earlier only if
// claim.Known leases are there again. The claimer has seen the loss when claim.Lost is set, or when the tree was
// created again between two attempts of its claim: see note.
//
// A claim that does not take a new subnet is not checked: see registry.Choice.TakesNew.
func (w *LostLeases) check(
	network string, holders []registry.Holder, leases []registry.Lease, made uint64, claim registry.Claim, now time.Time,
) error {
	var nodes []string
	for _, h := range holders {
		holds := func(l registry.Lease) bool { return l.Session == h.Session }
		switch {
		case h.CreateIndex >= made || slices.ContainsFunc(leases, holds):
		case h.Session == claim.Session:
			return nil
		case h.Node != claim.Node:
			nodes = append(nodes, h.Node)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.claims[network]
	if len(nodes) == 0 {
		last := claim.Lost
		if c.lost.After(last) {
			last = c.lost
		}
		isComplete := claim.Known > 0 && len(leases) >= claim.Known && !c.lost.After(claim.Lost)
		if until := last.Add(claim.TTL); now.Before(until) && !isComplete {
			return fmt.Errorf("%w: waiting until %s, so that the other hosts can claim theirs again",
				registry.ErrLeasesLost, until.UTC().Format(time.RFC3339))
		}
		return nil
	}
	if c.waiting.IsZero() {
		c.waiting = now
		if _, open := w.claims[network]; open {
			w.claims[network] = c
		}
	}
	until := c.waiting.Add(lostLeasesWait * claim.TTL)
	if now.After(until) {
		return nil
	}
	slices.Sort(nodes)
	names := strings.Join(slices.Compact(nodes), ", ")
	return fmt.Errorf("%w: waiting for %s to claim again, until %s at the latest",
		registry.ErrLeasesLost, names, until.UTC().Format(time.RFC3339))
}

// Forget ends the open claim in a network: it has succeeded, or the network was deleted.
func (w *LostLeases) Forget(network string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.claims, network)
}
