package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/plural"
)

const (
	maxNamed    = 5    // hosts that a sentence names
	maxHosts    = 1000 // hosts that a finding lists
	maxFindings = 20   // findings of one kind
)

// Finding is one cause, with all hosts that it is about.
type Finding struct {
	Check   string   `json:"check"`             // one of those below, or a check of the examination
	Status  string   `json:"status"`            // fault, warning or unknown
	Network string   `json:"network,omitempty"` // "" for whole hosts
	Hosts   []string `json:"hosts"`             // names, at most 1,000
	Saw     string   `json:"saw"`               // what is wrong, one sentence
	Do      string   `json:"do,omitempty"`      // how to fix it
	Docs    string   `json:"docs"`              // the section of the documentation about the check: PAGE#ANCHOR
}

// Checks of several hosts together. An examination has others.
const (
	checkPaths   = "paths"
	checkMTU     = "path_mtu"
	checkLoss    = "loss"
	checkMembers = "members"
	checkHealth  = "health"
)

// Merge returns the causes behind what is known of the hosts of a network, the worst first.
func Merge(network string, hosts []Host) []Finding {
	m := newMatrix(hosts)
	lost := m.lostPaths()
	findings := slices.Concat(
		limited(lost, "more findings about lost packets"),
		limited(m.reducedPaths(api.PathShort, checkMTU), "more findings about the MTU"),
		limited(m.reducedPaths(api.PathLossy, checkLoss), "more findings about lossy paths"),
		failedMembers(hosts, lost),
		limited(ownChecks(hosts), "more checks that are not passing"),
	)
	for i := range findings {
		findings[i].Network = network
	}
	findings = append(findings, limited(examined(hosts), "more findings of the hosts' examinations")...)
	for i := range findings {
		findings[i].Docs = "troubleshooting/checks#" + findings[i].Check
	}
	order := []string{api.FindingFault, api.FindingWarning, api.FindingUnknown}
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return slices.Index(order, a.Status) - slices.Index(order, b.Status)
	})
	return findings
}

// limited returns the first findings, and one that counts the rest.
func limited(all []Finding, rest string) []Finding {
	more := len(all) - maxFindings
	if more <= 0 {
		return all
	}
	last := Finding{Check: all[0].Check, Status: all[maxFindings].Status, Hosts: []string{},
		Saw: fmt.Sprintf("and %d %s", more, rest)}
	return append(all[:maxFindings:maxFindings], last)
}

// lostPaths returns the causes of paths on which no packet is answered.
func (m *matrix) lostPaths() (out []Finding) {
	g := m.graph(api.PathLost)
	if g.isComplete() {
		return []Finding{m.lost(m.all(), "no host reaches another", m.reason(api.PathLost, m.allPairs()),
			"check the switch between the hosts, and recent changes")}
	}
	troubled := make([]int, len(g.bad))
	for i := range g.bad {
		troubled[i] = len(g.bad[i])
	}
	isolated := g.takeIsolated()
	for _, side := range []side{deaf, mute, apart} {
		var hosts []int
		var paths []pair
		for i := range m.hosts {
			if others, ok := isolated[i]; ok && m.side(i, others) == side {
				hosts, paths = append(hosts, i), append(paths, between([]int{i}, others)...)
			}
		}
		if len(hosts) > 0 {
			out = append(out, m.isolated(side, hosts, paths))
		}
	}
	if groups := g.takeSplit(); groups != nil {
		for _, group := range groups[1:] {
			saw := fmt.Sprintf("%s reach each other, but not %s", m.list(group), m.list(groups[0]))
			out = append(out, m.lost(group, saw, m.reason(api.PathLost, between(group, groups[0])),
				"look at the link, the switches and the firewalls between the two groups"))
		}
	}
	for {
		i, others, ok := g.takeStar()
		if !ok {
			return out
		}
		name := m.hosts[i].Node
		if len(others) > 1 {
			saw := fmt.Sprintf("%s and %d of %d other hosts do not reach each other: %s", name, len(others), len(m.hosts)-1,
				m.list(others))
			out = append(out, m.lost(append([]int{i}, others...), saw, m.reason(api.PathLost, between([]int{i}, others)),
				lookAt(name)))
			continue
		}
		out = append(out, m.lostPair(i, others[0], troubled))
	}
}

