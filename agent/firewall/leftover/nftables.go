package leftover

import (
	"context"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"

	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// inNFTables returns what is ours in nftables: the one table that every version makes. A table of our name in another
// family, or one whose name only begins like ours, is an operator's.
func inNFTables(network string) (out []Rules, err error) {
	err = netfilter.WithConn(func(c *netfilter.Conn) error {
		return c.Settled(func() error {
			out = nil
			tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
			if err != nil {
				return fmt.Errorf("list tables: %w", err)
			}
			for _, t := range tables {
				if t.Name != firewall.TableName {
					continue
				}
				l, err := rulesIn(c, t, network)
				if err != nil {
					return err
				}
				if len(l.Parts) > 0 {
					out = append(out, l)
				}
			}
			return nil
		})
	})
	if netfilter.IsNFTMissing(err) {
		return nil, nil
	}
	return out, err
}

// rulesIn returns the part of a table to remove: all of it, unless it has rules of networks other than the named one.
func rulesIn(c *netfilter.Conn, t *nftables.Table, network string) (Rules, error) {
	name := "inet " + firewall.TableName
	whole := Rules{Program: "nft", Table: name, Parts: []string{"table " + name}}
	whole.remove = func(context.Context) error {
		return netfilter.WithConn(func(c *netfilter.Conn) error {
			c.DelTable(t)
			return c.Flush()
		})
	}
	if network == "" {
		return whole, nil
	}
	chains, err := c.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return Rules{}, fmt.Errorf("list chains: %w", err)
	}
	var gone []*nftables.Rule
	others := false
	part := Rules{Program: "nft", Table: name}
	for _, chain := range chains {
		if chain.Table.Name != t.Name {
			continue
		}
		rules, err := c.GetRules(t, chain)
		if err != nil {
			return Rules{}, fmt.Errorf("list rules: %w", err)
		}
		for _, r := range rules {
			comment, _ := userdata.GetString(r.UserData, userdata.TypeComment)
			if comment != firewall.Comment(network) {
				others = true
				continue
			}
			gone = append(gone, r)
			part.Parts = append(part.Parts, fmt.Sprintf("rule %d of chain %s", r.Handle, chain.Name))
		}
	}
	if len(gone) > 0 && !others {
		return whole, nil
	}
	part.remove = func(context.Context) error {
		return netfilter.WithConn(func(c *netfilter.Conn) error {
			for _, r := range gone {
				if err := c.DelRule(r); err != nil {
					return err
				}
			}
			return c.Flush()
		})
	}
	return part, nil
}
