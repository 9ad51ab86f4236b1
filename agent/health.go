package agent

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lenonet/leno/api"
)

// The named checks. Every one stands for something that can be wrong alone.
const (
	checkConsul       = "consul"        // the store answers
	checkNode         = "node"          // this host has a name (of the agent)
	checkFirewall     = "firewall"      // rules are in place
	checkNetwork      = "network"       // the definition is there and usable
	checkUnderlay     = "underlay"      // a device and address between hosts
	checkLease        = "lease"         // held and renewed in time
	checkConflict     = "conflict"      // nobody else has our name, address or subnet
	checkSnapshot     = "snapshot"      // leases of all hosts are known and fresh
	checkRecords      = "records"       // every record could be used
	checkDevice       = "device"        // the network's device is there and as wanted
	checkRoutes       = "routes"        // routes, neighbours and forwarding entries lead to every peer
	checkForeignRules = "foreign_rules" // no rule of another program is in the way
	checkForwarding   = "forwarding"    // the kernel forwards packets
	checkSubnetFile   = "subnet_file"   // written
	checkDataDir      = "data_dir"      // what the next process needs is written down
)

// checkNames are all of them in the order in which they are shown: what others need
// comes first. An agent that cannot use its state directory does not know who it is.
func checkNames() []string {
	return []string{
		checkDataDir, checkNode, checkConsul, checkNetwork, checkUnderlay, checkLease, checkConflict, checkSnapshot, checkRecords,
		checkDevice, checkRoutes, checkForwarding, checkFirewall, checkForeignRules, checkSubnetFile,
	}
}

// health is the board that all parts of an agent write their checks on. Safe
// for concurrent use.
type health struct {
	mu       sync.Mutex
	agent    []api.Check
	networks []api.NetworkHealth
	changed  chan struct{} // closed and replaced at each change
	now      func() time.Time
	flipped  func(network string, c api.Check) // told of each new status, may be nil
}

func newHealth(now func() time.Time) *health {
	return &health{changed: make(chan struct{}), now: now}
}

// set writes one check; network "" is the agent's own. An unchanged check is
// left alone, and set says whether the status changed.
func (h *health) set(network, name, status, reason string) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	checks := &h.agent
	if network != "" {
		checks = &h.network(network).Checks
	}
	i := slices.IndexFunc(*checks, func(c api.Check) bool { return c.Name == name })
	if i < 0 {
		*checks = append(*checks, api.Check{Name: name, Status: status, Reason: reason, Since: h.now()})
		h.tell(network, (*checks)[len(*checks)-1])
		h.signal()
		return true
	}
	c := &(*checks)[i]
	if c.Status == status && c.Reason == reason {
		return false
	}
	changed = c.Status != status
	if changed {
		c.Since = h.now()
	}
	c.Status, c.Reason = status, reason
	if changed {
		h.tell(network, *c)
	}
	h.signal()
	return changed
}

// tell passes a new status on; mu is held.
func (h *health) tell(network string, c api.Check) {
	if h.flipped != nil {
		h.flipped(network, c)
	}
}

// clear takes one check off the board.
func (h *health) clear(network, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	checks := &h.agent
	if network != "" {
		checks = &h.network(network).Checks
	}
	before := len(*checks)
	*checks = slices.DeleteFunc(*checks, func(c api.Check) bool { return c.Name == name })
	if len(*checks) != before {
		h.signal()
	}
}

// ready marks a network as usable by container runtimes, or not, and says whether
// that is news.
func (h *health) ready(network string, ready bool) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.network(network)
	if changed = n.Ready != ready; changed {
		n.Ready = ready
		h.signal()
	}
	return changed
}

// reset takes all checks of a network off the board: nothing of it is there any
// more that they could be about.
func (h *health) reset(network string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	*h.network(network) = api.NetworkHealth{Network: network}
	h.signal()
}

// forget drops a network this agent takes no part in any more.
func (h *health) forget(network string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.networks = slices.DeleteFunc(h.networks, func(n api.NetworkHealth) bool { return n.Network == network })
	h.signal()
}

// network is the entry of one network, made when new; mu is held.
func (h *health) network(name string) *api.NetworkHealth {
	for i := range h.networks {
		if h.networks[i].Network == name {
			return &h.networks[i]
		}
	}
	h.networks = append(h.networks, api.NetworkHealth{Network: name})
	return &h.networks[len(h.networks)-1]
}

func (h *health) signal() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// report is the whole board and a channel that closes at its next change.
func (h *health) report() (api.Health, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := api.Health{Checks: inOrder(h.agent), Networks: []api.NetworkHealth{}}
	for _, n := range h.networks {
		n.Checks = inOrder(n.Checks)
		n.Status = worst(n.Checks)
		out.Networks = append(out.Networks, n)
	}
	slices.SortFunc(out.Networks, func(a, b api.NetworkHealth) int { return strings.Compare(a.Network, b.Network) })
	return summed(out), h.changed
}

// summed is a report with the verdict on all that is in it.
func summed(h api.Health) api.Health {
	h.Status, h.Ready = worst(h.Checks), true
	for _, n := range h.Networks {
		h.Status = worse(h.Status, n.Status)
		h.Ready = h.Ready && n.Ready
	}
	for _, c := range h.Checks {
		if c.Status == api.Critical {
			h.Ready = h.Ready && c.Name != checkNode && c.Name != checkNetwork
		}
	}
	return h
}

// inOrder is a copy in the order of checkNames.
func inOrder(checks []api.Check) []api.Check {
	out, names := append([]api.Check{}, checks...), checkNames()
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
	if severity(b) > severity(a) {
		return b
	}
	return a
}

// severity of a status, 0 the best.
func severity(status string) int {
	return slices.Index([]string{api.Passing, api.Warning, api.Critical}, status)
}
