package soak

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// A Violation is one broken promise.
type Violation struct {
	Rule    Rule          `json:"rule"`
	Node    string        `json:"node"` // "" if the whole network is concerned
	Network string        `json:"network"`
	From    time.Duration `json:"from"` // since the start of the run, in nanoseconds
	To      time.Duration `json:"to"`
	Count   int           `json:"count"` // number of observations
	Text    string        `json:"text"`  // describes the first observation
}

func (v Violation) String() string {
	about := "network " + v.Network
	if v.Node != "" {
		about = v.Node + " in " + about
	}
	return fmt.Sprintf("%s: %s at %s to %s, seen %d times: %s", v.Rule, about,
		v.From.Round(time.Millisecond), v.To.Round(time.Millisecond), v.Count, v.Text)
}

// A Rule is one promise.
type Rule string

// The rules. The package's documentation explains them.
const (
	TwoHolders     Rule = "two live holders"
	OverlapInStore Rule = "overlapping leases in the store"
	TakenEarly     Rule = "taken before hold was over"
	LostUnnoticed  Rule = "claim lost unnoticed"
	NotRecovered   Rule = "not as before after the settling time"
	Moved          Rule = "moved without a cause"
	MovedSilently  Rule = "moved without saying so"
	NotDefined     Rule = "network not put back"
	OtherMeaning   Rule = "network with another definition than was last applied"
	SubnetGone     Rule = "subnet of a network that was not deleted gone"
	DeviceGone     Rule = "device of a network that was not deleted gone"
	DeletedReturns Rule = "deleted network defined again"
	DeletedStays   Rule = "deleted network still there"
	DeletionLost   Rule = "record of a deletion gone"
	ViewDiffers    Rule = "view differs from the store"
	RouteMissing   Rule = "route to a live peer missing"
	RouteRemoved   Rule = "route to a live peer removed"
	PingLost       Rule = "ping lost"
	SwitchStays    Rule = "switch to another backend does not end"
	BackendStays   Rule = "something of another backend left"
	AgentEnded     Rule = "agent ended by itself"
	ForgedArrived  Rule = "packet of an attacker arrived"
	JumpsDiffer    Rule = "firewall rules not as they must be"
	DetourUnnamed  Rule = "routing rule that takes packets not named"
	MTUStays       Rule = "MTU does not follow the underlay"
	ReadyEarly     Rule = "ready without a route to a live peer"
)

// Check returns everything in a history that breaks a rule. It is a pure function.
func Check(h History) []Violation { return newChecker(h).check() }

func (c *checker) check() []Violation {
	c.holders()
	c.store()
	c.claims()
	c.subnets()
	c.moves()
	c.kernels()
	c.switches()
	c.pings()
	c.disturbances()
	for _, e := range c.Endings {
		c.report(AgentEnded, member{node: e.Node}, Span{e.At, e.At}, "%s", e.Text)
	}
	slices.SortStableFunc(c.found, func(a, b Violation) int { return cmp.Compare(a.From, b.From) })
	return c.found
}

// A member is a node in a network.
type member struct{ node, network string }

// A checker holds a history, indexed by member, node or network.
type checker struct {
	History
	nodes    map[member]Node
	claimsOf map[member][]Claim // answered ones only
	silent   map[string][]Silence
	reads    map[string][]Read
	phases   map[string][]phase
	tenures  map[member][]tenure
	rivals   map[string][]Span
	wiped    []Rewind           // those that concern all records
	waits    map[string][]delay // of each node's processes
	answers  []delay            // of the store
	looks    int                // at calm members
	found    []Violation
}

func newChecker(h History) *checker {
	c := &checker{
		History: h, nodes: map[member]Node{}, claimsOf: map[member][]Claim{}, silent: map[string][]Silence{}, reads: map[string][]Read{},
		phases: map[string][]phase{}, tenures: map[member][]tenure{}, rivals: map[string][]Span{}, waits: map[string][]delay{},
	}
	for _, n := range h.Nodes {
		c.nodes[member{n.Name, n.Network}] = n
	}
	for _, s := range h.Silences {
		c.silent[s.Node] = append(c.silent[s.Node], s)
	}
	for _, r := range h.Rewinds {
		if r.Network == "" {
			c.wiped = append(c.wiped, r)
		}
	}
	for _, l := range h.Claims {
		if l.Answered {
			c.claimsOf[l.member()] = append(c.claimsOf[l.member()], l)
		}
		c.waits[l.Node] = append(c.waits[l.Node], delay{l.To, l.Waited})
	}
	for _, r := range h.Reads {
		c.reads[r.Network] = append(c.reads[r.Network], r)
		c.answers = append(c.answers, delay{r.To, r.Waited})
	}
	for _, n := range h.Nodes {
		m := member{n.Name, n.Network}
		c.tenures[m] = c.tenuresOf(m)
		c.rivals[n.Name] = c.rivalsOf(n)
	}
	for _, n := range h.Networks {
		c.phases[n.Name] = c.phasesOf(n)
	}
	return c
}

func (l Claim) member() member { return member{l.Node, l.Network} }

