package firewall

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// Uninstalled is one family and variant of iptables whose program was uninstalled, broke, or cannot show a table. It
// leaves its rules in the kernel, where they must be found and removed even so.
type Uninstalled struct {
	Variant string // netfilter.VariantNFT or netfilter.VariantLegacy
	V6      bool
	Table   string // the only table that is meant; "" for all
}

// Tables returns the tables that have chains of ours.
func (u Uninstalled) Tables() (tables []string, err error) {
	if u.Variant == netfilter.VariantLegacy {
		err = netfilter.EachLegacy(u.V6, tableNames(), func(name string, entries []byte) error {
			if hasOurs(entries) {
				tables = append(tables, name)
			}
			return nil
		})
		return tables, err
	}
	err = netfilter.WithConn(func(c *netfilter.Conn) error {
		_, own, err := u.ownOfPrograms(c)
		tables = tablesOf(own)
		return err
	})
	if netfilter.IsNFTMissing(err) {
		return nil, nil
	}
	return tables, err
}

// Remove removes our rules and returns the tables written. Those of iptables-nft are nf_tables objects like any others.
// A legacy table can only be replaced as a whole, which only its program should do: rules of ours in it are an error,
// which wraps why, the reason why the program cannot be used.
func (u Uninstalled) Remove(why error) (tables []string, err error) {
	if u.Variant == netfilter.VariantLegacy {
		if tables, err = u.Tables(); len(tables) > 0 {
			err = fmt.Errorf("table %s has chains of ours: %w", tables[0], why)
		}
		return nil, err
	}
	err = netfilter.WithConn(func(c *netfilter.Conn) error {
		var jumps []*nftables.Rule
		var own []*nftables.Chain
		if err := c.Settled(func() (err error) {
			jumps, own, err = u.ownOfPrograms(c)
			return err
		}); err != nil {
			return err
		}
		for _, r := range jumps {
			if err := c.DelRule(r); err != nil {
				return err
			}
		}
		c.DeleteChains(own)
		tables = tablesOf(own)
		return c.Flush()
	})
	switch {
	case netfilter.IsNFTMissing(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return tables, nil
}

// tablesOf returns the names of the chains' tables.
func tablesOf(chains []*nftables.Chain) (tables []string) {
	for _, chain := range chains {
		if !slices.Contains(tables, chain.Table.Name) {
			tables = append(tables, chain.Table.Name)
		}
	}
	return tables
}

// hasOurs reports whether one of the chains is ours. Each chain begins with an entry that holds its name after a
// zero byte (struct xt_error_target).
func hasOurs(entries []byte) bool { return bytes.Contains(entries, []byte("\x00"+ChainPrefix)) }

// ownOfPrograms returns our chains in the tables of iptables-nft, and the rules that jump to them.
func (u Uninstalled) ownOfPrograms(c *netfilter.Conn) (
	jumps []*nftables.Rule, own []*nftables.Chain, err error,
) {
	chains, err := c.ListChainsOfTableFamily(netfilter.FamilyOf(u.V6))
	if err != nil {
		return nil, nil, fmt.Errorf("list chains: %w", err)
	}
	has := map[string]bool{}
	for _, chain := range chains {
		meant := u.Table == "" && isOurTable(chain.Table.Name) || u.Table == chain.Table.Name
		if meant && strings.HasPrefix(chain.Name, ChainPrefix) {
			own = append(own, chain)
			has[chain.Table.Name] = true
		}
	}
	for _, chain := range chains {
		if !has[chain.Table.Name] || strings.HasPrefix(chain.Name, ChainPrefix) {
			continue
		}
		rules, err := c.GetRules(chain.Table, chain)
		if err != nil {
			return nil, nil, fmt.Errorf("list rules of %s: %w", chain.Name, err)
		}
		jumps = append(jumps, slices.DeleteFunc(rules, func(r *nftables.Rule) bool { return !isJumpToOurs(r) })...)
	}
	return jumps, own, nil
}

func isJumpToOurs(r *nftables.Rule) bool {
	return slices.ContainsFunc(r.Exprs, func(e expr.Any) bool {
		verdict, ok := e.(*expr.Verdict)
		return ok && (verdict.Kind == expr.VerdictJump || verdict.Kind == expr.VerdictGoto) &&
			strings.HasPrefix(verdict.Chain, ChainPrefix)
	})
}