// lostPair returns the cause of a path that is lost between two hosts.
func (m *matrix) lostPair(i, j int, troubled []int) Finding {
	a, b := m.hosts[i].Node, m.hosts[j].Node
	saw := fmt.Sprintf("%s and %s do not reach each other", a, b)
	switch {
	case m.at(i, j).State != api.PathLost && m.at(i, j).State != "":
		saw = fmt.Sprintf("%s does not reach %s, which reaches it", b, a)
	case m.at(j, i).State != api.PathLost && m.at(j, i).State != "":
		saw = fmt.Sprintf("%s does not reach %s, which reaches it", a, b)
	case troubled[i] == 1 && troubled[j] == 1 && len(m.hosts) > 2:
		saw += ", both reach all others"
	}
	do := fmt.Sprintf("run `leno doctor` on %s and on %s, and check the switches and firewalls between them", a, b)
	for _, k := range []int{j, i} {
		if m.hosts[k].ownReason() != "" {
			do = "look first at what " + m.hosts[k].Node + " reports of itself, then " + do
		}
	}
	return m.lost([]int{i, j}, saw, m.reason(api.PathLost, []pair{{i, j}}), do)
}

// side is what a host without a path to any other says itself.
type side int

const (
	apart side = iota // that it reaches no host, or nothing
	deaf              // that it reaches hosts, which do not reach it
	mute              // that it does not reach hosts, which reach it
)

func (m *matrix) side(i int, others []int) side {
	there, back := map[bool]bool{}, map[bool]bool{} // whether there are lost paths, and others
	for _, j := range others {
		if state := m.at(i, j).State; state != "" {
			there[state == api.PathLost] = true
		}
		if state := m.at(j, i).State; state != "" {
			back[state == api.PathLost] = true
		}
	}
	switch {
	case there[false] && !there[true]:
		return deaf
	case back[false] && !back[true]:
		return mute
	}
	return apart
}

// isolated returns the cause of hosts that have no path to any other.
func (m *matrix) isolated(s side, hosts []int, paths []pair) Finding {
	who, reason := m.list(hosts), m.reason(api.PathLost, paths)
	switch s {
	case deaf:
		return m.lost(hosts, fmt.Sprintf("no host reaches %s, although %s the others", who,
			plural.Form(len(hosts), "it reaches", "they reach")), reason,
			fmt.Sprintf("look for rules at %s that drop the packets of other hosts: `leno doctor` there", who))
	case mute:
		f := m.lost(hosts, fmt.Sprintf("%s %s no other host, although they reach it", who,
			plural.Form(len(hosts), "reaches", "reach")), reason,
			fmt.Sprintf("look for rules at %s that drop answers: `leno doctor` there", who))
		f.Status = api.FindingWarning
		return f
	}
	saw := fmt.Sprintf("%s %s not reach any other host", who, plural.Form(len(hosts), "does", "do"))
	failed := 0
	for _, i := range hosts {
		if m.hosts[i].Member == api.MemberFailed {
			failed++
		}
	}
	switch {
	case failed == len(hosts):
		saw += fmt.Sprintf(", and Consul reports %s as failed", plural.Form(len(hosts), "it", "them"))
		return m.lost(hosts, saw, reason, fmt.Sprintf("check that %s %s up, then the link and the switch port",
			who, plural.Form(len(hosts), "is", "are")))
	case failed > 0:
		saw += fmt.Sprintf("; Consul reports %d of them as failed", failed)
	}
	return m.lost(hosts, saw, reason, lookAt(who))
}

func lookAt(who string) string {
	return fmt.Sprintf("look at the link, the switch port and the firewall of %s; `leno doctor` there says more", who)
}

// lost returns a finding about lost paths.
func (m *matrix) lost(hosts []int, saw, reason, do string) Finding {
	return Finding{Check: checkPaths, Status: api.FindingFault, Hosts: first(m.names(hosts)), Saw: join(saw, reason),
		Do: do}
}

