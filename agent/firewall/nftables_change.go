package firewall

import (
	"fmt"
	"slices"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// nftState is our table as the kernel has it.
type nftState struct {
	exists bool
	flags  uint32 // 0 is normal; a dormant table has no effect
	chains []nftChain
}

// chain returns the chain of this name.
func (s nftState) chain(name string) (nftChain, bool) {
	i := slices.IndexFunc(s.chains, func(c nftChain) bool { return c.name == name })
	if i < 0 {
		return nftChain{}, false
	}
	return s.chains[i], true
}

// nftChange describes the changes that give our table the wanted rules; the zero value changes nothing.
type nftChange struct {
	// drop deletes the table with its contents, in the same transaction as fill.
	drop bool
	// fill lists the chains that are created if missing and whose rules are replaced, all in one transaction. A
	// packet in a chain that stays sees either all old rules or all new ones.
	fill []nftChain
	// remove names the chains to delete, in a separate transaction after that: a packet that was in the new chain
	// before its rules were valid still meets those of the old one.
	remove []string

	wrong []string // what it corrects, in words
}

func (c nftChange) isEmpty() bool { return !c.drop && len(c.fill)+len(c.remove) == 0 }

// nftChangeOf compares content and order. A chain with another hook, type, priority or policy than it should have
// cannot be changed, so the whole table is dropped, as is a table with flags.
func nftChangeOf(have nftState, want []nftChain) nftChange {
	switch {
	case len(want) == 0 && have.exists:
		return nftChange{drop: true, wrong: []string{"an unneeded table"}}
	case len(want) == 0:
		return nftChange{}
	case !have.exists:
		return nftChange{fill: want, wrong: []string{"no such table"}}
	case have.flags != 0:
		return nftChange{drop: true, fill: want, wrong: []string{fmt.Sprintf("the table has flags %#x", have.flags)}}
	}
	var out nftChange
	say := func(what, chain string) { out.wrong = append(out.wrong, what+" "+chain) }
	for _, chain := range want {
		old, ok := have.chain(chain.name)
		switch {
		case !ok:
			say("no chain", chain.name)
		case old.base != chain.base:
			wrong := "another type, hook, priority or policy of chain " + chain.name
			return nftChange{drop: true, fill: want, wrong: []string{wrong}}
		case !slices.EqualFunc(old.rules, chain.rules, netfilter.NFTRule.Equal):
			say("other rules in", chain.name)
		default:
			continue
		}
		out.fill = append(out.fill, chain)
	}
	for _, old := range have.chains {
		if !slices.ContainsFunc(want, func(c nftChain) bool { return c.name == old.name }) {
			out.remove = append(out.remove, old.name)
			say("a chain", old.name)
		}
	}
	return out
}
