package soak

import (
	"cmp"
	"slices"
	"time"
)

// A phase is a time in which a network is defined, is deleted, or may be either.
type phase struct {
	Span
	state      string // stateDefined or stateDeleted; "" if it may be either
	definition string // while it is defined; "" if it may be one of several
	recorded   bool   // while it is deleted: the store certainly has the deletion's record
}

// phasesOf derives the phases from an operator's changes to a network and from what the store may
// have lost of them.
func (c *checker) phasesOf(n NetworkInfo) (out []phase) {
	type event struct {
		Span
		change *Change
		rewind *Rewind
	}
	var events []event
	for i, x := range c.Changes {
		if x.Network == n.Name && x.Why != RewriteNetwork {
			events = append(events, event{x.Span, &c.Changes[i], nil})
		}
	}
	for i, x := range c.Rewinds {
		if x.Network == "" || x.Network == n.Name {
			events = append(events, event{x.Span, nil, &c.Rewinds[i]})
		}
	}
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.From, b.From) })

	out = []phase{{Span: Span{0, forever}}}
	begin := func(p phase) {
		out[len(out)-1].To = p.From - 1
		p.To = forever
		out = append(out, p)
	}
	for _, e := range events {
		now := out[len(out)-1]
		switch {
		case e.rewind != nil:
			if next := c.rewound(n, out, *e.rewind); next != now {
				next.From = e.From
				begin(next)
			}
		case redefines(e.change.Why):
			begin(phase{Span: Span{From: e.From}, state: now.state})
			if e.To != forever {
				begin(phase{Span: Span{From: e.To}, state: now.state, definition: e.change.Definition})
			}
		default:
			begin(phase{Span: Span{From: e.From}})
			switch {
			case e.To == forever:
			case e.change.Why == DeleteNetwork && e.change.Recorded:
				begin(phase{Span: Span{From: e.To}, state: stateDeleted, recorded: true})
			case e.change.Why == DefineNetwork:
				begin(phase{Span: Span{From: e.To}, state: stateDefined, definition: e.change.Definition})
			}
		}
	}
	return out
}

// rewound returns the phase of a network after the store lost its data about it in the last of the
// phases before.
func (c *checker) rewound(n NetworkInfo, before []phase, r Rewind) phase {
	now := before[len(before)-1]
	snapshot := phase{} // the phase to which the store was set back
	if r.restored() {
		snapshot = phaseAt(before, r.Saved)
	}
	if r.restored() && r.Saved >= now.From {
		return now
	}
	switch now.state {
	case stateDeleted:
		now.recorded = false
		if snapshot.state == stateDefined || c.remembersDeleted(n, now, r) || c.newDefiner(n, r.From) {
			return phase{}
		}
	case stateDefined:
		if !c.remembersDefinition(n, now, r) {
			now.definition = ""
		}
	}
	return now
}

// members returns the nodes of a network that have not been replaced by the given time.
func (c *checker) members(network string, at time.Duration) (out []member) {
	gone := map[string]bool{}
	for _, n := range c.Nodes {
		came := slices.ContainsFunc(c.silent[n.Name], func(s Silence) bool { return s.Why == ReplaceHost && s.From <= at })
		for _, before := range n.Replaces {
			gone[before] = gone[before] || came
		}
	}
	for _, n := range c.Nodes {
		if n.Network == network && !gone[n.Name] {
			out = append(out, member{n.Name, n.Network})
		}
	}
	return out
}

// remembersDeleted reports whether a host may not have learnt of a deletion before the store lost
// the deletion's record. Such a host restores the network when it can.
func (c *checker) remembersDeleted(n NetworkInfo, deleted phase, r Rewind) bool {
	return slices.ContainsFunc(c.members(n.Name, r.From), func(m member) bool {
		return !slices.ContainsFunc(c.claimsOf[m], func(l Claim) bool {
			return l.From >= deleted.From && l.To <= r.From && !l.subnet().IsValid() && l.File == nil
		})
	})
}

// newDefiner reports whether a machine whose configuration defines the network comes back without
// its state after a moment.
func (c *checker) newDefiner(n NetworkInfo, after time.Duration) bool {
	return slices.ContainsFunc(c.Nodes, func(x Node) bool {
		defines := slices.ContainsFunc(n.Definers, func(name string) bool { return slices.Contains(x.Replaces, name) })
		return defines && slices.ContainsFunc(c.silent[x.Name], func(s Silence) bool { return s.Why == ReplaceHost && s.To > after })
	})
}