// reducedPaths returns the causes of paths on which some packets arrive: those that lose full packets, or some packets.
func (m *matrix) reducedPaths(state, check string) (out []Finding) {
	g := m.graph(state)
	add := func(hosts []int, paths []pair, where, who string) {
		f := Finding{Check: check, Status: api.FindingFault, Hosts: first(m.names(hosts))}
		mtu, loss := m.measured(state, paths)
		switch {
		case state == api.PathShort && mtu == 0: // by summaries
			f.Saw = "full-size packets are lost " + where
			f.Do = fmt.Sprintf("find the MTU on the way between %s: `leno peers -probe` on one of them", who)
		case state == api.PathShort:
			f.Saw = fmt.Sprintf("MTU %d %s", mtu, where)
			f.Do = fmt.Sprintf("raise the MTU on the way between %s, or set `mtu = %d` in the network's backend block "+
				"(`leno network apply`)", who, mtu)
		default:
			f.Saw = "some packets are lost " + where
			if loss > 0 {
				f.Saw = fmt.Sprintf("packets are lost %s, up to %.0f %%", where, 100*loss)
			}
			f.Do = fmt.Sprintf("look for errors and drops on the way between %s: `ip -s link`, and the switch", who)
		}
		out = append(out, f)
	}
	if g.isComplete() {
		add(m.all(), m.allPairs(), "on every path", "the hosts")
		return out
	}
	isolated := g.takeIsolated()
	var hosts []int
	var paths []pair
	for i := range m.hosts {
		if others, ok := isolated[i]; ok {
			hosts, paths = append(hosts, i), append(paths, between([]int{i}, others)...)
		}
	}
	if len(hosts) > 0 {
		add(hosts, paths, "on every path of "+m.list(hosts), m.list(hosts)+" and the other hosts")
	}
	for {
		i, others, ok := g.takeStar()
		if !ok {
			return out
		}
		name, to := m.hosts[i].Node, m.list(others)
		where := fmt.Sprintf("between %s and %s", name, to)
		if len(others) > 1 {
			where = fmt.Sprintf("between %s and %d of %d other hosts, %s", name, len(others), len(m.hosts)-1, to)
		}
		add(append([]int{i}, others...), between([]int{i}, others), where, name+" and "+to)
	}
}

// pair is a pair of hosts.
type pair struct{ a, b int }

// between returns the pairs of hosts of two groups.
func between(group, others []int) []pair {
	out := make([]pair, 0, len(group)*len(others))
	for _, i := range group {
		for _, j := range others {
			out = append(out, pair{i, j})
		}
	}
	return out
}

func (m *matrix) allPairs() (out []pair) {
	for i := range m.hosts {
		for j := i + 1; j < len(m.hosts); j++ {
			out = append(out, pair{i, j})
		}
	}
	return out
}

// having returns the paths in both directions of pairs of hosts that have a state.
func (m *matrix) having(state string, pairs []pair) (out []api.PeerPath) {
	for _, of := range pairs {
		for _, p := range []api.PeerPath{m.at(of.a, of.b), m.at(of.b, of.a)} {
			if p.State == state {
				out = append(out, p)
			}
		}
	}
	return out
}

// measured returns the smallest MTU and the highest loss of the paths with a state.
func (m *matrix) measured(state string, pairs []pair) (mtu int, loss float64) {
	for _, p := range m.having(state, pairs) {
		loss = max(loss, p.Loss)
		if mtu == 0 || p.MTU > 0 && p.MTU < mtu {
			mtu = p.MTU
		}
	}
	return mtu, loss
}

// reason returns the reason that all paths with a state have, as far as they have one; "" if they differ.
func (m *matrix) reason(state string, pairs []pair) string {
	common := ""
	for _, p := range m.having(state, pairs) {
		switch {
		case p.Reason == "" || p.Reason == common:
		case common == "":
			common = p.Reason
		default:
			return ""
		}
	}
	return common
}

