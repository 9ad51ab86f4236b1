// Package doctor diagnoses a host: what is wrong with it, with its part in each network and with the paths to the
// other hosts, and what to do about it.
//
// The caller gathers Facts, and Judge turns them into findings. Judge is pure. The functions of kernel_linux.go read
// facts from the kernel and change nothing. The package knows neither the agent nor the store: the caller adds their
// part of the facts.
package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lenonet/leno/api"
)

// checks returns the checks, causes before what may follow from them. Findings of one status come in this order.
func checks() []string {
	return []string{CheckAgent, CheckConfig, CheckRights, CheckModule, CheckConnections, CheckConsul, CheckEtcd,
		CheckKubernetes, CheckLogin, CheckACL, CheckOverlap,
		CheckConflict, CheckPublicIP,
		CheckNetwork, CheckUnderlay, CheckLease, CheckDevice, CheckRoutes, CheckRecord, CheckForwarding, CheckRules,
		CheckReversePath, CheckPort, CheckPathMTU,
		CheckChecksum, CheckPeers, CheckCNI}
}

// The checks. Other findings, from the agent's own health, keep the name they have there.
const (
	CheckAgent       = "agent"      // an agent runs and answers
	CheckConfig      = "config"     // its files are valid
	CheckRights      = "rights"     // it may change the host's network
	CheckModule      = "module"     // the kernel has what the backend needs
	CheckConnections = "conntrack"  // the kernel's table of connections has room
	CheckConsul      = "consul"     // Consul answers
	CheckEtcd        = "etcd"       // etcd answers
	CheckKubernetes  = "kubernetes" // the API server answers
	CheckLogin       = "login"      // the login gives the agent its token
	CheckACL         = "acl"        // the token allows everything the agent must do
	CheckOverlap     = "overlap"    // pools overlap neither each other, nor the host's own routes, nor public addresses
	CheckConflict    = "conflict"   // no other host uses this host's identity
	CheckPublicIP    = "public_ip"  // the public address leads to this host and to no other
	CheckNetwork     = "network"    // its definition is valid
	CheckUnderlay    = "underlay"   // it has an interface and an address
	CheckLease       = "lease"      // its session lives
	CheckDevice      = "device"     // the device exists and is up
	CheckRoutes      = "routes"     // routes lead to every peer
	CheckRecord      = "record"     // the lease record matches the device
	CheckForwarding  = "forwarding" // the kernel's switches are on
	CheckRules       = "rules"      // other programs' rules let containers' packets pass
	CheckReversePath = "rp_filter"  // the reverse path filter accepts the packets that arrive
	CheckPort        = "port"       // the tunnel's port is open in both directions
	CheckPathMTU     = "path_mtu"   // the paths carry packets of the full size
	CheckChecksum    = "checksum"   // UDP and TCP arrive where pings do
	CheckPeers       = "peers"      // the peers answer
	CheckCNI         = "cni"        // Nomad has a network of leno
)

// Judge returns the findings for the facts: one for every fault, and one for each part that is healthy. It leaves out
// what follows from another finding.
func Judge(f Facts) []api.Finding {
	v := &verdict{facts: f}
	v.judgeHost()
	v.judgeStore()
	v.judgeOverlaps()
	for _, n := range f.Networks {
		v.judgeNetwork(n)
	}
	v.sort()
	return v.list
}

// sort puts the worst findings first, and causes before what may follow from them.
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
		return cmp.Or(cmp.Compare(slices.Index(statuses, a.Status), slices.Index(statuses, b.Status)),
			cmp.Compare(rank(a.Check), rank(b.Check)))
	})
}

// verdict collects the findings of one judgement.
type verdict struct {
	facts Facts
	list  []api.Finding
	// staleRecord means that the record of the network that is judged has another MAC address or key than the device: what
	// the other hosts send is lost, whatever rules allow.
	staleRecord bool
}

// add adds a finding. Each check has a section on one page of the documentation.
func (v *verdict) add(f api.Finding) {
	if f.Status != api.FindingOK {
		f.Docs = "troubleshooting/checks#" + f.Check
	}
	v.list = append(v.list, f)
}

// hasFault reports whether one of the checks has a fault, in the network or for the whole host.
func (v *verdict) hasFault(network string, checks ...string) bool {
	return slices.ContainsFunc(v.list, func(f api.Finding) bool {
		return f.Status == api.FindingFault && (f.Network == network || f.Network == "") && slices.Contains(checks, f.Check)
	})
}

func newFault(check, network, peer, tried, saw, do string) api.Finding {
	return api.Finding{Check: check, Status: api.FindingFault, Network: network, Peer: peer, Tried: tried, Saw: saw,
		Do: do}
}

func newOK(check, network, tried, format string, args ...any) api.Finding {
	return api.Finding{Check: check, Status: api.FindingOK, Network: network, Tried: tried,
		Saw: fmt.Sprintf(format, args...)}
}

func newUnknown(check, network, tried, saw, do string) api.Finding {
	return api.Finding{Check: check, Status: api.FindingUnknown, Network: network, Tried: tried, Saw: saw, Do: do}
}

func newWarning(check, network, peer, tried, saw, do string) api.Finding {
	return api.Finding{Check: check, Status: api.FindingWarning, Network: network, Peer: peer, Tried: tried, Saw: saw,
		Do: do}
}

// joinStrings formats a list as text: "a, b and c".
func joinStrings[T fmt.Stringer](list []T) string {
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = v.String()
	}
	return joinWords(words)
}

func joinWords(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}
