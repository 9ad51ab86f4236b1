package agent

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/registry"
)

// rememberPause returns how long the file with so many leases is left alone after a write: a minute in a network of
// 10,000 hosts, whose file has 5 MB, and a second in one of up to 160. A process that stops writes the latest leases
// first. If a process is killed before that, the next one learns the missing leases from the store only.
func rememberPause(leases int) time.Duration {
	return min(max(time.Duration(leases)*6*time.Millisecond, time.Second), time.Minute)
}

// recollection holds the leases of other hosts that an earlier process of this host knew. The kernel still has their
// routes. The store may have been set back, or running hosts may be about to fill it again, so leases that are missing
// from the store at first stay in use for a while. Within one process the registry takes care of that.
type recollection struct {
	path    string
	written [sha256.Size]byte // of the content of the file
	created uint64            // the CreateIndex of the definition in the file
	leases  []registry.Lease
	until   time.Time     // zero before the first read of the store
	stays   time.Duration // how long leases that the store lacks stay
}

// settleTime returns how long leases stay that are missing from a store that was emptied or set back. That is longer
// than a session in such a store can live without its host, and longer than a host may wait for such a session to end
// before it writes its own lease.
func settleTime(l config.Lease) time.Duration { return 3 * l.TTL }

// remember reads the file. If it is missing or damaged, the result has no leases.
func remember(dataDir string, n registry.Network, stays time.Duration) *recollection {
	m := &recollection{path: state.PeersPath(dataDir, n.Name), stays: stays}
	if file, err := state.LoadPeers(dataDir, n.Name); err == nil {
		m.written, m.created, m.leases = file.Sum, file.Created, file.ParseLeases(n)
	}
	return m
}

// recall returns leases, which the store had at read, completed with the remembered leases that the store lacks or has
// in an older version, and the time until which those stay, zero if there are none. A record in the store about the
// same host, slot, name or address replaces a remembered lease unless the record is older. The remembered leases are
// dropped when the store has been read after that time, because by then the other hosts have written theirs again.
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
	newest := map[any]uint64{} // of the latest record in the store by slot, host, name or address
	for _, l := range leases {
		for _, about := range subjects(l) {
			version := l.ModifyIndex
			if !l.Held() && about != any(l.Slot) {
				version = l.CreateIndex // a later lapse does not show where its host is
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
	m.leases = lacking // the store has the others, so it decides about them from now on
	for _, l := range leases {
		if !slices.ContainsFunc(subjects(l), func(about any) bool { return replaced[about] }) {
			all = append(all, l)
		}
	}
	return append(all, lacking...), until
}

// subjects returns what a lease is about and no lease of another live host can share: its slot, node id, name and
// addresses.
func subjects(l registry.Lease) []any {
	type id string
	type name string
	out := []any{l.Slot, id(l.NodeID), name(l.Node)}
	for _, a := range l.PublicIPs {
		out = append(out, a)
	}
	return out
}

// keep writes the leases to the file if they differ from its content.
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

// remember returns what an earlier process knew. Only in the first round of this process does the result have leases.
func (r *runner) remember(n registry.Network) *recollection {
	m := remember(r.config.DataDir, n, settleTime(r.config.Lease))
	if r.recalled {
		m.leases = nil
	}
	r.recalled = true
	return m
}

// recall returns the leases for the datapath, and a channel that fires when the leases must be read again because
// remembered leases may then be dropped. The channel is nil if there are none.
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

// rememberPeers writes the leases to the file and reports whether it succeeded.
func (r *runner) rememberPeers(m *recollection, n registry.Network, leases []registry.Lease, own registry.Lease) bool {
	err := m.keep(n, leases, own)
	r.report.Written(report.PeersFile, err)
	return err == nil
}
