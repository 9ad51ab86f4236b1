package kernel

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/reconcile"
)

// A PoolRule is a routing rule with leno's protocol for packets to a prefix. The text is that of Rule.
type PoolRule struct {
	Dst netip.Prefix
	Rule
}

// PreferMain makes routing rules with a priority, by which the kernel uses the main table for packets to the owner's
// pools, or removes them if the priority is 0. It leaves rules of other programs alone. If the rules stood, which this
// process has made before, it returns what another program had changed. It acts in the network namespace of the calling
// thread.
func PreferMain(ctx context.Context, owner Owner, priority int, stood bool) (repaired []backend.Repair, err error) {
	handle, err := Open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, handle.Close()) }()
	want := map[PoolRule]struct{}{}
	for _, p := range owner.Parts() {
		if priority > 0 && (p.Addr().Is4() || kernelHasIPv6()) {
			want[PoolRule{p, Rule{priority, ruleText(*mainRule(p, priority))}}] = struct{}{}
		}
	}
	var last map[PoolRule]struct{}
	if stood {
		last = want
	}
	result, err := reconcile.Apply(ctx, reconcile.Want("rule", &rules{handle, owner}, ComparePoolRules, want, &last))
	return result.Repaired(), err
}

// ComparePoolRules orders rules by priority.
func ComparePoolRules(a, b PoolRule) int {
	return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Text, b.Text))
}

// Rules returns the table of the routing rules with leno's protocol for packets to addresses in the pools.
func (h *Handle) Rules(pools []netip.Prefix) reconcile.Table[PoolRule, struct{}] {
	return &rules{h, Owner{Pools: pools}}
}

type rules struct {
	h     *Handle
	owner Owner // of its fields, only Pools and Except count
}

func (t *rules) List(ctx context.Context) (map[PoolRule]struct{}, error) { return listing(ctx, t.list) }

func (t *rules) list() (map[PoolRule]struct{}, error) {
	families := []int{netlink.FAMILY_V4}
	if kernelHasIPv6() {
		families = append(families, netlink.FAMILY_V6)
	}
	entries := map[PoolRule]struct{}{}
	var interrupted error
	for _, family := range families {
		found, err := t.h.nl.RuleList(family)
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			interrupted = err
		} else if err != nil {
			return nil, err
		}
		for _, r := range found {
			if r.Protocol != Protocol || r.Dst == nil {
				continue
			}
			dst := ToPrefix(r.Dst)
			if t.owner.Owns(RouteKey{Dst: dst}, Route{}) {
				entries[PoolRule{dst, Rule{r.Priority, ruleText(r)}}] = struct{}{}
			}
		}
	}
	return entries, interrupted
}

// Write adds rules that lead to the main table. If another program has added the same rule, that one is enough.
func (t *rules) Write(ctx context.Context, changes []reconcile.Change[PoolRule, struct{}]) []error {
	errs := make([]error, len(changes))
	for i, c := range changes {
		if errs[i] = ctx.Err(); errs[i] != nil {
			continue
		}
		rule, write, done := mainRule(c.Key.Dst, c.Key.Priority), t.h.nl.RuleAdd, unix.EEXIST
		if c.New == nil {
			rule.Table, write, done = unix.RT_TABLE_UNSPEC, t.h.nl.RuleDel, unix.ENOENT
		}
		if err := write(rule); !errors.Is(err, done) {
			errs[i] = err
		}
	}
	return errs
}

// mainRule returns the rule that leads packets to a prefix to the main table.
func mainRule(dst netip.Prefix, priority int) *netlink.Rule {
	r := netlink.NewRule()
	r.Dst = &net.IPNet{IP: dst.Addr().AsSlice(), Mask: net.CIDRMask(dst.Bits(), dst.Addr().BitLen())}
	r.Table, r.Priority, r.Protocol = unix.RT_TABLE_MAIN, priority, Protocol
	return r
}
