package firewall

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// ForwardDrop is a chain of another program that the kernel calls for every forwarded packet and that lets no new
// connection through.
type ForwardDrop struct {
	Family string // ip, ip6, or inet for both
	Table  string
	Chain  string
	By     string // "policy drop", "rule drop", "rule reject"
}

// String returns the chain in the notation of the program nft: "ip filter FORWARD (policy drop)".
func (d ForwardDrop) String() string {
	return fmt.Sprintf("%s %s %s (%s)", d.Family, d.Table, d.Chain, d.By)
}

// ForwardDrops returns such chains, sorted. Rules of leno in nftables that accept forwarded packets cannot overrule
// them: an accept ends only its own chain, and the kernel goes on with the others of the hook, while a drop is final.
//
// It returns only chains it is sure of: it leaves out a chain in which an earlier rule may let packets of a network
// pass, by an accept with conditions or in a chain it leads to. An empty result is therefore no proof. It reads
// nf_tables without any program, hence not the rules of iptables-legacy. It needs CAP_NET_ADMIN and reads the calling
// thread's network namespace; a kernel without nf_tables has no such chains.
func ForwardDrops(ctx context.Context) ([]ForwardDrop, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	conn, err := netfilter.Open()
	if err != nil {
		return nftNoDrops(err)
	}
	var out []ForwardDrop
	err = conn.Settled(func() error {
		out = nil
		return forwardDrops(conn, &out)
	})
	if err = errors.Join(err, conn.CloseLasting()); err != nil {
		return nftNoDrops(err)
	}
	slices.SortFunc(out, func(a, b ForwardDrop) int { return strings.Compare(a.String(), b.String()) })
	return out, nil
}

func nftNoDrops(err error) ([]ForwardDrop, error) {
	if err = nftUnlisted(err); errors.Is(err, ErrNotInstalled) {
		return nil, nil
	}
	return nil, fmt.Errorf("nftables: list chains that forward: %w", err)
}

func forwardDrops(c *netfilter.Conn, out *[]ForwardDrop) error {
	chains, err := c.ListChains()
	if err != nil {
		return err
	}
	families := map[nftables.TableFamily]string{
		nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
	}
	for _, chain := range chains {
		family, routed := families[chain.Table.Family]
		ours := family == "inet" && chain.Table.Name == nftTable
		if base := netfilter.BaseOf(chain); !routed || ours || base.Type != nftables.ChainTypeFilter || base.Hook != *nftables.ChainHookForward {
			continue
		}
		rules, err := c.Rules(chain.Table.Family, chain.Table.Name, chain.Name)
		if err != nil {
			return err
		}
		if by := nftRefusal(netfilter.BaseOf(chain).Policy, rules[chain.Name]); by != "" {
			*out = append(*out, ForwardDrop{Family: family, Table: chain.Table.Name, Chain: chain.Name, By: by})
		}
	}
	return nil
}

// forwardBases returns the result of ForwardDrops as base chains to trace packets through, for a host without the
// program that lists all of them. skip holds the tables that are known from elsewhere.
func forwardBases(ctx context.Context, skip map[string]bool) ([]base, error) {
	drops, err := ForwardDrops(ctx)
	if err != nil {
		return nil, err
	}
	var out []base
	for _, d := range drops {
		if skip[d.Family+" "+d.Table] {
			continue
		}
		b := base{where: fmt.Sprintf("nftables table %s %s chain %s", d.Family, d.Table, d.Chain), chain: d.Chain, hook: forwarding,
			v4: d.Family != "ip6", v6: d.Family != "ip"}
		if rule, found := strings.CutPrefix(d.By, "rule "); found {
			b.lines = map[string][]line{d.Chain: {{text: rule, action: dropped}}}
		} else {
			b.drops = true
		}
		out = append(out, b)
	}
	return out, nil
}

// nftRefusal returns how a base chain refuses every new connection, for example "policy drop"; "" when it does not,
// or that is not sure.
func nftRefusal(policy nftables.ChainPolicy, rules []netfilter.NFTRule) string {
	for _, r := range rules {
		verdict, always := nftEnd(r)
		switch {
		case verdict == "" || !always && (verdict == "drop" || verdict == "reject"):
		case verdict == "accept" && nftUnderWay(r):
		case verdict == "return" && always:
			return nftRefusal(policy, nil)
		case verdict == "drop" || verdict == "reject":
			return "rule " + verdict
		default:
			return ""
		}
	}
	if policy == nftables.ChainPolicyDrop {
		return "policy drop"
	}
	return ""
}

// nftEnd returns what a rule does with packets: "accept", "return", "drop", "reject", "other" for an unknown action,
// or "" for a rule that does not end the chain; and whether it does so with all packets.
func nftEnd(r netfilter.NFTRule) (verdict string, always bool) {
	always = true
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Verdict:
			verdict = map[expr.VerdictKind]string{expr.VerdictAccept: "accept", expr.VerdictReturn: "return",
				expr.VerdictDrop: "drop", expr.VerdictContinue: ""}[e.Kind]
			if verdict == "" && e.Kind != expr.VerdictContinue {
				verdict = "other" // into another chain
			}
		case *expr.Reject:
			verdict = "reject"
		case netfilter.Extension:
			switch {
			case e.Target && e.Name == "REJECT":
				verdict = "reject"
			case e.Target:
				verdict = "other"
			case e.Name != "comment":
				always = false
			}
		case netfilter.Unknown:
			always = false
			if e.Name != "immediate" { // a verdict map, perhaps; an immediate is a value
				verdict = "other"
			}
		default:
			always = false
		}
		if verdict != "" {
			return verdict, always
		}
	}
	return "", always
}

// nftUnderWay reports whether a rule is only for established connections: its first condition is `ct state
// established` or the like.
func nftUnderWay(r netfilter.NFTRule) bool {
	const isNew = 1 << 3 // NF_CT_STATE_BIT(IP_CT_NEW)
	if len(r.Exprs) < 3 {
		return false
	}
	state, ok := r.Exprs[0].(*expr.Ct)
	mask, masked := r.Exprs[1].(*expr.Bitwise)
	some, compared := r.Exprs[2].(*expr.Cmp)
	return ok && masked && compared && state.Key == expr.CtKeySTATE && len(mask.Mask) == 4 && len(mask.Xor) == 4 &&
		binary.NativeEndian.Uint32(mask.Mask)&isNew == 0 && binary.NativeEndian.Uint32(mask.Xor) == 0 &&
		some.Op == expr.CmpOpNeq && bytes.Equal(some.Data, make([]byte, 4))
}
