package soak

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
)

// store judges the records in the store, read by read.
func (c *checker) store() {
	for network, reads := range c.reads {
		held := map[netip.Prefix]tenant{}
		var before time.Duration
		for _, read := range reads {
			read.Records = slices.DeleteFunc(slices.Clone(read.Records), func(x Record) bool { return c.isForged(read, x) })
			c.overlaps(read)
			c.definition(read)
			if rewind, ok := c.lostBetween(Span{before, read.To}); ok {
				for subnet, t := range held {
					t.rewind, t.rewound = rewind, true
					held[subnet] = t
				}
			}
			if !c.defined(network, Span{before, read.To}) {
				clear(held) // its hosts release their leases
			}
			c.handedOver(read, held)
			c.givenUp(read)
			before = read.From
		}
	}
}

// A tenant is the last holder of a subnet's record.
type tenant struct {
	node    string
	last    time.Duration // start of the last read that showed it held
	rewind  Rewind        // the last one since then
	rewound bool
}

// lostBetween returns an event in a span that made the store lose its records.
func (c *checker) lostBetween(s Span) (Rewind, bool) {
	for _, r := range c.wiped {
		if r.overlaps(s) {
			return r, true
		}
	}
	return Rewind{}, false
}

// handedOver compares the holder of every record with its previous holder.
func (c *checker) handedOver(read Read, held map[netip.Prefix]tenant) {
	there := map[netip.Prefix]bool{}
	for _, x := range read.Records {
		there[x.Subnet] = true
		if !x.readable() {
			continue
		}
		t, known := held[x.Subnet]
		if known && t.node != x.Node {
			c.mayTake(read, t, x.Subnet, x.Node)
		}
		if x.Session != "" {
			held[x.Subnet] = tenant{node: x.Node, last: read.From}
		}
	}
	for subnet, t := range held {
		if !there[subnet] && !t.rewound {
			c.mayTake(read, t, subnet, "")
			delete(held, subnet)
		}
	}
}

// claimedAfterALoss reports whether the tenant claimed at a time when the store may have lost the
// network's definition.
func (c *checker) claimedAfterALoss(t tenant) bool {
	return slices.ContainsFunc(c.wiped, func(r Rewind) bool { return c.lasts(t.node, r.Span, Span{t.last, t.last}) })
}

// mayTake reports a violation if a node lost a subnet's record that had to be kept for it. by is the node that has the subnet
// now, "" for none.
func (c *checker) mayTake(read Read, t tenant, subnet netip.Prefix, by string) {
	m, what := member{t.node, read.Network}, by+" has it"
	if by == "" {
		what = "its record is gone"
	}
	switch {
	case t.rewound && t.rewind.setBack(): // the store has its old content again
	case t.rewound && c.forgotten(t.node, t.rewind): // the node was forgotten and could not write its record again
	case c.departed(m, Span{t.last, read.To}): // the node, or an operator, released the subnet
	case c.movedAway(m, subnet, read.To): // the node no longer uses the subnet
	case t.rewound && slices.ContainsFunc(c.tenures[m], func(x tenure) bool {
		return slices.Contains(x.subnets, subnet) && c.comesBack(member{by, read.Network}, x.subnets, x.since, t.rewind)
	}): // it was the other node's before
	case c.staysOn(member{by, read.Network}, subnet, t.last): // the store was set back, and the other node was there before
	case by == "" && c.claimedAfterALoss(t): // another plan was defined: the host withdrew its claim
	case !t.rewound && read.To-t.last >= c.Rules.Hold:
	default:
		c.report(TakenEarly, m, read.Span, "%s, held %s before: %s", subnet, (read.To - t.last).Round(time.Millisecond), what)
	}
}

// staysOn reports whether a member was on a subnet when the store was set back, and still was at a later time.
func (c *checker) staysOn(m member, subnet netip.Prefix, at time.Duration) bool {
	return slices.ContainsFunc(c.tenures[m], func(t tenure) bool {
		return slices.Contains(t.subnets, subnet) && at <= t.To && slices.ContainsFunc(c.wiped, func(r Rewind) bool {
			return r.setBack() && t.From <= r.From && r.From <= at
		})
	})
}

// movedAway reports whether a member is on another subnet at the given time, according to its own
// agent.
func (c *checker) movedAway(m member, subnet netip.Prefix, at time.Duration) bool {
	for _, t := range c.tenures[m] {
		if t.since.From <= at && c.lasts(m.node, Span{t.since.From, t.To}, Span{at, at}) && !slices.Contains(t.subnets, subnet) {
			return true
		}
	}
	return false
}

