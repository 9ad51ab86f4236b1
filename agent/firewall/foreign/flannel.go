package foreign

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// FlannelChains returns the names of flannel's chains: those of iptables-nft, and the tables of nftables that have
// some. It does not see iptables-legacy.
func FlannelChains() ([]string, error) {
	conn, err := netfilter.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.CloseLasting() }() // nothing was written
	var out []string
	err = conn.Settled(func() error {
		out = nil
		chains, err := conn.ListChains()
		for _, c := range chains {
			switch {
			case strings.HasPrefix(c.Name, "FLANNEL-"):
				out = append(out, "the chain "+c.Name)
			case c.Table.Name == "flannel-ipv4", c.Table.Name == "flannel-ipv6":
				out = append(out, "the nftables table "+c.Table.Name)
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", netfilter.ExplainNFT(err))
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}
