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
	mu    sync.Mutex
	since map[string]time.Time // by network, when the first claim had to wait
	trees map[string]tree      // by network
}

// tree describes a network's tree of leases as seen by a claimer.
type tree struct {
	made uint64    // the index at which it was created, as of the last check of a claim
	lost time.Time // when it was found to have been created again, zero for never
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
// created again since its last claim. made is math.MaxUint64 for a tree that the claim itself has just created.
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
	lost := w.seen(network, made, now)
	if len(nodes) == 0 {
		delete(w.since, network)
		if now.Before(claim.Lost.Add(claim.TTL)) || now.Before(lost.Add(claim.TTL)) {
			return fmt.Errorf("%w: waiting for the other hosts to claim again", ErrLeasesLost)
		}
		return nil
	}
	if w.since == nil {
		w.since = map[string]time.Time{}
	}
	first, waits := w.since[network]
	if !waits {
		first = now
		w.since[network] = now
	}
	if now.Sub(first) > lostLeasesWait*claim.TTL {
		return nil
	}
	slices.Sort(nodes)
	return fmt.Errorf("%w: waiting for %s to claim again", ErrLeasesLost, strings.Join(slices.Compact(nodes), ", "))
}

// seen returns when the network's tree of leases was last found to have been created again; mu is held.
func (w *LostLeases) seen(network string, made uint64, now time.Time) time.Time {
	t, known := w.trees[network]
	if known && made != t.made && t.made != math.MaxUint64 { // otherwise this claimer created it
		t.lost = now
	}
	t.made = made
	if w.trees == nil {
		w.trees = map[string]tree{}
	}
	w.trees[network] = t
	return t.lost
}