// remembersDefinition reports whether a host had learnt of the last definition when the store lost
// it, and could restore it at once.
func (c *checker) remembersDefinition(n NetworkInfo, defined phase, r Rewind) bool {
	members := c.members(n.Name, r.From)
	if len(n.Definers) > 0 && slices.ContainsFunc(members, func(m member) bool {
		// A new host knows only its configuration, and may be the first to define the network.
		return slices.ContainsFunc(c.silent[m.node], func(s Silence) bool { return s.Why == ReplaceHost && c.mute(s, r) })
	}) {
		return false
	}
	return slices.ContainsFunc(members, func(m member) bool {
		return !c.forgotten(m.node, r) && slices.ContainsFunc(c.claimsOf[m], func(l Claim) bool {
			return l.From >= defined.From && l.To <= r.From && c.calm(m, l.Span)
		})
	})
}

// phaseAt returns the phase at a moment.
func phaseAt(all []phase, at time.Duration) phase {
	for _, p := range all {
		if p.From <= at && at <= p.To {
			return p
		}
	}
	return phase{}
}

// defined reports whether a network is certainly defined during a whole span.
func (c *checker) defined(network string, s Span) bool {
	return !slices.ContainsFunc(c.phases[network], func(p phase) bool { return p.overlaps(s) && p.state != stateDefined })
}

// deleted returns the phase in which a network is certainly deleted during a whole span.
func (c *checker) deleted(network string, s Span) (phase, bool) {
	p := phaseAt(c.phases[network], s.From)
	return p, p.state == stateDeleted && s.To <= p.To
}

// ended reports whether a network is deleted and a calm member has had time to leave it.
func (c *checker) ended(m member, s Span) bool {
	_, deleted := c.deleted(m.network, s)
	return deleted && c.calm(m, s)
}

// definition judges a network's own record.
func (c *checker) definition(read Read) {
	whole := member{network: read.Network}
	p := phaseAt(c.phases[read.Network], read.From)
	switch {
	case p.To < read.To:
	case p.state == stateDeleted && (read.State == stateDefined):
		c.report(DeletedReturns, whole, read.Span, "it was deleted at %s, and is %s", p.From.Round(time.Millisecond), read.Definition)
	case p.state == stateDeleted && p.recorded && read.State != stateDeleted:
		c.report(DeletionLost, whole, read.Span, "its record is %s", read.State)
	case p.state != stateDefined || !c.anyCalm(read):
	case read.State != stateDefined:
		c.report(NotDefined, whole, read.Span, "its record is %s", read.State)
	case p.definition != "" && read.Definition != p.definition:
		c.report(OtherMeaning, whole, read.Span, "it is %s, applied was %s", read.Definition, p.definition)
	}
}

// anyCalm reports whether any member of the network is calm and so has to restore a lost
// definition.
func (c *checker) anyCalm(read Read) bool {
	return slices.ContainsFunc(c.members(read.Network, read.From), func(m member) bool { return c.calm(m, read.Span) })
}

// reloaded reports whether the agent has just loaded other options of the network. It restarts the
// network then and does not report it until it is done.
func (c *checker) reloaded(m member, s Span) bool {
	return slices.ContainsFunc(c.Options, func(x OptionChange) bool {
		return x.Node == m.node && x.Network == m.network && c.lasts(m.node, x.Span, s)
	})
}

// subnets compares each agent's successive reports and subnet files, whether the member is calm or
// not: a host loses its part in a network only when the network is deleted, or when its subnet is another node's.
func (c *checker) subnets() {
	said, file := map[member]Claim{}, map[member]Claim{}
	for _, l := range c.Claims {
		m := l.member()
		if before, ok := file[m]; ok && before.File != nil && l.File == nil &&
			c.defined(m.network, Span{before.From, l.To}) && !c.withdraws(m, l.From) && !c.departs(m, l.Span) {
			c.report(SubnetGone, m, l.Span, "its subnet file is gone, which said %v", before.File)
		}
		file[m] = l
		if !l.Answered {
			continue
		}
		before, ok := said[m]
		if ok && before.Process == l.Process && before.subnet().IsValid() && !l.subnet().IsValid() &&
			!c.reloaded(m, l.Span) && c.defined(m.network, Span{before.From, l.To}) && !c.withdraws(m, l.From) && !c.departs(m, l.Span) {
			c.report(SubnetGone, m, l.Span, "its agent does not show %s any more", before.subnet())
		}
		said[m] = l
	}
}
