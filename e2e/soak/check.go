package soak

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Violation is one promise that was broken.
type Violation struct {
	Rule  Rule          `json:"rule"`
	Node  string        `json:"node"`
	From  time.Duration `json:"from"` // of the run, nanoseconds
	To    time.Duration `json:"to"`
	Count int           `json:"count"` // observations that show it
	Text  string        `json:"text"`  // of the first
}

func (v Violation) String() string {
	return fmt.Sprintf("%s: %s at %s to %s, seen %d times: %s", v.Rule, v.Node,
		v.From.Round(time.Millisecond), v.To.Round(time.Millisecond), v.Count, v.Text)
}

// Rule is one promise.
type Rule string

// The rules, as the package's documentation explains them.
const (
	TwoHolders     Rule = "two live holders"
	OverlapInStore Rule = "overlapping leases in the store"
	TakenEarly     Rule = "taken before hold was over"
	LostUnnoticed  Rule = "claim lost unnoticed"
	NotRecovered   Rule = "not as before after the settling time"
	Moved          Rule = "moved without a cause"
	MovedSilently  Rule = "moved without saying so"
	NotDefined     Rule = "network not put back"
	ViewDiffers    Rule = "view differs from the store"
	RouteMissing   Rule = "route to a live peer missing"
	RouteRemoved   Rule = "route to a live peer removed"
	PingLost       Rule = "ping lost"
	AgentEnded     Rule = "agent ended by itself"
)

// Check names everything in a history that breaks a rule. It is pure.
func Check(h History) []Violation {
	c := newChecker(h)
	c.holders()
	c.store()
	c.claims()
	c.moves()
	c.routes()
	c.pings()
	for _, e := range h.Endings {
		c.report(AgentEnded, e.Node, Span{e.At, e.At}, "%s", e.Text)
	}
	slices.SortStableFunc(c.found, func(a, b Violation) int { return cmp.Compare(a.From, b.From) })
	return c.found
}

// checker is a history, by node.
type checker struct {
	History
	nodes    map[string]Node
	claimsOf map[string][]Claim // answered ones
	silent   map[string][]Silence
	reads    map[string][]Read // by network
	tenures  map[string][]tenure
	rivals   map[string][]Span
	found    []Violation
}

func newChecker(h History) *checker {
	c := &checker{
		History: h, nodes: map[string]Node{}, claimsOf: map[string][]Claim{}, silent: map[string][]Silence{},
		reads: map[string][]Read{}, tenures: map[string][]tenure{}, rivals: map[string][]Span{},
	}
	for _, n := range h.Nodes {
		c.nodes[n.Name] = n
	}
	for _, s := range h.Silences {
		c.silent[s.Node] = append(c.silent[s.Node], s)
	}
	for _, l := range h.Claims {
		if l.Answered {
			c.claimsOf[l.Node] = append(c.claimsOf[l.Node], l)
		}
	}
	for _, r := range h.Reads {
		c.reads[r.Network] = append(c.reads[r.Network], r)
	}
	for _, n := range h.Nodes {
		c.tenures[n.Name] = c.tenuresOf(n.Name)
		c.rivals[n.Name] = c.rivalsOf(n)
	}
	return c
}

// rivalsOf is when the store had a live lease of the node that another replaces:
// set back, it brings the session of a dead host to life for a while. Two hosts
// with one address are what agents warn of.
func (c *checker) rivalsOf(n Node) (out []Span) {
	if n.Replaces == "" {
		return nil
	}
	for _, read := range c.reads[n.Network] {
		if slices.ContainsFunc(read.Records, func(x Record) bool { return x.Node == n.Replaces && x.Session != "" }) {
			out = append(out, read.Span)
		}
	}
	return out
}

// report adds a violation, or another sighting of one that goes on.
func (c *checker) report(r Rule, node string, at Span, format string, args ...any) {
	const goesOn = 5 * time.Second
	for i := len(c.found) - 1; i >= 0; i-- {
		if v := &c.found[i]; v.Rule == r && v.Node == node && at.From <= v.To+goesOn {
			v.To = max(v.To, at.To)
			v.Count++
			return
		}
	}
	c.found = append(c.found, Violation{Rule: r, Node: node, From: at.From, To: at.To, Count: 1, Text: fmt.Sprintf(format, args...)})
}

// calm says that nothing disturbed the node in a span or within the settling
// time before it.
func (c *checker) calm(node string, s Span) bool { return c.quiet(s) && !c.disturbed(node, s) }

// quiet is calm for what has to do with no single node.
func (c *checker) quiet(s Span) bool {
	s.From -= c.Rules.Settle
	return !slices.ContainsFunc(c.Storms, func(x Storm) bool { return x.overlaps(s) }) &&
		!slices.ContainsFunc(c.Rewinds, func(x Rewind) bool { return x.overlaps(s) })
}

// seen is how long it may take to be seen that a session ended, which is told to
// nobody.
const seen = time.Minute

func (c *checker) disturbed(node string, s Span) bool {
	s.From -= c.Rules.Settle
	return slices.ContainsFunc(c.silent[node], func(x Silence) bool { return x.overlaps(s) }) ||
		slices.ContainsFunc(c.rivals[node], Span{s.From - seen, s.To}.overlaps)
}

