// Package doctor judges a host: what is wrong with it, with its part in each
// network and with the ways to the other hosts, and what to do about it.
//
// Facts are a value that somebody gathered; Judge is pure and turns them into
// findings. What is gathered here of the kernel, by the functions of look_linux.go,
// changes nothing. The package knows neither the agent nor the store: whoever asks
// puts their part into the facts.
package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lenonet/leno/api"
)

// The checks, causes before what may follow from them. Findings of one status
// come in this order.
func checks() []string {
	return []string{CheckAgent, CheckConfig, CheckRights, CheckModule, CheckConsul, CheckACL, CheckOverlap, CheckConflict, CheckPublicIP,
		CheckNetwork, CheckUnderlay, CheckLease, CheckDevice, CheckRoutes, CheckRecord, CheckForwarding, CheckRules, CheckReversePath, CheckPort, CheckPathMTU,
		CheckChecksum, CheckPeers}
}

// What is looked at. What else the agent's own health says goes by the name it has
// there.
const (
	CheckAgent       = "agent"      // one runs and answers
	CheckConfig      = "config"     // its files can be used
	CheckRights      = "rights"     // it may change the host's network
	CheckModule      = "module"     // the kernel has what the backend needs
	CheckConsul      = "consul"     // answers
	CheckACL         = "acl"        // lets the agent do what it must
	CheckOverlap     = "overlap"    // of pools with each other and the host's own routes
	CheckConflict    = "conflict"   // nobody passes for this host
	CheckPublicIP    = "public_ip"  // leads to this host, and to nobody else
	CheckNetwork     = "network"    // its definition can be used
	CheckUnderlay    = "underlay"   // there is one
	CheckLease       = "lease"      // its session lives
	CheckDevice      = "device"     // is there and up
	CheckRoutes      = "routes"     // lead to every peer
	CheckRecord      = "record"     // says what the device is
	CheckForwarding  = "forwarding" // the kernel's switches are on
	CheckRules       = "rules"      // of others let containers' packets pass
	CheckReversePath = "rp_filter"  // takes what comes for what it is
	CheckPort        = "port"       // the carrier's, is open both ways
	CheckPathMTU     = "path_mtu"   // the ways carry packets of the full size
	CheckChecksum    = "checksum"   // more than pings arrives
	CheckPeers       = "peers"      // answer
)

// Judge says what the facts come to: every fault, and of what was found well one
// line each. What follows from another finding is not said again.
func Judge(f Facts) []api.Finding {
	v := &verdict{facts: f}
	v.host()
	v.store()
	v.overlaps()
	for _, n := range f.Networks {
		v.network(n)
	}
	v.sort()
	return v.list
}

// sort puts the worst first, and causes before what may follow from them.
func (v *verdict) sort() {
	order := checks()
	rank := func(check string) int {
		if i := slices.Index(order, check); i >= 0 {
			return i
		}
		return len(order)
	}
	statuses := []string{api.FindingFault, api.FindingWarning, api.FindingUnknown, api.FindingOK}
	slices.SortStableFunc(v.list, func(a, b api.Finding) int {
		return cmp.Or(cmp.Compare(slices.Index(statuses, a.Status), slices.Index(statuses, b.Status)), cmp.Compare(rank(a.Check), rank(b.Check)))
	})
}

// verdict is one judgement under way.
type verdict struct {
	facts Facts
	list  []api.Finding
}

func (v *verdict) add(f api.Finding) { v.list = append(v.list, f) }

// found says whether there is a fault of one of the checks, in the network or of
// the whole host.
func (v *verdict) found(network string, checks ...string) bool {
	return slices.ContainsFunc(v.list, func(f api.Finding) bool {
		return f.Status == api.FindingFault && (f.Network == network || f.Network == "") && slices.Contains(checks, f.Check)
	})
}

func fault(check, network, peer, tried, saw, do string) api.Finding {
	return api.Finding{Check: check, Status: api.FindingFault, Network: network, Peer: peer, Tried: tried, Saw: saw, Do: do}
}

func well(check, network, tried, format string, args ...any) api.Finding {
	return api.Finding{Check: check, Status: api.FindingOK, Network: network, Tried: tried, Saw: fmt.Sprintf(format, args...)}
}

func unknown(check, network, tried, saw, do string) api.Finding {
	return api.Finding{Check: check, Status: api.FindingUnknown, Network: network, Tried: tried, Saw: saw, Do: do}
}

func warning(check, network, peer, tried, saw, do string) api.Finding {
	return api.Finding{Check: check, Status: api.FindingWarning, Network: network, Peer: peer, Tried: tried, Saw: saw, Do: do}
}

// joined are things as text: "a, b and c".
func joined[T fmt.Stringer](list []T) string {
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = v.String()
	}
	return and(words)
}

func and(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}
