package foreign

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// FlannelChains returns the names of flannel's chains: those of iptables-nft, and the tables of nftables that have
// some. It does not see iptables-legacy.
func FlannelChains() ([]string, error) {
	var chains []*nftables.Chain
	err := netfilter.WithConn(func(conn *netfilter.Conn) error {
		return conn.Settled(func() (err error) {
			chains, err = conn.ListChains()
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", netfilter.ExplainNFT(err))
	}
	var out []string
	for _, c := range chains {
		switch {
		case strings.HasPrefix(c.Name, "FLANNEL-"):
			out = append(out, "the chain "+c.Name)
		case c.Table.Name == "flannel-ipv4", c.Table.Name == "flannel-ipv6":
			out = append(out, "the nftables table "+c.Table.Name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}