// overlaps compares all held records of one read with each other.
func (c *checker) overlaps(read Read) {
	of := map[string]netip.Prefix{}
	for i, a := range read.Records {
		if a.Session == "" || !a.readable() {
			continue
		}
		m := member{a.Node, read.Network}
		if other, ok := of[a.Node]; ok && c.calm(m, read.Span) {
			c.report(OverlapInStore, m, read.Span, "it holds %s and %s", other, a.Subnet)
		}
		of[a.Node] = a.Subnet
		for _, b := range read.Records[i+1:] {
			if b.Session != "" && b.readable() && overlapping(a.Subnets, b.Subnets) {
				c.report(OverlapInStore, m, read.Span, "it holds %v and %s holds %v", a.Subnets, b.Node, b.Subnets)
			}
		}
	}
}

// givenUp checks that there is no lease of a host that has had time to leave a deleted network. If
// a host cannot release its lease, because it has no Consul at the moment or left before a snapshot
// restored the lease, the lease stays for its session and hold time.
func (c *checker) givenUp(read Read) {
	read.From = max(0, read.From-2*c.Rules.TTL-c.Rules.Hold)
	if _, deleted := c.deleted(read.Network, read.Span); !deleted {
		return
	}
	for _, x := range read.Records {
		m := member{x.Node, read.Network}
		if _, known := c.nodes[m]; known && slices.Contains(c.members(read.Network, read.To), m) && c.ended(m, read.Span) {
			c.report(DeletedStays, m, read.Span, "the store has its lease of %s", x.Subnet)
		}
	}
}

// claims compares the agents' reports with the store.
func (c *checker) claims() {
	for _, l := range c.Claims {
		m := l.member()
		if c.ended(m, l.Span) {
			c.looks++
			if l.subnet().IsValid() || l.File != nil {
				c.report(DeletedStays, m, l.Span, "its agent shows %v, and its subnet file says %v", l.Subnets, l.File)
			}
			continue
		}
		if !c.defined(l.Network, l.Span) || !c.calm(m, l.Span) {
			continue
		}
		c.looks++
		switch {
		case !l.Answered && c.answersNext(m, l):
			continue
		case !l.Answered:
			c.report(NotRecovered, m, l.Span, "its agent does not answer")
			continue
		case !l.subnet().IsValid() && l.File == nil && c.isFull(l):
		case l.Status != passing && (c.momentary(m, l) || c.recordsUnread(l) || c.forgeryNamed(l) || c.peerAway(l)):
		case l.Status != passing:
			c.report(NotRecovered, m, l.Span, "health is %s: %s", l.Status, l.Trouble)
		case !l.subnet().IsValid():
			c.report(NotRecovered, m, l.Span, "it has no subnet")
		case !slices.Equal(l.File, l.Subnets):
			c.report(NotRecovered, m, l.Span, "it has %v, and its subnet file says %v", l.Subnets, l.File)
		case l.OldFile:
			c.report(NotRecovered, m, l.Span, "the subnet file that its options named before is still there")
		case l.Renewed+c.Rules.TTL < l.To && !c.lasts(l.Node, Span{l.Renewed, l.Renewed + c.Rules.TTL - c.Rules.Settle}, l.Span):
			c.report(NotRecovered, m, l.Span, "not renewed for %s", (l.To - l.Renewed).Round(time.Millisecond))
		}
		if l.subnet().IsValid() { // a host without a lease sees no others
			c.acknowledged(m, l)
			c.view(m, l)
		}
	}
}

// answersNext reports whether the agent answers the look that follows within seconds. On a busy machine, the suite itself
// may stand still for a few seconds: then the looks at all agents fail.
func (c *checker) answersNext(m member, l Claim) bool {
	_, ok := c.nextClaim(m, l)
	return ok
}

// nextClaim returns the claim of the next look that was answered, if that began within seconds after l ended.
func (c *checker) nextClaim(m member, l Claim) (Claim, bool) {
	all := c.claimsOf[m]
	i, _ := slices.BinarySearchFunc(all, l.To, func(l Claim, at time.Duration) int { return cmp.Compare(l.From, at) })
	if i == len(all) || all[i].From-l.To >= around {
		return Claim{}, false
	}
	return all[i], true
}

// momentary reports whether a claim says that Consul failed and the next one, within seconds, that
// it works. On a busy machine, Consul's servers sometimes consider each other dead without a fault.
func (c *checker) momentary(m member, l Claim) bool {
	next, ok := c.nextClaim(m, l)
	fails := strings.Contains(l.Trouble, "the store is unavailable") || strings.Contains(l.Trouble, "there is no answer to ")
	return ok && l.Status == api.Warning && fails && next.Status == passing
}

// auditTime is how long it may take, for each host of the network, until a host notices that a record
// under a key that is no subnet was removed by hand.
const auditTime = 15 * time.Second

