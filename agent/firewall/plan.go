package firewall

import (
	"net/netip"
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

// rule is one rule's arguments as iptables-save prints them, without quotes,
// beginning with -A and the chain.
type rule []string

// wanted is the rules of one family for each of our chains. A chain without
// rules is not wanted.
func wanted(networks []Network, is func(netip.Addr) bool, multicast netip.Prefix, randomFully bool) map[string][]rule {
	rules := map[string][]rule{}
	add := func(chain string, args ...string) {
		rules[chain] = append(rules[chain], append(rule{"-A", chain}, args...))
	}
	masquerade := []string{"-j", "MASQUERADE"}
	if randomFully {
		// Without it two connections can be given the same source port at the
		// same instant, and one loses its first packet.
		masquerade = append(masquerade, "--random-fully")
	}
	for _, n := range networks {
		comment := []string{"-m", "comment", "--comment", "leno " + n.Name}
		pools, subnets := ofFamily(n.Pools, is), ofFamily(n.Subnets, is)
		if n.IPMasq {
			for _, s := range subnets {
				source := []string{"-s", s.String()}
				for _, stays := range append(slices.Clone(pools), multicast) {
					add(chainMasq, slices.Concat(source, []string{"-d", stays.String()}, comment, []string{"-j", "RETURN"})...)
				}
				add(chainMasq, slices.Concat(source, comment, masquerade)...)
			}
		}
		if n.Forward {
			for _, p := range pools {
				add(chainForward, slices.Concat([]string{"-s", p.String()}, comment, []string{"-j", "ACCEPT"})...)
				add(chainForward, slices.Concat([]string{"-d", p.String()}, comment, []string{"-j", "ACCEPT"})...)
			}
		}
	}
	return rules
}

func ofFamily(prefixes []netip.Prefix, is func(netip.Addr) bool) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool { return !is(p.Addr()) })
}

// change is the input for iptables-restore --noflush that makes one table say
// what is wanted; "" when it does. In one input, hence one transaction, our
// chain is filled anew, jumps that should not be are deleted and the missing one
// is added.
func change(t table, h hook, want []rule) string {
	jump := rule{"-A", h.chain, "-j", h.own}
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
