package firewall

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// nftTries is how often a listing is started again because another program wrote during it.
	nftTries = 10
	// nftTimeout bounds one answer of the kernel. Other programs' transactions can delay it.
	nftTimeout = 10 * time.Second
	// nftBuffer is enough for the messages of more than a thousand rules and their answers; the default is enough for
	// a hundred.
	nftBuffer = 8 << 20
)

// nftConn is a netlink socket of the calling thread's network namespace. The library collects the queued messages and
// sends them as one transaction.
type nftConn struct {
	*nftables.Conn
	// socket is the same socket, for what the library cannot do: it leaves out expressions it does not know, and has
	// no call for the generation.
	socket *netlink.Conn
}

func openNFT() (*nftConn, error) {
	c := &nftConn{}
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(socket *netlink.Conn) error {
		c.socket = socket
		return errors.Join(socket.SetDeadline(time.Now().Add(nftTimeout)), socket.SetReadBuffer(nftBuffer), socket.SetWriteBuffer(nftBuffer))
	}))
	if err != nil {
		return nil, err
	}
	c.Conn = conn
	return c, nil
}

// nftRequest returns a message that names no object or a table of ours.
func nftRequest(kind uint16, flags netlink.HeaderFlags, family nftables.TableFamily, attributes []netlink.Attribute) (netlink.Message, error) {
	data, err := netlink.MarshalAttributes(attributes)
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags},
		// struct nfgenmsg: family, version, resource id.
		Data: append([]byte{byte(family), unix.NFNETLINK_V0, 0, 0}, data...),
	}, err
}

// generation returns the number of transactions this network namespace has seen.
func (c *nftConn) generation() (uint32, error) {
	message, err := nftRequest(unix.NFT_MSG_GETGEN, 0, nftables.TableFamilyUnspecified, nil)
	if err != nil {
		return 0, err
	}
	answer, err := c.socket.Execute(message)
	if err != nil {
		return 0, err
	}
	generation, found := uint32(0), false
	for _, m := range answer {
		err = errors.Join(err, nftMessage(m, func(a *netlink.AttributeDecoder) {
			if a.Type() == unix.NFTA_GEN_ID {
				generation, found = a.Uint32(), true
			}
		}))
	}
	if err == nil && !found {
		err = errors.New("the kernel named no generation")
	}
	return generation, err
}

// settled runs a listing until no program wrote during it: a listing takes several calls, and an interrupted one may
// be incomplete.
func (c *nftConn) settled(list func() error) error {
	for range nftTries {
		before, err := c.generation()
		if err != nil {
			return err
		}
		listed := list()
		after, err := c.generation()
		if err != nil {
			return err
		}
		if before == after {
			return listed
		}
	}
	return fmt.Errorf("%w each of %d times they were listed", errUnsettled, nftTries)
}

var errUnsettled = errors.New("rules were changed by another program")

// state lists our table. Where others write all the time, two consecutive listings with equal results are enough:
// their changes do not concern our table.
func (c *nftConn) state() (nftState, error) {
	var all []nftState // results with no error in between
	err := c.settled(func() error {
		now, err := c.table()
		if all = append(all, now); err != nil {
			all = nil
		}
		return err
	})
	last := len(all) - 1
	switch {
	case errors.Is(err, errUnsettled) && last > 0 && reflect.DeepEqual(all[last], all[last-1]):
		return all[last], nil
	case err != nil:
		return nftState{}, err
	}
	return all[last], nil
}

// table lists our table in several calls.
func (c *nftConn) table() (state nftState, err error) {
	table, err := c.ListTableOfFamily(nftTable, nftables.TableFamilyINet)
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
	rules, err := c.rules(nftables.TableFamilyINet, nftTable, "")
	if err != nil {
		return state, fmt.Errorf("list rules: %w", err)
	}
	for _, chain := range chains {
		if chain.Table.Name == nftTable {
			state.chains = append(state.chains, nftChain{name: chain.Name, base: nftBaseOf(chain), rules: rules[chain.Name]})
		}
	}
	return state, nil
}

func nftBaseOf(chain *nftables.Chain) nftBase {
	out := nftBase{kind: chain.Type}
	if chain.Hooknum != nil && chain.Priority != nil {
		out.hook, out.priority = *chain.Hooknum, *chain.Priority
	}
	if chain.Policy != nil {
		out.policy = *chain.Policy
	}
	return out
}

// rules lists a table's rules by chain, in order, or those of one chain when it is named.
func (c *nftConn) rules(family nftables.TableFamily, table, chain string) (map[string][]nftRule, error) {
	only := []netlink.Attribute{{Type: unix.NFTA_RULE_TABLE, Data: append([]byte(table), 0)}}
	if chain != "" {
		only = append(only, netlink.Attribute{Type: unix.NFTA_RULE_CHAIN, Data: append([]byte(chain), 0)})
	}
	message, err := nftRequest(unix.NFT_MSG_GETRULE, netlink.Dump, family, only)
	if err != nil {
		return nil, err
	}
	answer, err := c.socket.Execute(message)
	if err != nil {
		return nil, err
	}
	out := map[string][]nftRule{}
	for _, m := range answer {
		chain, rule, err := nftRuleFrom(m)
		if err != nil {
			return nil, err
		}
		out[chain] = append(out[chain], rule)
	}
	return out, nil
}

// commit writes a change. It adds what it deletes, so that it is no error when another program has deleted it in the
// meantime.
func (c *nftConn) commit(change nftChange) error {
	table := &nftables.Table{Name: nftTable, Family: nftables.TableFamilyINet}
	if change.drop {
		c.AddTable(table)
		c.DelTable(table)
	}
	if len(change.fill) > 0 {
		c.AddTable(table)
	}
	for _, chain := range change.fill {
		c.fill(table, chain)
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
	// All are emptied before any is deleted, since they may jump to each other.
	for _, chain := range gone {
		c.FlushChain(chain)
	}
	for _, chain := range gone {
		c.DelChain(chain)
	}
	return c.Flush()
}

func (c *nftConn) fill(table *nftables.Table, chain nftChain) {
	base := chain.base
	to := c.AddChain(&nftables.Chain{Name: chain.name, Table: table, Type: base.kind, Hooknum: &base.hook, Priority: &base.priority, Policy: &base.policy})
	c.FlushChain(to)
	for _, r := range chain.rules {
		c.AddRule(&nftables.Rule{Table: table, Chain: to, Exprs: r.exprs, UserData: r.userdata})
	}
}
