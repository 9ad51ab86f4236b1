package firewall

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"

	"github.com/google/nftables"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// readOwnTable lists our table. Where others write all the time, two consecutive listings with equal results are
// enough: their changes do not concern our table.
func readOwnTable(c *netfilter.Conn) (nftState, error) {
	var all []nftState // results with no error in between
	err := c.Settled(func() error {
		now, err := listOwnTable(c)
		if all = append(all, now); err != nil {
			all = nil
		}
		return err
	})
	last := len(all) - 1
	switch {
	case errors.Is(err, netfilter.ErrUnsettled) && last > 0 && reflect.DeepEqual(all[last], all[last-1]):
		return all[last], nil
	case err != nil:
		return nftState{}, err
	}
	return all[last], nil
}

// listOwnTable lists our table in several calls.
func listOwnTable(c *netfilter.Conn) (state nftState, err error) {
	table, err := c.ListTableOfFamily(TableName, nftables.TableFamilyINet)
	if errors.Is(err, fs.ErrNotExist) {
		return state, nil
	}
	if err != nil {
		return state, fmt.Errorf("list tables: %w", err)
	}
	state.exists, state.flags = true, table.Flags
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return state, fmt.Errorf("list chains: %w", err)
	}
	rules, err := c.Rules(nftables.TableFamilyINet, TableName)
	if err != nil {
		return state, fmt.Errorf("list rules: %w", err)
	}
	for _, chain := range chains {
		if chain.Table.Name == TableName {
			have := nftChain{name: chain.Name, base: netfilter.BaseOf(chain), rules: rules[chain.Name]}
			state.chains = append(state.chains, have)
		}
	}
	return state, nil
}

// writeOwnTable makes a change. It adds what it deletes, so that it is no error when another program has deleted it in
// the meantime.
func writeOwnTable(c *netfilter.Conn, change nftChange) error {
	table := &nftables.Table{Name: TableName, Family: nftables.TableFamilyINet}
	if change.drop {
		c.AddTable(table)
		c.DelTable(table)
	}
	if len(change.fill) > 0 {
		c.AddTable(table)
	}
	for _, chain := range change.fill {
		fillChain(c, table, chain)
	}
	if err := c.Flush(); err != nil {
		return err
	}
	if len(change.remove) > 0 {
		c.AddTable(table)
	}
	var gone []*nftables.Chain
	for _, name := range change.remove {
		gone = append(gone, c.AddChain(&nftables.Chain{Name: name, Table: table}))
	}
	c.DeleteChains(gone)
	return c.Flush()
}

// fillChain replaces the rules of one chain of ours.
func fillChain(c *netfilter.Conn, table *nftables.Table, chain nftChain) {
	base := chain.base
	to := c.AddChain(&nftables.Chain{
		Name:     chain.name,
		Table:    table,
		Type:     base.Type,
		Hooknum:  &base.Hook,
		Priority: &base.Priority,
		Policy:   &base.Policy,
	})
	c.FlushChain(to)
	for _, r := range chain.rules {
		c.AddRule(&nftables.Rule{Table: table, Chain: to, Exprs: r.Exprs, UserData: r.UserData})
	}
}
