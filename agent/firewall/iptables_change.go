package firewall

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// Chains of ours. Names are at most 28 bytes (XT_EXTENSION_MAXNAMELEN less the final zero).
const (
	ChainPrefix  = "LENO-"
	chainOverlay = ChainPrefix + "OVERLAY"
	chainMasq    = ChainPrefix + "POSTROUTING"
	chainForward = ChainPrefix + "FORWARD"
)

const (
	tableNAT    = "nat"
	tableFilter = "filter"
)

// tableNames returns the tables that have rules of ours.
func tableNames() []string { return []string{tableNAT, tableFilter} }

// isOurTable reports whether a table may have rules of ours.
func isOurTable(table string) bool { return slices.Contains(tableNames(), table) }

// hook is a place in the kernel's chains that jumps to one of ours.
type hook struct {
	table, chain, own string
	// overrules reports whether our jump must come before this rule of another program, because our rules would not
	// be reached otherwise. It is nil for a jump that may be anywhere and is added at the end.
	overrules func(t netfilter.Table, r netfilter.Rule) bool
}

// hooks returns every place, in the order of their jumps.
func hooks() []hook {
	return []hook{
		{tableNAT, "POSTROUTING", chainOverlay, canMasquerade},
		// A rule of the operator that rewrites the same packets is there on purpose and goes first.
		{tableNAT, "POSTROUTING", chainMasq, nil},
		{tableFilter, "FORWARD", chainForward, isForeignJump},
	}
}

// isForeignJump reports whether a rule in FORWARD leads to chains of another program that end by dropping what they do
// not know: Docker's chains drop packets to its bridges. Docker keeps DOCKER-USER for rules that go before all others,
// and rules that jump nowhere are the operator's, who put them there on purpose.
func isForeignJump(t netfilter.Table, r netfilter.Rule) bool {
	target, _ := r.Target()
	return target != "DOCKER-USER" && t.HasChain(target)
}

// canMasquerade reports whether a rule in POSTROUTING may give packets within the overlay another source. Docker has
// one for each bridge, for packets that leave by another device, and puts it first. SNAT to an address is the
// operator's.
func canMasquerade(t netfilter.Table, r netfilter.Rule) bool {
	target, _ := r.Target()
	return target == "MASQUERADE" || t.HasChain(target)
}

// render returns the rules for each of our chains, as iptables-save prints them. A chain without rules is not wanted.
func render(want rules, randomFully bool) map[string][]netfilter.Rule {
	out := map[string][]netfilter.Rule{}
	lists := map[string][]rule{chainOverlay: want.exempt, chainMasq: want.masquerade, chainForward: want.forward}
	for chain, list := range lists {
		for _, r := range list {
			out[chain] = append(out[chain], r.arguments(chain, randomFully))
		}
	}
	return out
}

