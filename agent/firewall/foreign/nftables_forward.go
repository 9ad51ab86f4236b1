package foreign

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

	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// forwardDrop is a chain of another program that the kernel calls for every forwarded packet and that lets no new
// connection through.
type forwardDrop struct {
	family string // ip, ip6, or inet for both
	table  string
	chain  string
	reason string // "policy drop", "rule drop", "rule reject"
}

// String returns the chain in the notation of the program nft: "ip filter FORWARD (policy drop)".
func (d forwardDrop) String() string {
	return fmt.Sprintf("%s %s %s (%s)", d.family, d.table, d.chain, d.reason)
}

// readForwardDrops returns such chains, sorted. Rules of leno in nftables that accept forwarded packets cannot overrule
// them: an accept ends only its own chain, and the kernel goes on with the others of the hook, while a drop is final.
//
// It returns only chains it is sure of: it leaves out a chain in which an earlier rule may let packets of a network
// pass, by an accept with conditions or in a chain it leads to. An empty result is therefore no proof. It reads
// nf_tables without any program, hence not the rules of iptables-legacy. It needs CAP_NET_ADMIN and reads the calling
// thread's network namespace; a kernel without nf_tables has no such chains.
func readForwardDrops(ctx context.Context) ([]forwardDrop, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	conn, err := netfilter.Open()
	if err != nil {
		return ignoreMissingNFTables(err)
	}
	var out []forwardDrop
	err = conn.Settled(func() error {
		out = nil
		return listForwardDrops(conn, &out)
	})
	if err = errors.Join(err, conn.CloseLasting()); err != nil {
		return ignoreMissingNFTables(err)
	}
	slices.SortFunc(out, func(a, b forwardDrop) int { return strings.Compare(a.String(), b.String()) })
	return out, nil
}

// ignoreMissingNFTables returns no chains where the kernel has no nf_tables, and the error otherwise.
func ignoreMissingNFTables(err error) ([]forwardDrop, error) {
	if netfilter.IsNFTMissing(err) {
		return nil, nil
	}
	return nil, fmt.Errorf("nftables: list chains that forward: %w", netfilter.ExplainNFT(err))
}

func listForwardDrops(c *netfilter.Conn, out *[]forwardDrop) error {
	chains, err := c.ListChains()
	if err != nil {
		return err
	}
	families := map[nftables.TableFamily]string{
		nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
	}
	for _, chain := range chains {
		family, routed := families[chain.Table.Family]
		ours := family == "inet" && chain.Table.Name == firewall.TableName
		base := netfilter.BaseOf(chain)
		forwards := base.Type == nftables.ChainTypeFilter && base.Hook == *nftables.ChainHookForward
		if !routed || ours || !forwards {
			continue
		}
		rules, err := c.Rules(chain.Table.Family, chain.Table.Name, chain.Name)
		if err != nil {
			return err
		}
		if by := findRefusal(base.Policy, rules[chain.Name]); by != "" {
			*out = append(*out, forwardDrop{family: family, table: chain.Table.Name, chain: chain.Name, reason: by})
		}
	}
	return nil
}

// forwardBases returns the result of readForwardDrops as base chains to trace packets through, for a host without the
// program that lists all of them. skip holds the tables that are known from elsewhere.
func forwardBases(ctx context.Context, skip map[string]bool) ([]baseChain, error) {
	drops, err := readForwardDrops(ctx)
	if err != nil {
		return nil, err
	}
	var out []baseChain
	for _, d := range drops {
		if skip[d.family+" "+d.table] {
			continue
		}
		b := baseChain{
			where: fmt.Sprintf("nftables table %s %s chain %s", d.family, d.table, d.chain),
			chain: d.chain,
			hook:  hookForward,
			v4:    d.family != "ip6",
			v6:    d.family != "ip",
		}
		if rule, found := strings.CutPrefix(d.reason, "rule "); found {
			b.lines = map[string][]line{d.chain: {{text: rule, action: dropPacket}}}
		} else {
			b.drops = true
		}
		out = append(out, b)
	}
	return out, nil
}

// findRefusal returns how a base chain refuses every new connection, for example "policy drop"; "" when it does not,
// or that is not sure.
func findRefusal(policy nftables.ChainPolicy, rules []netfilter.NFTRule) string {
	for _, r := range rules {
		verdict, always := endOfRule(r)
		switch {
		case verdict == "" || !always && (verdict == "drop" || verdict == "reject"):
		case verdict == "accept" && isForEstablished(r):
		case verdict == "return" && always:
			return findRefusal(policy, nil)
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

// endOfRule returns what a rule does with packets: "accept", "return", "drop", "reject", "other" for an unknown action,
// or "" for a rule that does not end the chain; and whether it does so with all packets.
func endOfRule(r netfilter.NFTRule) (verdict string, always bool) {
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
		case netfilter.VerdictMap:
			always, verdict = false, "other"
		case netfilter.Unknown:
			always = false
			if e.Name != "immediate" { // which is a value
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

// isForEstablished reports whether a rule is only for established connections: its first condition is `ct state
// established` or the like.
func isForEstablished(r netfilter.NFTRule) bool {
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