// recordsUnread reports whether a claim warns only of invalid records that were removed a while ago.
// Agents read the reservations once a minute, and all leases even less often: nothing tells them of a
// record that was removed by hand.
func (c *checker) recordsUnread(l Claim) bool {
	return l.Status == api.Warning && strings.HasPrefix(l.Trouble, "records ") &&
		slices.ContainsFunc(c.Storms, func(x Storm) bool {
			return x.Why == RestoreBad && x.From <= l.From && c.lasts(l.Node, Span{x.From, x.To + c.unread(l)}, l.Span)
		})
}

// unread returns how long an agent may know records that were removed by hand.
func (c *checker) unread(l Claim) time.Duration {
	return max(time.Minute, auditTime*time.Duration(len(c.members(l.Network, l.From))))
}

// forgeryNamed reports whether a claim warns only of records or of its lease, while a stranger's records about hosts of the
// network are there, or were until a short time ago, or of one of these that is a lease: as its host, or as another one,
// which skips it.
func (c *checker) forgeryNamed(l Claim) bool {
	warns := func(of string) bool { return strings.HasPrefix(l.Trouble, of+" warning: ") }
	return l.Status == api.Warning && c.knowsForgery(l, func(x Forgery) bool {
		return warns("records") || warns("lease") || slices.ContainsFunc(x.Leases, func(e Entry) bool {
			return warns("conflict") && strings.Contains(l.Trouble, fmt.Sprintf("the record of %s names this host", e.Subnet)) ||
				warns("routes") && strings.Contains(l.Trouble, fmt.Sprintf("skipped, the first %q: ", e.Node))
		})
	})
}

// knowsForgery reports whether an agent may know a forgery of its network with a property, which lasts or is over.
func (c *checker) knowsForgery(l Claim, has func(Forgery) bool) bool {
	return slices.ContainsFunc(c.Forgeries, func(x Forgery) bool {
		return x.Network == l.Network && x.From <= l.To && c.lasts(l.Node, Span{x.From, x.To + c.unread(l)}, l.Span) && has(x)
	})
}

// isForged reports whether a record is a stranger's lease.
func (c *checker) isForged(read Read, x Record) bool {
	return slices.ContainsFunc(c.Forgeries, func(f Forgery) bool {
		return f.Network == read.Network && f.overlaps(read.Span) && slices.Contains(f.Leases, x.Entry)
	})
}

var (
	// oneCheck matches the beginning of a check in Claim.Trouble.
	oneCheck = regexp.MustCompile(`(?:^|; )([a-z_]+) (warning|critical): `)
	// noHandshake matches the list of hosts in a warning that packets to them are sent without a handshake, each with a time.
	noHandshake = regexp.MustCompile(`no handshake with ([^;]+);`)
	// lostTo matches the list of hosts in a warning that packets to them are lost. After each of them is a reason.
	lostTo = regexp.MustCompile(`packets are lost to \d+ of \d+ hosts?: (.*)`)
	reason = regexp.MustCompile(` \([^)]*\)`)
)

const (
	// pathKnown is how long it takes until an agent has tested a path often enough to say that packets arrive again.
	pathKnown = 15 * time.Second
	// lossKnown is the same until it says that none is lost.
	lossKnown = time.Minute
)

// peerAway reports whether a claim warns only of what a disturbed host or its peers cause: there is no handshake with them,
// or packets to them are lost, or were until a short time ago. A host that reaches none of its peers is critical.
func (c *checker) peerAway(l Claim) bool {
	for i, at := range oneCheck.FindAllStringSubmatchIndex(l.Trouble, -1) {
		if i == 0 && at[0] != 0 {
			return false
		}
		text, names, since := l.Trouble[at[1]:], "", l.Span
		if next := oneCheck.FindStringIndex(text); next != nil {
			text = text[:next[0]]
		}
		switch named := noHandshake.FindStringSubmatch(text); {
		case l.Trouble[at[4]:at[5]] == api.Critical && l.Trouble[at[2]:at[3]] != "paths":
			return false
		case l.Trouble[at[2]:at[3]] == "routes" && named != nil:
			names = named[1]
		case l.Trouble[at[2]:at[3]] == "paths" && lostTo.MatchString(text):
			names, since.From = reason.ReplaceAllString(lostTo.FindStringSubmatch(text)[1], ""), l.From-pathKnown
			if strings.Contains(text, " of the last ") {
				since.From = l.From - lossKnown
			}
			if c.disturbed(l.Node, since) {
				continue
			}
		default:
			return false
		}
		for peer := range strings.SplitSeq(names, ", ") {
			name, _, _ := strings.Cut(peer, " ")
			if name != "and" && !c.disturbed(name, since) { // "and 3 more"
				return false
			}
		}
	}
	return l.Trouble != ""
}

