// Package health collects the health checks of an agent and of its networks.
package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lenonet/leno/api"
)

// The names of the checks. Each check covers one thing that can fail without the others.
const (
	Consul       = "consul"        // the store answers, if it is Consul; see StoreCheck
	Etcd         = "etcd"          // the store answers, if it is etcd
	Kubernetes   = "kubernetes"    // the store answers, if it is Kubernetes
	Node         = "node"          // this host has a usable node name; a check of the agent
	Firewall     = "firewall"      // leno's rules are in place
	Login        = "login"         // the agent can log in to the store; a check of the agent
	Network      = "network"       // the network's definition exists and can be used
	Switch       = "switch"        // the switch to another backend can be ended; only during a switch
	Keys         = "keys"          // the keys can be rotated; only in networks with periodic rotations
	Underlay     = "underlay"      // the device and address that carry traffic between hosts are known
	Lease        = "lease"         // the lease is held and renewed in time
	Conflict     = "conflict"      // no other host has this host's name, address or subnet
	Snapshot     = "snapshot"      // the leases of all hosts are known and recent
	Records      = "records"       // every record in the store can be used
	Device       = "device"        // the network's device exists and has the right settings
	Routes       = "routes"        // routes, neighbours and forwarding entries lead to every peer
	Paths        = "paths"         // packets reach the other hosts
	ForeignRules = "foreign_rules" // no rule of another program blocks containers
	Forwarding   = "forwarding"    // the kernel forwards packets
	SubnetFile   = "subnet_file"   // the subnet file is written
	DataDir      = "data_dir"      // the state that the next process needs is written
)

// Starting is the reason of a check that has no result yet.
const Starting = "starting"

// Names returns the names of all checks in the order in which they are shown. A check comes before those that depend
// on it: an agent that cannot use its state directory does not know its own identity.
func Names() []string {
	return []string{
		DataDir, Node, Consul, Etcd, Kubernetes, Login, Network, Switch, Keys, Underlay, Lease, Conflict, Snapshot, Records,
		Device, Routes, Forwarding, Firewall, ForeignRules, Paths, SubnetFile,
	}
}

// StoreCheck returns the name of the check of a kind of store: Etcd for "etcd", Kubernetes for
// "kubernetes", otherwise Consul.
func StoreCheck(kind string) string {
	switch kind {
	case "etcd":
		return Etcd
	case "kubernetes":
		return Kubernetes
	}
	return Consul
}

// A Board holds the current result of every check. It is safe for concurrent use.
type Board struct {
	now          func() time.Time
	statusChange func(network string, c api.Check)

	mu       sync.Mutex
	agent    []api.Check
	networks []api.NetworkHealth
	changed  chan struct{} // closed and replaced at each change
}

// New returns an empty board. It calls statusChange for each new status, in the order in which they are set, with the
// name of the network, which is "" for the agent's own checks. A check that is Starting has no status yet.
// statusChange may be nil and must not use the board.
func New(now func() time.Time, statusChange func(network string, c api.Check)) *Board {
	return &Board{now: now, statusChange: statusChange, changed: make(chan struct{})}
}

// Set records the result of a check of a network, or of the agent if network is "". It reports whether the status
// changed.
func (b *Board) Set(network, name, status, reason string) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.set(network, name, status, reason)
}

// Update is like Set, and does nothing after Forget.
func (b *Board) Update(network, name, status, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.has(network) {
		b.set(network, name, status, reason)
	}
}

// set is Set; mu is held.
func (b *Board) set(network, name, status, reason string) (changed bool) {
	checks := b.checks(network)
	i := slices.IndexFunc(*checks, func(c api.Check) bool { return c.Name == name })
	if i < 0 {
		*checks = append(*checks, api.Check{Name: name})
		i = len(*checks) - 1
	}
	c := &(*checks)[i]
	if c.Status == status && c.Reason == reason {
		return false
	}
	changed = c.Status != status
	isNew := (changed || c.Reason == Starting) && reason != Starting
	c.Status, c.Reason = status, reason
	if changed {
		c.Since = b.now()
	}
	if isNew && b.statusChange != nil {
		b.statusChange(network, *c)
	}
	b.signal()
	return changed
}

// Resolve removes a check whose fault has ended. It calls statusChange for it as a check that passes, with this reason.
// It does nothing if there is no such check.
func (b *Board) Resolve(network, name, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	checks := b.checks(network)
	isMeant := func(c api.Check) bool { return c.Name == name }
	if slices.ContainsFunc(*checks, isMeant) {
		b.set(network, name, api.Passing, reason)
		*checks = slices.DeleteFunc(*checks, isMeant)
	}
}

