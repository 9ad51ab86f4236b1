package netfilter

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// listTries is how often a listing is started again because another program wrote during it.
	listTries = 10
	// answerTimeout bounds one answer of the kernel: see Conn.await. Other programs' transactions can delay it, and on a
	// busy host a transaction with the rules of hundreds of networks takes seconds.
	answerTimeout = 30 * time.Second
	// bufferSize is enough for the messages of more than a thousand rules and their answers; the default is enough for
	// a hundred.
	bufferSize = 8 << 20
)

// Conn is a netlink socket of the calling thread's network namespace. The library collects the queued messages and
// sends them as one transaction.
type Conn struct {
	*nftables.Conn
	// Socket is the same socket, for what the library cannot do: it leaves out expressions it does not know, and has
	// no call for the generation.
	Socket *netlink.Conn
}

// Open returns a connection, which the caller closes with CloseLasting.
func Open() (*Conn, error) {
	c := &Conn{}
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(socket *netlink.Conn) error {
		c.Socket = socket
		return errors.Join(
			c.await(),
			socket.SetReadBuffer(bufferSize),
			socket.SetWriteBuffer(bufferSize),
		)
	}))
	if err != nil {
		return nil, err
	}
	c.Conn = conn
	return c, nil
}

// await gives the kernel the full time for its next answer. The methods of Conn call it; a listing of the library's
// follows one of Generation.
func (c *Conn) await() error { return c.Socket.SetDeadline(time.Now().Add(answerTimeout)) }

// Flush sends the queued messages as one transaction.
func (c *Conn) Flush() error {
	if err := c.await(); err != nil {
		return err
	}
	return c.Conn.Flush()
}

// execute sends a message and returns the kernel's answer.
func (c *Conn) execute(message netlink.Message) ([]netlink.Message, error) {
	if err := c.await(); err != nil {
		return nil, err
	}
	return c.Socket.Execute(message)
}

// request returns a message with the given attributes.
func request(
	kind uint16, flags netlink.HeaderFlags, family nftables.TableFamily, attributes []netlink.Attribute,
) (netlink.Message, error) {
	data, err := netlink.MarshalAttributes(attributes)
	return netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind),
			Flags: netlink.Request | flags,
		},
		// struct nfgenmsg: family, version, resource id.
		Data: append([]byte{byte(family), unix.NFNETLINK_V0, 0, 0}, data...),
	}, err
}

// Generation returns the number of transactions that the calling thread's network namespace has seen: while it stays
// the same, no rule of nf_tables changed, and so none of iptables-nft. It needs no program and takes some microseconds.
func Generation() (uint32, error) {
	socket, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, err
	}
	generation, err := (&Conn{Socket: socket}).Generation()
	return generation, errors.Join(err, socket.Close())
}

// Generation returns the number of transactions this network namespace has seen.
func (c *Conn) Generation() (uint32, error) {
	message, err := request(unix.NFT_MSG_GETGEN, 0, nftables.TableFamilyUnspecified, nil)
	if err != nil {
		return 0, err
	}
	answer, err := c.execute(message)
	if err != nil {
		return 0, err
	}
	generation, found := uint32(0), false
	for _, m := range answer {
		err = errors.Join(err, eachAttributeOf(m, func(a *netlink.AttributeDecoder) {
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

// Settled runs a listing until no program wrote during it: a listing takes several calls, and an interrupted one may
// be incomplete.
func (c *Conn) Settled(list func() error) error {
	for range listTries {
		before, err := c.Generation()
		if err != nil {
			return err
		}
		listed := list()
		after, err := c.Generation()
		if err != nil {
			return err
		}
		if before == after {
			return listed
		}
	}
	return fmt.Errorf("%w each of %d times they were listed", ErrUnsettled, listTries)
}

// ErrUnsettled reports that other programs wrote during every listing.
var ErrUnsettled = errors.New("rules were changed by another program")

// Base tells where the kernel calls a chain; the zero value is for a chain that only other chains call.
type Base struct {
	Type     nftables.ChainType
	Hook     nftables.ChainHook
	Priority nftables.ChainPriority
	Policy   nftables.ChainPolicy
}

// BaseOf returns where the kernel calls the chain.
func BaseOf(chain *nftables.Chain) Base {
	out := Base{Type: chain.Type}
	if chain.Hooknum != nil && chain.Priority != nil {
		out.Hook, out.Priority = *chain.Hooknum, *chain.Priority
	}
	if chain.Policy != nil {
		out.Policy = *chain.Policy
	}
	return out
}

// Rules lists a table's rules by chain, in order.
func (c *Conn) Rules(family nftables.TableFamily, table string) (map[string][]NFTRule, error) {
	only := []netlink.Attribute{{Type: unix.NFTA_RULE_TABLE, Data: append([]byte(table), 0)}}
	message, err := request(unix.NFT_MSG_GETRULE, netlink.Dump, family, only)
	if err != nil {
		return nil, err
	}
	answer, err := c.execute(message)
	if err != nil {
		return nil, err
	}
	out := map[string][]NFTRule{}
	for _, m := range answer {
		chain, rule, err := ParseNFTRule(m)
		if err != nil {
			return nil, err
		}
		out[chain] = append(out[chain], rule)
	}
	return out, nil
}

// DeleteChains queues the deletion of chains. All are emptied before any is deleted, since they may jump to each other.
func (c *Conn) DeleteChains(chains []*nftables.Chain) {
	for _, chain := range chains {
		c.FlushChain(chain)
	}
	for _, chain := range chains {
		c.DelChain(chain)
	}
}

// WithConn calls f with a connection that is open for this call only.
func WithConn(f func(*Conn) error) error {
	c, err := Open()
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.CloseLasting())
}

// ExplainNFT adds the likely cause to an error of nf_tables that does not name it.
func ExplainNFT(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("the capability CAP_NET_ADMIN is missing, or the table belongs to another process: %w", err)
	}
	return err
}

// IsNFTMissing reports whether an error means that the kernel has no nf_tables: the netfilter socket then answers
// EINVAL.
func IsNFTMissing(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL)
}
