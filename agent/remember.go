package agent

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/registry"
)

// rememberPause is how long after the file was written it may be written again,
// for so many leases: a minute in a network of 10,000 hosts, where it has 5 MB, and
// a second in one of up to 160. A process that stops writes what is new; what one
// that is killed did not write, the next one learns from the store alone.
func rememberPause(leases int) time.Duration {
	return min(max(time.Duration(leases)*6*time.Millisecond, time.Second), time.Minute)
}

// recollection is what an earlier process of this host knew of the others. The kernel
// still has it, and the store may be about to be filled again by hosts that are
// at work, or be set back: so what it lacks at first stays for a while. Within
// one process the registry sees to that.
type recollection struct {
	path    string
	written [sha256.Size]byte // of what is in the file
	created uint64            // of the file's definition
	leases  []registry.Lease
	until   time.Time     // zero before the store was read for the first time
	stays   time.Duration // how long what the store lacks stays
}

// settleTime is how long what a store lacks that was emptied or set back is kept:
// longer than any session in it can live without its host, and than a host may
// wait for one to end before it writes its own lease.
func settleTime(l config.Lease) time.Duration { return 3 * l.TTL }

// remember reads the file. One that is missing or broken is no memory.
func remember(dataDir string, n registry.Network, stays time.Duration) *recollection {
	m := &recollection{path: state.PeersPath(dataDir, n.Name), stays: stays}
	if file, err := state.LoadPeers(dataDir, n.Name); err == nil {
		m.written, m.created, m.leases = file.Sum, file.Created, file.ParseLeases(n)
	}
	return m
}

// recall returns the leases that the store had when they were read, completed with the remembered leases that it lacks
// or has in an older version, and until when those stay; the zero time if there are none. A record in the store about
// the same host, slot, name or address counts unless it is older. The remembered leases go when the store was read
// after that time: by then the other hosts have written theirs again.
func (m *recollection) recall(n registry.Network, leases []registry.Lease, read time.Time) (all []registry.Lease, until time.Time) {
	if len(m.leases) == 0 {
		return leases, time.Time{}
	}
	if m.until.IsZero() {
		m.until = read.Add(m.stays)
	}
	if !read.Before(m.until) {
		m.leases = nil
		return leases, time.Time{}
	}
	newest := map[any]uint64{} // version of what the store has about a slot, host, name or address
	for _, l := range leases {
		for _, about := range subjects(l) {
			version := l.ModifyIndex
			if !l.Held() && about != any(l.Slot) {
				version = l.CreateIndex // that it lapsed later says nothing of where its host is
			}
			newest[about] = max(newest[about], version)
		}
	}
	replaced := map[any]bool{}
	var lacking []registry.Lease
	for _, l := range m.leases {
		if slices.ContainsFunc(subjects(l), func(about any) bool {
			version, known := newest[about]
			return known && (m.created != n.CreateIndex || version >= l.ModifyIndex)
		}) {
			continue
		}
		lacking, until = append(lacking, l), m.until
		for _, about := range subjects(l) {
			replaced[about] = true
		}
	}
	m.leases = lacking // the store knows the others, and what becomes of them
	for _, l := range leases {
		if !slices.ContainsFunc(subjects(l), func(about any) bool { return replaced[about] }) {
			all = append(all, l)
		}
	}
	return append(all, lacking...), until
}

// subjects is what a lease is about, and no other live host's can be.
func subjects(l registry.Lease) []any {
	type id string
	type name string
	out := []any{l.Slot, id(l.NodeID), name(l.Node)}
	for _, a := range l.PublicIPs {
		out = append(out, a)
	}
	return out
}

// keep writes the leases down when they are others than before.
func (m *recollection) keep(n registry.Network, leases []registry.Lease, own registry.Lease) error {
	definition, err := registry.FormatNetwork(n)
	if err != nil {
		return fmt.Errorf("remember the network: %w", err)
	}
	now := state.Peers{Version: registry.Version, Network: n.Name, Created: n.CreateIndex, Definition: definition, Leases: []state.PeerLease{}}
	for _, l := range leases {
		if l.NodeID == own.NodeID || l.Slot == own.Slot {
			continue
		}
		record, err := registry.FormatLease(l)
		if err != nil {
			return fmt.Errorf("remember the lease of %s: %w", l.Node, err)
		}
		now.Leases = append(now.Leases, state.PeerLease{Key: registry.SubnetKey(l.Subnet()), Record: record, Held: l.Held(),
			CreateIndex: l.CreateIndex, ModifyIndex: l.ModifyIndex})
	}
	data, err := json.Marshal(now)
	if err != nil {
		return fmt.Errorf("remember the peers: %w", err)
	}
	sum := sha256.Sum256(data)
	if sum == m.written {
		return nil
	}
	if err := state.WriteFile(m.path, data, 0o600); err != nil {
		return fmt.Errorf("remember the peers: %w", err)
	}
	m.written = sum
	return nil
}

// remember is what an earlier process knew, when this is the first round of this
// one.
func (r *runner) remember(n registry.Network) *recollection {
	m := remember(r.config.DataDir, n, settleTime(r.config.Lease))
	if r.recalled {
		m.leases = nil
	}
	r.recalled = true
	return m
}

// recall returns the leases that the datapath is made of, and a channel that fires when the leases must be read again,
// because those that the store lacks may go.
func (r *runner) recall(m *recollection, n registry.Network, snap snapshot) ([]registry.Lease, <-chan time.Time) {
	first := m.until.IsZero()
	all, until := m.recall(n, snap.set.Leases, snap.read)
	if until.IsZero() {
		return all, nil
	}
	if first {
		r.log.Info("peers that the store lacks stay until it has settled", "until", until.UTC().Format(time.RFC3339))
	}
	return all, time.After(max(time.Until(until), freshEvery))
}

// rememberPeers writes the leases down and says whether it could.
func (r *runner) rememberPeers(m *recollection, n registry.Network, leases []registry.Lease, own registry.Lease) bool {
	err := m.keep(n, leases, own)
	r.writtenDown(wrotePeers, err)
	return err == nil
}