// membersOf returns a node in each of its networks.
func (c *checker) membersOf(node string) (out []member) {
	for _, n := range c.Nodes {
		if n.Name == node {
			out = append(out, member{n.Name, n.Network})
		}
	}
	return out
}

// rivalsOf returns the times at which the store had a live lease of a node that n replaces: a store
// that is set back revives the session of a dead host for a while. Agents report two hosts with the
// same address.
func (c *checker) rivalsOf(n Node) (out []Span) {
	if len(n.Replaces) == 0 {
		return nil
	}
	for _, read := range c.Reads {
		if slices.ContainsFunc(read.Records, func(x Record) bool { return x.Session != "" && slices.Contains(n.Replaces, x.Node) }) {
			out = append(out, read.Span)
		}
	}
	return out
}

// report adds a violation, or another observation of one that continues.
func (c *checker) report(r Rule, m member, at Span, format string, args ...any) {
	const goesOn = 5 * time.Second
	for i := len(c.found) - 1; i >= 0; i-- {
		if v := &c.found[i]; v.Rule == r && v.Node == m.node && v.Network == m.network && at.From <= v.To+goesOn {
			v.To = max(v.To, at.To)
			v.Count++
			return
		}
	}
	c.found = append(c.found, Violation{
		Rule: r, Node: m.node, Network: m.network, From: at.From, To: at.To, Count: 1, Text: fmt.Sprintf(format, args...),
	})
}

// A delay is the total time that programs had waited up to a moment.
type delay struct{ at, total time.Duration }

// waited returns an upper limit of the time waited between two moments.
func waited(all []delay, from, to time.Duration) time.Duration {
	at := func(d delay, at time.Duration) int { return cmp.Compare(d.at, at) }
	if len(all) == 0 {
		return 0
	}
	first, exact := slices.BinarySearchFunc(all, from, at)
	if !exact {
		first = max(0, first-1)
	}
	last, _ := slices.BinarySearchFunc(all, to, at)
	return max(0, all[min(last, len(all)-1)].total-all[first].total)
}

// longest is the maximum settling time on a busy machine.
const longest = 2 * time.Minute

// lasts reports whether an event in span x may still affect a node in the later span at: the
// settling time has not passed since, or it has passed only because the node's processes waited for
// a CPU or the store was slow to respond.
func (c *checker) lasts(node string, x, at Span) bool {
	if x.From > at.To || x.To != forever && x.To+longest < at.From {
		return false
	}
	if x.To == forever || x.To+c.Rules.Settle >= at.From {
		return true
	}
	return x.To+c.Rules.Settle+waited(c.waits[node], x.To, at.From)+waited(c.answers, x.To, at.From) >= at.From
}

// calm reports whether the member is undisturbed in a span, and no earlier disturbance may still
// affect it.
func (c *checker) calm(m member, s Span) bool {
	return c.quiet(m, s) && !c.disturbed(m.node, s) && !c.waitsForLost(m, s)
}

// waitsForLost reports whether the member may have to claim like a new host. That is so if it was
// silent, or had left the network, when the store lost the leases: it waits until other hosts that were silent at that time
// cannot come back with their sessions. It does not know which of them are dead for good.
func (c *checker) waitsForLost(m member, s Span) bool {
	return slices.ContainsFunc(c.wiped, func(r Rewind) bool {
		return r.From <= s.To && (c.forgotten(m.node, r) || c.departs(m, r.Span)) && slices.ContainsFunc(c.Nodes, func(other Node) bool {
			return other.Network == m.network && other.Name != m.node && slices.ContainsFunc(c.silent[other.Name], func(x Silence) bool {
				return (x.blind() || x.To == forever) && c.mute(x, r) && c.lasts(m.node, Span{r.From, min(x.To, c.sessionEnd(x))}, s)
			})
		})
	})
}

// sessionEnd returns the latest time at which the session of a node ends that falls silent. A
// session lives up to twice its TTL, which starts over with every new leader and every restored
// snapshot.
func (c *checker) sessionEnd(x Silence) time.Duration {
	end := x.From + 2*c.Rules.TTL
	for again := true; again; {
		again = false
		prolongs := func(s Span) {
			if s.From <= end && s.To != forever && s.To+2*c.Rules.TTL > end {
				end, again = s.To+2*c.Rules.TTL, true
			}
		}
		for _, s := range c.Storms {
			if s.Why != RevokeTokens {
				prolongs(s.Span)
			}
		}
		for _, r := range c.wiped {
			if r.restored() {
				prolongs(r.Span)
			}
		}
	}
	return end
}

// quiet is the part of calm that concerns no single node.
func (c *checker) quiet(m member, s Span) bool {
	for _, x := range c.Storms {
		if c.lasts(m.node, x.Span, s) {
			return false
		}
	}
	for _, x := range c.Rewinds {
		if (x.Network == "" || x.Network == m.network) && c.lasts(m.node, x.Span, s) {
			return false
		}
	}
	for _, x := range c.Changes {
		if x.Network == m.network && x.Why != RewriteNetwork && c.lasts(m.node, x.Span, s) {
			return false
		}
	}
	// After a loss, a host that joins waits for the others for up to the TTL.
	return !c.reloaded(m, s) && !c.departs(m, Span{s.From - c.Rules.TTL, s.To})
}