// around is the time before and after a claim in which the store must show it. At least two reads
// fall into it.
const around = 3 * time.Second

// acknowledged checks that the store has the lease on which an agent relies.
func (c *checker) acknowledged(m member, l Claim) {
	near := c.readsIn(m.network, Span{l.From - around, l.To + around})
	if len(near) == 0 {
		return
	}
	for _, read := range near {
		for _, x := range read.Records {
			if x.Node == l.Node && x.Subnet == l.subnet() && x.Session != "" {
				return
			}
		}
	}
	c.report(LostUnnoticed, m, l.Span, "it relies on %s, which the store does not say; health %s", l.subnet(), l.Status)
}

// readsIn returns the reads that overlap a span.
func (c *checker) readsIn(network string, s Span) []Read {
	all := c.reads[network]
	first, _ := slices.BinarySearchFunc(all, s.From, func(r Read, at time.Duration) int { return cmp.Compare(r.To, at) })
	last := first
	for last < len(all) && all[last].From <= s.To {
		last++
	}
	return all[first:last]
}

// view compares an agent's view with the store as it was within the settling time before: the store
// must have had every entry of the view at some time, and the view must contain every entry that
// the store had all the time.
func (c *checker) view(m member, l Claim) {
	// The agent may know a record before the suite has read it.
	busy := waited(c.waits[l.Node], l.From-c.Rules.Settle, l.From) + waited(c.answers, l.From-c.Rules.Settle, l.From)
	reads := c.readsIn(m.network, Span{l.From - c.Rules.Settle - busy, l.To + around})
	if l.View == nil || len(reads) < 2 {
		return
	}
	times := map[Entry]int{}
	for _, read := range reads {
		for _, x := range read.Records {
			times[x.Entry]++
		}
	}
	for _, e := range l.View {
		forged := func(x Forgery) bool { return slices.Contains(x.Leases, e) }
		if times[e] == 0 && !c.remembered(l.Node, e, l.Span) && !c.knowsForgery(l, forged) {
			c.report(ViewDiffers, m, l.Span, "it sees %s of %s, which the store has not had for %s", e.Subnet, e.Node, c.Rules.Settle)
		}
	}
	if _, lost := c.lostBetween(Span{l.From, l.To + around}); lost {
		return // what the view lacks may have been removed, and be back in the next read
	}
	for e, n := range times {
		// A host may get the same subnet again, between two reads, when its lease is revoked.
		if n == len(reads) && e.Node != "" && !slices.Contains(l.View, e) && !c.outlived(l, e) && !c.departs(member{e.Node, m.network}, l.Span) {
			c.report(ViewDiffers, m, l.Span, "it does not see %s of %s, which the store has had for %s", e.Subnet, e.Node, c.Rules.Settle)
		}
	}
}

// outlived reports whether a store that was set back has a record of an earlier holder of a subnet,
// whose place another host had taken since. Agents still see that other host for a while.
func (c *checker) outlived(l Claim, e Entry) bool {
	return slices.ContainsFunc(l.View, func(x Entry) bool {
		return x.Subnet == e.Subnet && slices.ContainsFunc(c.wiped, func(r Rewind) bool {
			return r.setBack() && r.From <= l.From && c.lasts(l.Node, Span{r.From, r.To + 3*c.Rules.TTL}, l.Span)
		})
	})
}

// remembered reports whether an agent may keep an entry that a store has lost because it was
// emptied or set back: the entry's node could not write it again, and may still do so. An agent
// that was silent at that time learns of the loss later, and does not know which nodes have written
// their entries again in the meantime and left after that.
func (c *checker) remembered(viewer string, e Entry, at Span) bool {
	for _, r := range c.wiped {
		known, missed := r.To, false
		for _, s := range c.silent[viewer] {
			if c.mute(s, r) && s.To != forever {
				known, missed = max(known, s.To), true
			}
		}
		if r.From <= at.From && c.lasts(viewer, Span{r.From, known + 3*c.Rules.TTL}, at) && (missed || c.forgotten(e.Node, r) || r.setBack()) {
			return true
		}
	}
	return c.missedHistory(viewer, at)
}

// missedHistory reports whether the viewer was silent when the store discarded its history. It cannot know then whether
// a record that is missing was deleted or lost, and keeps it as if it was lost.
func (c *checker) missedHistory(viewer string, at Span) bool {
	return slices.ContainsFunc(c.silent[viewer], func(s Silence) bool {
		return s.To != forever && slices.ContainsFunc(c.Compactions, func(compacted time.Duration) bool {
			return s.From <= compacted && c.lasts(viewer, s.Span, Span{compacted, compacted}) &&
				c.lasts(viewer, Span{s.From, c.back(viewer, s) + 3*c.Rules.TTL}, at)
		})
	})
}
