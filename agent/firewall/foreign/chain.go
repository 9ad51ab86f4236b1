package foreign

import (
	"slices"
	"strings"
)

// extent tells for which packets of a flow a condition holds: partOfFlow comes with the narrowed flow.
type extent int

const (
	wholeFlow extent = iota
	partOfFlow
	noPart
	indeterminate
)

// condition is one match of a rule. It returns for which packets of the flow it holds, and the flow of those packets.
type condition func(f flow) (extent, flow)

// action is what a rule does with the packets it matches.
type action int

const (
	continueChain action = iota // with the next rule
	acceptPacket                // and end this base chain
	dropPacket
	translateSource
	returnToCaller
	jumpToChain
	gotoChain // as jumpToChain, but without return
	unknownAction
)

// line is one rule, whichever program wrote it.
type line struct {
	text       string
	conditions []condition
	action     action
	to         string  // target of jumps
	packets    *uint64 // that it has matched; nil if it has no counter, or if none was read
}

// match returns which packets of the flow the rule applies to.
func (l line) match(f flow) (extent, flow) {
	result := wholeFlow
	for _, c := range l.conditions {
		a, narrower := c(f)
		switch {
		case a == noPart:
			return noPart, f
		case a == partOfFlow:
			f = narrower
		}
		result = lessCertain(result, a)
	}
	return result, f
}

// lessCertain returns the less certain of two extents other than nothing.
func lessCertain(a, b extent) extent {
	if a == indeterminate || b == indeterminate {
		return indeterminate
	}
	return max(a, b)
}

// hook is the netfilter hook at which a base chain is called, by the kernel's number.
type hook int

const (
	hookPrerouting hook = iota
	hookInput
	hookForward
	hookOutput
	hookPostrouting
)

// hookNames returns the hooks' names in nft, by their numbers.
func hookNames() []string { return []string{"prerouting", "input", "forward", "output", "postrouting"} }

// isPassedBy reports whether a flow passes that hook.
func (h hook) isPassedBy(f flow) bool {
	switch {
	case f.host == nil:
		return h != hookInput && h != hookOutput
	case f.inbound:
		return h == hookPrerouting || h == hookInput
	}
	return h == hookOutput || h == hookPostrouting
}

// baseChain is a chain that the kernel calls, with the chains of its table.
type baseChain struct {
	where    string // "iptables table filter chain FORWARD"
	chain    string
	hook     hook
	nat      bool
	priority int
	drops    bool              // its policy
	packets  *uint64           // to which the policy was applied; nil if they are not counted, or were not read
	v4, v6   bool              // families it is called for
	lines    map[string][]line // of each chain
}

// isPassedBy reports whether the kernel calls the chain for a flow. Of chains of type nat, only those that may replace
// the source of containers' packets count.
func (b baseChain) isPassedBy(f flow) bool {
	if b.nat && (b.hook != hookPostrouting || f.inbound || f.host != nil) {
		return false
	}
	return b.hook.isPassedBy(f) && (b.v6 && f.is6() || b.v4 && !f.is6())
}

// table returns where without the chain.
func (b baseChain) table() string {
	table, _, _ := strings.Cut(b.where, " chain ")
	return table
}

// hasJump reports whether a chain has a jump to a chain whose name starts with the prefix.
func (b baseChain) hasJump(chain, prefix string) bool {
	return slices.ContainsFunc(b.lines[chain], func(l line) bool {
		return l.action == jumpToChain && strings.HasPrefix(l.to, prefix)
	})
}