// seen is how long it may take until a node notices the end of another's session, for which there
// is no notification.
const seen = time.Minute

func (c *checker) disturbed(node string, s Span) bool {
	return c.unsettled(node, s) ||
		slices.ContainsFunc(c.silent[node], func(x Silence) bool { return c.lasts(node, x.Span, s) }) ||
		slices.ContainsFunc(c.rivals[node], func(x Span) bool { return c.lasts(node, Span{x.From, x.To + seen}, s) })
}

// out reports whether other hosts may have given the node up by the given time: it is silent or was
// until recently, and its silence had lasted for the hold time or included a loss of the store's
// records. After a silence, the node has the settling time to come back, with a store that
// responds.
func (c *checker) out(node string, at time.Duration) bool {
	for _, s := range c.silent[node] {
		if at < s.From || !c.lasts(node, Span{s.From, c.back(node, s)}, Span{at, at}) {
			continue
		}
		if min(at, s.To)-s.From >= c.Rules.Hold {
			return true
		}
		for _, r := range c.wiped {
			if c.mute(s, r) && r.From <= at {
				return true
			}
		}
	}
	return false
}

// back returns the time from which a node can come back from a silence: its end, or the end of the
// last of the faults that followed before the node had settled.
func (c *checker) back(node string, s Silence) time.Duration {
	end := s.To
	for again := true; again && end != forever; {
		again = false
		follows := func(x Span) {
			if x.To > end && c.lasts(node, Span{s.From, end}, x) {
				end, again = x.To, true
			}
		}
		for _, x := range c.silent[node] {
			follows(x.Span)
		}
		for _, x := range c.Storms {
			follows(x.Span)
		}
	}
	return end
}

// mute reports whether a node in that silence could not write its lease again after the store had
// lost it, for which it had the settling time.
func (c *checker) mute(s Silence, r Rewind) bool {
	return s.To >= r.From && c.lasts(s.Node, r.Span, s.Span)
}

// forgotten reports whether mute holds for any silence of a node.
func (c *checker) forgotten(node string, r Rewind) bool {
	return slices.ContainsFunc(c.silent[node], func(s Silence) bool { return c.mute(s, r) })
}

// comesBack reports whether a member had one of the subnets until it became silent, another one got it at a time in since,
// and the member is back when the store loses all records: either may be the first to write its own then.
func (c *checker) comesBack(m member, subnets []netip.Prefix, since Span, r Rewind) bool {
	return slices.ContainsFunc(c.silent[m.node], func(s Silence) bool {
		return s.blind() && s.overlaps(since) && c.lasts(m.node, s.Span, r.Span) &&
			slices.ContainsFunc(c.tenures[m], func(t tenure) bool { return t.To <= s.To && t.From <= s.From && overlapping(t.subnets, subnets) })
	})
}

// A tenure is a time in which a node's agent reports, without interruption or silence, that it
// holds the same subnets. It certainly held them for the whole Span.
type tenure struct {
	Span
	subnets []netip.Prefix
	since   Span // the two looks between which it got the subnet, regardless of silences
	process int
}

func (c *checker) tenuresOf(m member) (out []tenure) {
	var before *Claim
	for i, l := range c.claimsOf[m] {
		if l.subnet().IsValid() {
			last := len(out) - 1
			switch same := before != nil && slices.Equal(before.Subnets, l.Subnets); {
			case same && before.Process == l.Process && !slices.ContainsFunc(c.silent[m.node], func(s Silence) bool {
				return s.blind() && s.overlaps(Span{before.From, l.To})
			}):
				out[last].To = l.From
			case last >= 0 && slices.Equal(out[last].subnets, l.Subnets): // the same subnets after an interruption
				out = append(out, tenure{Span{l.To, l.From}, l.Subnets, out[last].since, l.Process})
			default:
				since := Span{0, l.To}
				if before != nil {
					since.From = before.From
				}
				out = append(out, tenure{Span{l.To, l.From}, l.Subnets, since, l.Process})
			}
		}
		before = &c.claimsOf[m][i]
	}
	return out
}

// untilRivalsEnd returns the time of a rewind. If the snapshot revived the session of a host that
// the node replaced, the result includes the time until that session has ended, because the node
// has to wait for that.
func (c *checker) untilRivalsEnd(node string, r Rewind) Span {
	s := r.Span
	if slices.ContainsFunc(c.rivals[node], Span{r.From, r.To + c.Rules.Settle}.overlaps) {
		s.To += 2*c.Rules.TTL + seen
	}
	return s
}

// blind reports whether the silence kept the agent from knowing of others. An agent that waits to
// replace another host does know of them, so what it reports to hold it holds.
func (s Silence) blind() bool { return s.Why != ReplaceHost }

func overlapping(a, b []netip.Prefix) bool {
	return slices.ContainsFunc(a, func(p netip.Prefix) bool { return slices.ContainsFunc(b, p.Overlaps) })
}
