package firewall

import (
	"slices"
	"strings"
)

// Chains of ours. Names are at most 28 bytes (XT_EXTENSION_MAXNAMELEN less the
// final zero).
const (
	ownPrefix    = "LENO-"
	chainMasq    = ownPrefix + "POSTROUTING"
	chainForward = ownPrefix + "FORWARD"
)

// hook is a place in the kernel's chains that jumps to one of ours.
type hook struct {
	table, chain, own string
	// first puts a missing jump before all other rules. Forwarding needs that:
	// Docker and firewalld end in rules that drop what they do not know. For
	// masquerading it would be wrong: a rule of the operator's that rewrites
	// the same packets is there on purpose and goes first.
	first bool
}

// hooks is every place, at most one a table.
func hooks() []hook {
	return []hook{
		{table: "nat", chain: "POSTROUTING", own: chainMasq},
		{table: "filter", chain: "FORWARD", own: chainForward, first: true},
	}
}

// render is the rules of one family for each of our chains, as iptables-save
// prints them. A chain without rules is not wanted.
func render(want rules, randomFully bool) map[string][]arguments {
	out := map[string][]arguments{}
	add := func(chain string, list []rule) {
		for _, r := range list {
			out[chain] = append(out[chain], r.arguments(chain, randomFully))
		}
	}
	add(chainMasq, want.masquerade)
	add(chainForward, want.forward)
	return out
}

func (r rule) arguments(chain string, randomFully bool) arguments {
	out := arguments{"-A", chain}
	if r.src.IsValid() {
		out = append(out, "-s", r.src.String())
	}
	if r.dst.IsValid() {
		out = append(out, "-d", r.dst.String())
	}
	out = append(out, "-m", "comment", "--comment", r.comment(), "-j")
	switch r.verdict {
	case leave:
		return append(out, "RETURN")
	case accept:
		return append(out, "ACCEPT")
	}
	out = append(out, "MASQUERADE")
	if randomFully {
		// Without it two connections can be given the same source port at the
		// same instant, and one loses its first packet.
		out = append(out, "--random-fully")
	}
	return out
}

// change is the input for iptables-restore --noflush that makes one table say
// what is wanted; "" when it does. In one input, hence one transaction, our
// chain is filled anew, jumps that should not be are deleted and the missing one
// is added.
func change(t table, h hook, want []arguments) string {
	jump := arguments{"-A", h.chain, "-j", h.own}
	var heads, lines []string

	jumps := 0
	for _, r := range t.rules {
		target, ok := r.target()
		if !ok || !strings.HasPrefix(target, ownPrefix) || strings.HasPrefix(r[1], ownPrefix) {
			continue
		}
		if len(want) > 0 && jumps == 0 && slices.Equal(r, jump) {
			jumps++
			continue
		}
		lines = append(lines, "-D "+r[1:].String())
	}
	if len(want) > 0 && (!slices.Contains(t.chains, h.own) || !slices.EqualFunc(t.of(h.own), want, slices.Equal)) {
		heads = append(heads, ":"+h.own+" - [0:0]")
		for _, r := range want {
			lines = append(lines, r.String())
		}
	}
	if len(want) > 0 && jumps == 0 {
		if h.first {
			lines = append(lines, "-I "+h.chain+" 1 -j "+h.own)
		} else {
			lines = append(lines, jump.String())
		}
	}
	// Chains of an older version go too. All are emptied before any is deleted,
	// since they may jump to each other.
	var deletes []string
	for _, chain := range t.chains {
		if strings.HasPrefix(chain, ownPrefix) && (len(want) == 0 || chain != h.own) {
			lines = append(lines, "-F "+chain)
			deletes = append(deletes, "-X "+chain)
		}
	}
	if len(heads)+len(lines)+len(deletes) == 0 {
		return ""
	}
	all := slices.Concat([]string{"*" + h.table}, heads, lines, deletes, []string{"COMMIT"})
	return strings.Join(all, "\n") + "\n"
}