// failedMembers returns the hosts that Consul's agents do not reach although no path to them is known to lose packets.
func failedMembers(hosts []Host, lost []Finding) []Finding {
	explained := map[string]bool{}
	for _, f := range lost {
		for _, name := range f.Hosts {
			explained[name] = true
		}
	}
	var names []string
	for _, h := range hosts {
		if h.Held && h.Member == api.MemberFailed && !explained[h.Node] {
			names = append(names, h.Node)
		}
	}
	if names == nil {
		return nil
	}
	return []Finding{{
		Check: checkMembers, Status: api.FindingWarning, Hosts: first(names),
		Saw: fmt.Sprintf("Consul's agents do not reach the Consul %s of %s, and no packet loss was found",
			plural.Form(len(names), "agent", "agents"), words(names)),
		Do: "look at Consul there: `systemctl status consul`, and its port 8301",
	}}
}

// ownReason returns what a host reports of itself, "" for nothing, or if it is only that packets are lost.
func (h Host) ownReason() string {
	s := h.Summary
	switch {
	case s == nil || s.Health != api.Critical && s.Health != api.Warning:
		return ""
	case s.Health == api.Critical:
		return cmp.Or(s.Reason, "its health is critical")
	case (s.Reached < s.Peers || s.Impaired > 0) && strings.HasPrefix(s.Reason, "paths: "):
		return ""
	}
	return s.Reason
}

// ownChecks returns the checks that hosts report of themselves, with the hosts that report the same. A host that
// reports only lost packets is left to the paths.
func ownChecks(hosts []Host) []Finding {
	var all []Finding
	for _, h := range hosts {
		reason := h.ownReason()
		if reason == "" || h.Findings != nil {
			continue
		}
		status := map[string]string{api.Critical: api.FindingFault, api.Warning: api.FindingWarning}[h.Summary.Health]
		all = append(all, Finding{Check: checkHealth, Status: status, Hosts: []string{h.Node}, Saw: reason,
			Do: "run `leno status` there"})
	}
	return collected(all)
}

// examined returns what the hosts' own examinations found, with the hosts that found the same.
func examined(hosts []Host) []Finding {
	var all []Finding
	for _, h := range hosts {
		for _, f := range h.Findings {
			if f.Status == api.FindingFault || f.Status == api.FindingWarning {
				all = append(all, Finding{Check: f.Check, Status: f.Status, Network: f.Network, Hosts: []string{h.Node}, Saw: f.Saw,
					Do: f.Do})
			}
		}
	}
	return collected(all)
}

// collected makes one finding of those that differ in their hosts only, and names the hosts.
func collected(all []Finding) (out []Finding) {
	type key struct{ check, status, network, saw, do string }
	at := map[key]int{}
	for _, f := range all {
		k := key{f.Check, f.Status, f.Network, f.Saw, f.Do}
		i, ok := at[k]
		if !ok {
			i = len(out)
			at[k] = i
			out = append(out, f)
			continue
		}
		out[i].Hosts = append(out[i].Hosts, f.Hosts...)
	}
	slices.SortStableFunc(out, func(a, b Finding) int { return cmp.Compare(len(b.Hosts), len(a.Hosts)) })
	for i, f := range out {
		out[i].Saw = words(f.Hosts) + ": " + f.Saw
		out[i].Hosts = first(f.Hosts)
	}
	return out
}

func (m *matrix) all() []int {
	out := make([]int, len(m.hosts))
	for i := range out {
		out[i] = i
	}
	return out
}

func (m *matrix) names(hosts []int) []string {
	var out []string
	for _, i := range hosts {
		out = append(out, m.hosts[i].Node)
	}
	return out
}

// list names the first of some hosts: "host-1, host-2 and 3 more".
func (m *matrix) list(hosts []int) string { return words(m.names(hosts)) }

// first returns the names that a finding lists, sorted.
func first(names []string) []string {
	names = slices.Sorted(slices.Values(names))
	return names[:min(len(names), maxHosts)]
}

// words joins the first of some names, sorted, and counts the rest.
func words(names []string) string {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	more := len(names) - maxNamed
	switch {
	case more > 1:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), more)
	case len(names) == 1:
		return names[0]
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

func join(saw, reason string) string {
	if reason == "" {
		return saw
	}
	return saw + ": " + reason
}