// out says that others may have given the node up by then: it is or just was
// silent, and had been for the hold, or while the store lost its memory.
func (c *checker) out(node string, at time.Duration) bool {
	for _, s := range c.silent[node] {
		if at < s.From || (s.To != forever && at > s.To+c.Rules.Settle) {
			continue
		}
		if min(at, s.To)-s.From >= c.Rules.Hold {
			return true
		}
		for _, r := range c.Rewinds {
			if c.mute(s, r) && r.From <= at {
				return true
			}
		}
	}
	return false
}

// mute says that a node in that silence could not write its lease again after
// the store had lost it: it had until the settling time was over.
func (c *checker) mute(s Silence, r Rewind) bool {
	return s.overlaps(Span{r.From, r.To + c.Rules.Settle})
}

// forgotten is mute in any silence of a node.
func (c *checker) forgotten(node string, r Rewind) bool {
	return slices.ContainsFunc(c.silent[node], func(s Silence) bool { return c.mute(s, r) })
}

// tenure is a time in which a node's agent says without interruption, and
// without a silence, that it holds the same subnets. It certainly held them all
// of Span.
type tenure struct {
	Span
	subnets []netip.Prefix
	since   Span // the two looks between which it came to the subnet, silences regardless
	process int
}

func (c *checker) tenuresOf(node string) (out []tenure) {
	var before *Claim
	for i, l := range c.claimsOf[node] {
		if l.subnet().IsValid() {
			last := len(out) - 1
			switch same := before != nil && slices.Equal(before.Subnets, l.Subnets); {
			case same && before.Process == l.Process && !slices.ContainsFunc(c.silent[node], func(s Silence) bool {
				return s.blind() && s.overlaps(Span{before.From, l.To})
			}):
				out[last].To = l.From
			case last >= 0 && slices.Equal(out[last].subnets, l.Subnets): // the same again after an interruption
				out = append(out, tenure{Span{l.To, l.From}, l.Subnets, out[last].since, l.Process})
			default:
				since := Span{0, l.To}
				if before != nil {
					since.From = before.From
				}
				out = append(out, tenure{Span{l.To, l.From}, l.Subnets, since, l.Process})
			}
		}
		before = &c.claimsOf[node][i]
	}
	return out
}

// blind says that the agent could not know of others. One that waits in the place
// of another does, and what it says it holds it holds.
func (s Silence) blind() bool { return s.Why != ReplaceHost }

func overlapping(a, b []netip.Prefix) bool {
	return slices.ContainsFunc(a, func(p netip.Prefix) bool { return slices.ContainsFunc(b, p.Overlaps) })
}

// holders looks for two live holders of one slot.
func (c *checker) holders() {
	for i, a := range c.Nodes {
		for _, b := range c.Nodes[i+1:] {
			if a.Network != b.Network {
				continue
			}
			for _, x := range c.tenures[a.Name] {
				for _, y := range c.tenures[b.Name] {
					both := Span{max(x.From, y.From), min(x.To, y.To)}
					if both.From > both.To || !overlapping(x.subnets, y.subnets) ||
						c.mayNotKnow(a.Name, y, both) || c.mayNotKnow(b.Name, x, both) {
						continue
					}
					c.report(TwoHolders, a.Name, both, "it holds %v and %s holds %v", x.subnets, b.Name, y.subnets)
				}
			}
		}
	}
}

// mayNotKnow says that a node came back from a silence in which another came to
// its subnet, or that the store was set back across that, and that both found out
// within the settling time.
func (c *checker) mayNotKnow(node string, other tenure, both Span) bool {
	for _, s := range c.silent[node] {
		if s.blind() && s.overlaps(other.since) && s.To != forever && both.To <= s.To+c.Rules.Settle {
			return true
		}
	}
	return slices.ContainsFunc(c.Rewinds, func(r Rewind) bool {
		return r.Why == RestoreStore && r.From <= both.From && both.To <= r.To+c.Rules.Settle
	})
}

// moves looks at every change of a node's subnet.
func (c *checker) moves() {
	for _, n := range c.Nodes {
		var before *tenure
		for i, t := range c.tenures[n.Name] {
			if before != nil && !slices.Equal(before.subnets, t.subnets) {
				if !c.cause(n, *before, t) {
					c.report(Moved, n.Name, t.since, "from %v to %v", before.subnets, t.subnets)
				}
				said := slices.ContainsFunc(c.Notices, func(x Notice) bool {
					return x.Node == n.Name && x.Process == t.process && x.Subnet == t.subnets[0]
				})
				if before.process == t.process && !said {
					c.report(MovedSilently, n.Name, t.since, "from %v to %v, not a word in the log", before.subnets, t.subnets)
				}
			}
			before = &c.tenures[n.Name][i]
		}
	}
}

// cause says that a node had to move: it had been given up, or the store, set
// back, has somebody else on its subnet.
func (c *checker) cause(n Node, from, to tenure) bool {
	if c.out(n.Name, to.since.To) || c.out(n.Name, to.since.From) {
		return true
	}
	for _, r := range c.Rewinds {
		if r.Why != RestoreStore || to.since.To < r.From || to.since.From > r.To+c.Rules.Settle {
			continue
		}
		for _, read := range c.reads[n.Network] {
			if read.To < r.From || read.From > to.since.To {
				continue
			}
			if slices.ContainsFunc(read.Records, func(x Record) bool { return x.Node != n.Name && overlapping(x.Subnets, from.subnets) }) {
				return true
			}
		}
	}
	return false
}
