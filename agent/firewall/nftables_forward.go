package firewall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// ForwardDrop is a chain of somebody else's that the kernel calls for every
// forwarded packet and that ends in refusing what it does not know.
type ForwardDrop struct {
	Family string // ip, ip6, or inet for both
	Table  string
	Chain  string
	By     string // "policy drop", "rule drop", "rule reject"
}

// String is as the program nft names chains: "ip filter FORWARD (policy drop)".
func (d ForwardDrop) String() string {
	return fmt.Sprintf("%s %s %s (%s)", d.Family, d.Table, d.Chain, d.By)
}

// ForwardDrops lists them, sorted. Rules of leno's in nftables that accept
// forwarded packets cannot overrule them: an accept ends the chain it stands in,
// and the kernel goes on with the others of the hook, while a drop is final.
// Rules of the kind iptables stand inside the chain of that name, before what
// drops there.
//
// It reads nf_tables, hence also what iptables-nft made, but not iptables-legacy.
// A chain is judged by its policy and its rules without conditions; whether one
// with conditions lets the packets of a network through before is not known. It
// needs CAP_NET_ADMIN and looks into the calling thread's network namespace; a
// kernel without nf_tables has none.
func ForwardDrops(ctx context.Context) ([]ForwardDrop, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	conn, err := openNFT()
	if err != nil {
		return nftNoDrops(err)
	}
	var out []ForwardDrop
	err = conn.settled(func() error {
		out = nil
		return conn.forwardDrops(&out)
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

func (c *nftConn) forwardDrops(out *[]ForwardDrop) error {
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
		if base := nftBaseOf(chain); !routed || ours || base.kind != nftables.ChainTypeFilter || base.hook != *nftables.ChainHookForward {
			continue
		}
		rules, err := c.rules(chain.Table.Family, chain.Table.Name, chain.Name)
		if err != nil {
			return err
		}
		if by := nftRefusal(nftBaseOf(chain).policy, rules[chain.Name]); by != "" {
			*out = append(*out, ForwardDrop{Family: family, Table: chain.Table.Name, Chain: chain.Name, By: by})
		}
	}
	return nil
}

// nftRefusal says by what a base chain refuses the packets that no rule with
// conditions decides about; "" when it lets them pass.
func nftRefusal(policy nftables.ChainPolicy, rules []nftRule) string {
	for _, r := range rules {
		switch verdict := nftUnconditional(r); verdict {
		case "": // goes on
		case "accept":
			return ""
		case "return":
			return nftRefusal(policy, nil)
		default:
			return "rule " + verdict
		}
	}
	if policy == nftables.ChainPolicyDrop {
		return "policy drop"
	}
	return ""
}

// nftUnconditional is what a rule does with every packet: "accept", "return",
// "drop", "reject", or "" for nothing final and for rules with conditions.
func nftUnconditional(r nftRule) string {
	for _, e := range r.exprs {
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Verdict:
			return map[expr.VerdictKind]string{expr.VerdictAccept: "accept", expr.VerdictReturn: "return", expr.VerdictDrop: "drop"}[e.Kind]
		case *expr.Reject:
			return "reject"
		case nftExtension:
			if e.name == "REJECT" {
				return "reject"
			}
			if e.name != "comment" {
				return ""
			}
		default:
			return ""
		}
	}
	return ""
}
