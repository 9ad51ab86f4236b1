package foreign

import (
	"cmp"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/firewall"
)

// finding is one result of a walk through a base chain.
type finding struct {
	base      baseChain
	chain     string
	rule      string
	flow      flow
	action    action
	wholeFlow bool // all packets of the flow
}

// walk follows a flow through a base chain.
type walk struct {
	base      baseChain
	flow      flow   // the whole flow
	uncertain []flow // parts with an indeterminate outcome: possibly accepted or sent to another chain
	found     []finding
	depth     int
	work      int  // comparisons made
	exceeded  bool // it exceeded a bound: later results are not certain
}

// Bounds of a walk. The kernel allows 16 jumps; chains that jump to each other in many ways could make a walk
// endless.
const (
	maxDepth       = 17
	maxComparisons = 300_000
)

// run returns what certainly happens to the flow.
func (w *walk) run(f flow) []finding {
	w.flow = f
	if ended := w.followChain(w.base.chain, f); !ended && w.base.drops && !w.exceeded {
		w.addFinding(w.base.chain, policyDrop, f, dropPacket)
	}
	return w.found
}

// policyDrop replaces the rule's text where the chain's policy drops.
const policyDrop = "policy drop"

func (w *walk) addFinding(chain, rule string, f flow, what action) {
	w.work += len(w.uncertain)
	if !slices.ContainsFunc(w.uncertain, f.isWithin) {
		w.found = append(w.found, finding{w.base, chain, rule, f, what, w.flow.isWithin(f)})
	}
}

// followChain walks one chain and reports whether all of the flow ended there.
func (w *walk) followChain(name string, f flow) (ended bool) {
	w.depth++
	defer func() { w.depth-- }()
	for _, l := range w.base.lines[name] {
		w.work++
		w.exceeded = w.exceeded || w.depth > maxDepth || w.work > maxComparisons
		if w.exceeded {
			return false
		}
		a, part := l.match(f)
		if a == noPart {
			continue
		}
		switch l.action {
		case continueChain:
			continue
		case jumpToChain, gotoChain:
			if w.followJump(l, a, part) {
				return true
			}
			if l.action == jumpToChain {
				continue
			}
		case dropPacket, translateSource:
			if a == indeterminate {
				continue // a rule that drops them later certainly does so
			}
			w.addFinding(name, l.text, part, l.action)
		}
		if a == wholeFlow && l.action != unknownAction {
			return l.action != returnToCaller && l.action != gotoChain
		}
		w.uncertain = append(w.uncertain, part) // later rules get the rest
	}
	return false
}

// followJump walks through the chain that a rule jumps to, and reports whether all of the flow ended there. If the jump
// may not be taken, no result in that chain is sure.
func (w *walk) followJump(l line, a extent, part flow) (ended bool) {
	before := len(w.found)
	ended = w.followChain(l.to, part)
	if a == indeterminate {
		w.found = w.found[:before]
	}
	if ended && a != wholeFlow {
		w.uncertain = append(w.uncertain, part)
	}
	return ended && a == wholeFlow
}

// trace returns what the host's rules do to the flow, in the order of the hooks. A decision of our own nat chain is
// final; later chains do not change it.
func trace(bases []baseChain, f flow) []finding {
	bases = slices.Clone(bases)
	slices.SortStableFunc(bases, func(a, b baseChain) int {
		return cmp.Or(cmp.Compare(a.hook, b.hook), cmp.Compare(a.priority, b.priority))
	})
	var out []finding
	for _, b := range bases {
		if !b.isPassedBy(f) {
			continue
		}
		for _, found := range (&walk{base: b}).run(f) {
			if found.action == translateSource && found.isOurs() {
				if found.wholeFlow {
					return out
				}
				continue
			}
			out = append(out, found)
		}
	}
	return out
}

// isOurs reports whether the rule is one of leno's.
func (f finding) isOurs() bool {
	return strings.HasPrefix(f.chain, firewall.ChainPrefix) || strings.HasSuffix(f.base.table(), " leno")
}
