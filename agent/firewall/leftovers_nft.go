package firewall

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// leftTables is Leftovers for nftables: the one table that every version makes. A table of our name in another
// family, or one whose name only begins like ours, is an operator's.
func leftTables(network string) (out []Leftover, err error) {
	err = netfilter.WithConn(func(c *netfilter.Conn) error {
		return c.Settled(func() error {
			out = nil
			tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
			if err != nil {
				return fmt.Errorf("list tables: %w", err)
			}
			for _, t := range tables {
				if t.Name != TableName {
					continue
				}
				l, err := leftOf(c, t, network)
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

// nftHolds returns the tables that have chains like those that iptables-nft makes for us.
func nftHolds(v6 bool) (tables []string, err error) {
	family := nftables.TableFamilyIPv4
	if v6 {
		family = nftables.TableFamilyIPv6
	}
	err = netfilter.WithConn(func(c *netfilter.Conn) error {
		_, own, err := ownOfPrograms(c, family)
		for _, chain := range own {
			if !slices.Contains(tables, chain.Table.Name) {
				tables = append(tables, chain.Table.Name)
			}
		}
		return err
	})
	if netfilter.IsNFTMissing(err) {
		return nil, nil
	}
	return tables, err
}

// leftOf returns the part of a table to remove: all of it, unless it has rules of networks other than the named one.
func leftOf(c *netfilter.Conn, t *nftables.Table, network string) (Leftover, error) {
	name := nftTableName
	whole := Leftover{Program: "nft", Table: name, Parts: []string{"table " + name}, remove: func(context.Context) error {
		return netfilter.WithConn(func(c *netfilter.Conn) error {
			c.DelTable(t)
			return c.Flush()
		})
	}}
	if network == "" {
		return whole, nil
	}
	chains, err := c.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return Leftover{}, fmt.Errorf("list chains: %w", err)
	}
	var gone []*nftables.Rule
	others := false
	part := Leftover{Program: "nft", Table: name}
	for _, chain := range chains {
		if chain.Table.Name != t.Name {
			continue
		}
		rules, err := c.GetRules(t, chain)
		if err != nil {
			return Leftover{}, fmt.Errorf("list rules: %w", err)
		}
		for _, r := range rules {
			comment, _ := userdata.GetString(r.UserData, userdata.TypeComment)
			if comment != (rule{network: network}).comment() {
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