// Clear removes a check.
func (b *Board) Clear(network, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if network != "" && !b.has(network) {
		return
	}
	checks := b.checks(network)
	before := len(*checks)
	*checks = slices.DeleteFunc(*checks, func(c api.Check) bool { return c.Name == name })
	if len(*checks) != before {
		b.signal()
	}
}

// SetReady records whether container runtimes can use a network, and reports whether that changed.
func (b *Board) SetReady(network string, ready bool) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.network(network)
	if changed = n.Ready != ready; changed {
		n.Ready = ready
		b.signal()
	}
	return changed
}

// Reset removes all checks of a network, which is not ready then.
func (b *Board) Reset(network string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*b.network(network) = api.NetworkHealth{Network: network}
	b.signal()
}

// Forget removes a network in which the agent no longer takes part.
func (b *Board) Forget(network string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.networks = slices.DeleteFunc(b.networks, func(n api.NetworkHealth) bool { return n.Network == network })
	b.signal()
}

// has reports whether there is an entry of a network; mu is held.
func (b *Board) has(network string) bool {
	return slices.ContainsFunc(b.networks, func(n api.NetworkHealth) bool { return n.Network == network })
}

// checks returns the checks of a network, or of the agent if network is ""; mu is held.
func (b *Board) checks(network string) *[]api.Check {
	if network == "" {
		return &b.agent
	}
	return &b.network(network).Checks
}

// network returns the entry of a network and creates it if necessary; mu is held.
func (b *Board) network(name string) *api.NetworkHealth {
	for i := range b.networks {
		if b.networks[i].Network == name {
			return &b.networks[i]
		}
	}
	b.networks = append(b.networks, api.NetworkHealth{Network: name})
	return &b.networks[len(b.networks)-1]
}

// signal wakes the readers that wait for a change; mu is held.
func (b *Board) signal() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// Report returns all checks, sorted, and a channel that is closed at the next change.
func (b *Board) Report() (report api.Health, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	report = api.Health{Checks: sorted(b.agent), Networks: []api.NetworkHealth{}}
	for _, n := range b.networks {
		n.Checks = sorted(n.Checks)
		n.Status = worst(n.Checks)
		report.Networks = append(report.Networks, n)
	}
	slices.SortFunc(report.Networks, func(a, b api.NetworkHealth) int { return strings.Compare(a.Network, b.Network) })
	return Summarize(report), b.changed
}

// Summarize returns h with the overall status and readiness that follow from its checks and networks.
func Summarize(h api.Health) api.Health {
	h.Status, h.Ready = worst(h.Checks), true
	for _, n := range h.Networks {
		h.Status = worse(h.Status, n.Status)
		h.Ready = h.Ready && n.Ready
	}
	for _, c := range h.Checks {
		if c.Status == api.Critical {
			h.Ready = h.Ready && c.Name != Node && c.Name != Network
		}
	}
	return h
}

// Select returns a report about some networks alone.
func Select(h api.Health, names []string) (api.Health, error) {
	known := []string{}
	for _, n := range h.Networks {
		known = append(known, n.Network)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return h, fmt.Errorf("this host takes no part in network %.80q; its networks: %s",
				name, cmp.Or(strings.Join(known, ", "), "none"))
		}
	}
	h.Networks = slices.DeleteFunc(h.Networks, func(n api.NetworkHealth) bool {
		return !slices.Contains(names, n.Network)
	})
	return Summarize(h), nil
}

// Describe returns one line for each check of h that does not pass, for example "blue routes: no such device", or one
// line that says that all pass.
func Describe(h api.Health) string {
	var lines []string
	add := func(network string, checks []api.Check) {
		for _, c := range checks {
			if c.Status != api.Passing {
				lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s: %s", network, c.Name, c.Reason)))
			}
		}
	}
	add("", h.Checks)
	for _, n := range h.Networks {
		add(n.Network, n.Checks)
	}
	if len(lines) == 0 {
		return "all checks are passing"
	}
	return strings.Join(lines, "\n")
}

// sorted returns a copy of checks in the order of Names.
func sorted(checks []api.Check) []api.Check {
	out, names := append([]api.Check{}, checks...), Names()
	place := func(c api.Check) int { return slices.Index(names, c.Name) }
	slices.SortStableFunc(out, func(a, b api.Check) int { return place(a) - place(b) })
	return out
}

func worst(checks []api.Check) string {
	status := api.Passing
	for _, c := range checks {
		status = worse(status, c.Status)
	}
	return status
}

func worse(a, b string) string {
	if Severity(b) > Severity(a) {
		return b
	}
	return a
}

// Severity returns 0 for passing, 1 for warning, 2 for critical and -1 for any other status.
func Severity(status string) int {
	return slices.Index([]string{api.Passing, api.Warning, api.Critical}, status)
}