func (r rule) arguments(chain string, randomFully bool) netfilter.Rule {
	out := netfilter.Rule{"-A", chain}
	if r.src.IsValid() {
		out = append(out, "-s", r.src.String())
	}
	if r.dst.IsValid() {
		out = append(out, "-d", r.dst.String())
	}
	if r.in != "" {
		out = append(out, "-i", r.in)
	}
	switch r.of {
	case known:
		out = append(out, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED")
	case published:
		out = append(out, "-m", "conntrack", "--ctstate", "DNAT")
	}
	out = append(out, "-m", "comment", "--comment", Comment(r.network), "-j")
	switch r.verdict {
	case leave:
		return append(out, "RETURN")
	case accept:
		return append(out, "ACCEPT")
	}
	out = append(out, "MASQUERADE")
	if randomFully && r.randomFully {
		out = append(out, "--random-fully")
	}
	return out
}

// edit holds the changes that make one table agree.
type edit struct {
	input string   // for iptables-restore --noflush; "" when it agrees
	wrong []string // what it corrects, in words
}

// change returns the edit that gives one table the wanted chains of ours. In one input, hence one transaction, it
// refills chains that differ, deletes unwanted jumps and adds missing ones.
func change(name string, t netfilter.Table, want map[string][]netfilter.Rule) edit {
	var heads, lines, wrong []string
	for _, h := range hooks() {
		rules := want[h.own]
		if h.table != name || len(rules) == 0 {
			continue
		}
		if t.HasChain(h.own) && slices.EqualFunc(t.Chain(h.own), rules, slices.Equal) {
			continue
		}
		if t.HasChain(h.own) {
			wrong = append(wrong, "other rules in "+h.own)
		} else {
			wrong = append(wrong, "no chain "+h.own)
		}
		heads = append(heads, ":"+h.own+" - [0:0]")
		for _, r := range rules {
			lines = append(lines, r.String())
		}
	}
	jumps, moved := changeJumps(name, t, want)
	lines, wrong = append(lines, jumps...), append(wrong, moved...)

	// Chains of an older version are deleted too. All are emptied before any is deleted, since they may jump to each
	// other.
	var deletes []string
	for _, chain := range t.Chains {
		wanted := len(want[chain]) > 0 &&
			slices.ContainsFunc(hooks(), func(h hook) bool { return h.table == name && h.own == chain })
		if strings.HasPrefix(chain, ChainPrefix) && !wanted {
			lines = append(lines, "-F "+chain)
			deletes = append(deletes, "-X "+chain)
			wrong = append(wrong, "a chain "+chain)
		}
	}
	if len(heads)+len(lines)+len(deletes) == 0 {
		return edit{}
	}
	all := slices.Concat([]string{"*" + name}, heads, lines, deletes, []string{"COMMIT"})
	return edit{strings.Join(all, "\n") + "\n", wrong}
}

// changeJumps returns the lines that correct the jumps to our chains, so that each is there once and in its place.
// Rules of other programs are identified by their content and never by their number, which may have changed by the
// time of the write.
func changeJumps(name string, t netfilter.Table, want map[string][]netfilter.Rule) (lines, wrong []string) {
	left := t // the table after the lines are applied
	left.Rules = nil
	keep := map[int]bool{}
	for _, h := range hooks() {
		if i := h.position(t); h.table == name && len(want[h.own]) > 0 && i >= 0 {
			keep[i] = true
		}
	}
	for i, r := range t.Rules {
		target, _ := r.Target()
		if keep[i] || !strings.HasPrefix(target, ChainPrefix) || strings.HasPrefix(r[1], ChainPrefix) {
			left.Rules = append(left.Rules, r)
			continue
		}
		// Of equal jumps, "-D" deletes the first, and the last one is kept.
		lines = append(lines, "-D "+r[1:].String())
		wrong = append(wrong, fmt.Sprintf("a misplaced jump in %s to %s", r[1], target))
	}
	for _, h := range hooks() {
		switch {
		case h.table != name || len(want[h.own]) == 0 || h.position(left) >= 0:
			continue
		case !slices.ContainsFunc(t.Rules, func(r netfilter.Rule) bool { return slices.Equal(r, h.jump()) }):
			wrong = append(wrong, fmt.Sprintf("no jump in %s to %s", h.chain, h.own))
		}
		if h.overrules == nil {
			lines = append(lines, h.jump().String())
			continue
		}
		lines = append(lines, fmt.Sprintf("-I %s %d -j %s", h.chain, h.insertAt(left), h.own))
	}
	return lines, wrong
}

func (h hook) jump() netfilter.Rule { return netfilter.Rule{"-A", h.chain, "-j", h.own} }

// position returns the index of the jump among the rules, if its last occurrence is in the right place; else -1.
func (h hook) position(t netfilter.Table) int {
	found, overruled := -1, false
	for i, r := range t.Rules {
		switch {
		case r[1] != h.chain:
		case slices.Equal(r, h.jump()):
			found = i
			if overruled {
				return -1
			}
		case h.overrules != nil && h.overrules(t, r):
			overruled = true
		}
	}
	return found
}

// insertAt returns the number for a new jump in its chain: before the first rule that it must overrule, or at the top.
func (h hook) insertAt(t netfilter.Table) int {
	rules := t.Chain(h.chain)
	if i := slices.IndexFunc(rules, func(r netfilter.Rule) bool { return h.overrules(t, r) }); i >= 0 {
		return i + 1
	}
	return 1
}
