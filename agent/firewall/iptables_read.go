package firewall

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// read lists the tables. Those of ours that iptables-nft cannot show are read from the kernel, because a table that is
// not listed need not be empty; their names are in f.unreadable afterwards.
func (f *iptablesFamily) read(ctx context.Context, p netfilter.Program) (map[string]netfilter.Table, error) {
	tables, err := netfilter.List(ctx, p.Path)
	if err != nil && !errors.As(err, new(*netfilter.UnreadableError)) {
		return nil, err
	}
	var unreadable []string
	for _, name := range tableNames() {
		if _, listed := tables[name]; listed || f.variant != netfilter.VariantNFT {
			continue
		}
		t, err := netfilter.ReadTable(ctx, p.Path, f.v6, name, ChainPrefix)
		if err != nil {
			return nil, err
		}
		if len(t.Chains) > 0 {
			unreadable = append(unreadable, name)
			tables[name] = f.withWritten(name, t)
		}
	}
	if !slices.Equal(unreadable, f.unreadable) && len(unreadable) > 0 {
		f.logger.Warn("the program cannot show tables, which are read from the kernel; "+
			"move rules that only nft can write to a table of their own", "command", p.Path, "tables", unreadable)
	}
	f.unreadable = unreadable
	return tables, nil
}

// withHidden returns a table as it was listed, or as it is in the kernel if the listing left out chains or jumps of
// ours: they would be written again and again. It asks the kernel only if chains of ours or jumps to them are missing.
func (f *iptablesFamily) withHidden(
	ctx context.Context, p netfilter.Program, name string, listed netfilter.Table, want map[string][]netfilter.Rule,
) (netfilter.Table, error) {
	isMissing := func(h hook) bool {
		return h.table == name && len(want[h.own]) > 0 && (!listed.HasChain(h.own) || h.count(listed) == 0)
	}
	if f.variant != netfilter.VariantNFT || slices.Contains(f.unreadable, name) ||
		!slices.ContainsFunc(hooks(), isMissing) {
		return listed, nil
	}
	t, err := netfilter.ReadTable(ctx, p.Path, f.v6, name, ChainPrefix)
	if err != nil {
		return listed, err
	}
	isHidden := func(h hook) bool {
		return h.table == name && (h.count(t) > h.count(listed) || t.HasChain(h.own) && !listed.HasChain(h.own))
	}
	if !slices.ContainsFunc(hooks(), isHidden) {
		return listed, nil
	}
	f.unreadable = append(f.unreadable, name)
	return f.withWritten(name, t), nil
}

// mayHide reports whether the kernel may have chains of ours in a table that its listing does not show.
func (f *iptablesFamily) mayHide(name string, listed netfilter.Table) bool {
	isOurs := func(chain string) bool { return strings.HasPrefix(chain, ChainPrefix) }
	return f.variant == netfilter.VariantNFT &&
		(slices.Contains(f.unreadable, name) || !slices.ContainsFunc(listed.Chains, isOurs))
}

// count returns the number of jumps in a table.
func (h hook) count(t netfilter.Table) int {
	n := 0
	for _, r := range t.Rules {
		if slices.Equal(r, h.jump()) {
			n++
		}
	}
	return n
}

// withWritten returns a table in which chains of ours that the program cannot show have the rules that this process
// wrote last, as long as their number is the same.
func (f *iptablesFamily) withWritten(name string, t netfilter.Table) netfilter.Table {
	rules := slices.Clone(t.Rules)
	for chain, wrote := range f.wrote[name] {
		unshown := t.Chain(chain)
		if len(unshown) != len(wrote) || slices.ContainsFunc(unshown, func(r netfilter.Rule) bool { return len(r) > 2 }) {
			continue
		}
		rules = slices.DeleteFunc(rules, func(r netfilter.Rule) bool { return r[1] == chain })
		rules = append(rules, wrote...)
	}
	t.Rules = rules
	return t
}

// describeUnreadable returns what keeps the program from showing tables, "" if it can show all.
func (f *iptablesFamily) describeUnreadable() string {
	if len(f.unreadable) == 0 {
		return ""
	}
	family := map[bool]string{false: "ip ", true: "ip6 "}[f.v6]
	return family + strings.Join(f.unreadable, ", "+family)
}
