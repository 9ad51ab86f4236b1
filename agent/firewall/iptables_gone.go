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

// A program that was uninstalled, or broke, leaves its rules in the kernel. They must be removed even so when another
// kind holds the rules.

// removeWithout removes our rules without the program, and returns the tables written. Those of iptables-nft are
// nf_tables objects like any others. A legacy table can only be replaced as a whole, which only its program should
// do: rules of ours in it are an error.
func (f *iptablesFamily) removeWithout(why error) (written []string, err error) {
	if f.variant == netfilter.VariantNFT {
		return f.removeNFT()
	}
	err = netfilter.EachLegacy(f.v6, tableNames(), func(name string, entries []byte) error {
		if holdsOurs(entries) {
			return fmt.Errorf("table %s has chains of ours: %w", name, why)
		}
		return nil
	})
	return nil, err
}

// holdsOurs reports whether one of the chains is ours. Each chain begins with an entry that holds its name after a
// zero byte (struct xt_error_target).
func holdsOurs(entries []byte) bool { return bytes.Contains(entries, []byte("\x00"+ChainPrefix)) }

func (f *iptablesFamily) removeNFT() (written []string, err error) {
	family := nftables.TableFamilyIPv4
	if f.v6 {
		family = nftables.TableFamilyIPv6
	}
	err = netfilter.WithConn(func(c *netfilter.Conn) error {
		var jumps []*nftables.Rule
		var own []*nftables.Chain
		if err := c.Settled(func() (err error) {
			jumps, own, err = ownOfPrograms(c, family)
			return err
		}); err != nil {
			return err
		}
		for _, r := range jumps {
			if err := c.DelRule(r); err != nil {
				return err
			}
		}
		// All are emptied before any is deleted, since they may jump to each other.
		for _, chain := range own {
			c.FlushChain(chain)
		}
		for _, chain := range own {
			c.DelChain(chain)
			if what := fmt.Sprintf("%s table %s", f.named(), chain.Table.Name); !slices.Contains(written, what) {
				written = append(written, what)
			}
		}
		return c.Flush()
	})
	if netfilter.IsNFTMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return written, nil
}

// ownOfPrograms returns our chains in the tables of iptables-nft, and the rules that jump to them.
func ownOfPrograms(c *netfilter.Conn, family nftables.TableFamily) (jumps []*nftables.Rule, own []*nftables.Chain, err error) {
	chains, err := c.ListChainsOfTableFamily(family)
	if err != nil {
		return nil, nil, fmt.Errorf("list chains: %w", err)
	}
	has := map[string]bool{}
	for _, chain := range chains {
		if strings.HasPrefix(chain.Name, ChainPrefix) && ours(chain.Table.Name) {
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
		jumps = append(jumps, slices.DeleteFunc(rules, func(r *nftables.Rule) bool { return !jumpsToOurs(r) })...)
	}
	return jumps, own, nil
}

func jumpsToOurs(r *nftables.Rule) bool {
	return slices.ContainsFunc(r.Exprs, func(e expr.Any) bool {
		verdict, ok := e.(*expr.Verdict)
		return ok && (verdict.Kind == expr.VerdictJump || verdict.Kind == expr.VerdictGoto) && strings.HasPrefix(verdict.Chain, ChainPrefix)
	})
}
