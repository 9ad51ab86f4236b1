package registry

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// Holder is a host that has a session for a network; the session holds the host's lease there.
type Holder struct {
	Node        string
	Session     string
	CreateIndex uint64 // of the session
}

// LostLeases finds the hosts whose leases the store has lost, and makes the claims of other hosts wait until these
// hosts have claimed again. Otherwise a host that remembers no lease would take a subnet that is in use. LostLeases is
// safe for concurrent use. The zero value is ready.
type LostLeases struct {
	mu      sync.Mutex
	waiting map[string]waitingClaim // by network
}

// waitingClaim is a claim that has to wait.
type waitingClaim struct {
	first, last time.Time // of its checks
	made        uint64    // the index at which the tree of leases was created, as of the last check
	lost        time.Time // when the tree was found to have been created again, zero for never
}

// lostLeasesWait is the number of TTLs that a claim waits at most. The session of a host that died has ended by then,
// so the remaining hosts are ones that cannot claim.
const lostLeasesWait = 3

// Check returns an ErrLeasesLost when there are holders whose sessions are older than the network's tree of leases,
// created at index made, and hold none of leases. The claimer itself is not one of them, and does not wait when its
// session is older.
//
// A store that was set back also has no sessions of hosts, so a claimer that saw the loss waits for a TTL: that is how
// long other hosts may take to notice. The claimer has seen the loss when claim.Lost is set, or when the tree was
// created again while its claim waited. made is math.MaxUint64 for a tree that the claim itself has just created.
//
// A claim that does not take a new subnet is not checked: see Choice.TakesNew.
func (w *LostLeases) Check(network string, holders []Holder, leases []Lease, made uint64, claim Claim, now time.Time) error {
	var nodes []string
	for _, h := range holders {
		holds := func(l Lease) bool { return l.Session == h.Session }
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
	c, waits := w.waiting[network]
	switch {
	case !waits || now.Sub(c.last) > 2*claim.TTL: // an earlier claim was given up
		c = waitingClaim{first: now}
	case made != c.made && c.made != math.MaxUint64: // otherwise this claimer created it
		c.lost = now
	}
	c.made, c.last = made, now
	var err error
	switch {
	case len(nodes) == 0 && (now.Before(claim.Lost.Add(claim.TTL)) || now.Before(c.lost.Add(claim.TTL))):
		err = fmt.Errorf("%w: waiting for the other hosts to claim again", ErrLeasesLost)
	case len(nodes) == 0:
		delete(w.waiting, network)
		return nil
	case now.Sub(c.first) <= lostLeasesWait*claim.TTL:
		slices.Sort(nodes)
		err = fmt.Errorf("%w: waiting for %s to claim again", ErrLeasesLost, strings.Join(slices.Compact(nodes), ", "))
	}
	if w.waiting == nil {
		w.waiting = map[string]waitingClaim{}
	}
	w.waiting[network] = c
	return err
}

// Forget removes what is known of the claims in a network, because the network was deleted.
func (w *LostLeases) Forget(network string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, network)
}
