package firewall

import (
	"testing"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// message returns a rule as a message of the kernel.
func message(t testing.TB, r netfilter.NFTRule) netlink.Message {
	attributes := func(list ...netlink.Attribute) []byte {
		data, err := netlink.MarshalAttributes(list)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	var list []netlink.Attribute
	for _, e := range r.Exprs {
		data, err := expr.Marshal(unix.NFPROTO_INET, e)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, netlink.Attribute{Type: unix.NFTA_LIST_ELEM, Data: data})
	}
	return netlink.Message{Data: append([]byte{unix.NFPROTO_INET, 0, 0, 0}, attributes(
		netlink.Attribute{Type: unix.NFTA_RULE_CHAIN, Data: []byte("forward\x00")},
		netlink.Attribute{Type: unix.NFTA_RULE_EXPRESSIONS, Data: attributes(list...)},
		netlink.Attribute{Type: unix.NFTA_RULE_USERDATA, Data: r.UserData})...)}
}

// FuzzNFTRule checks that a written rule is read back, and that no input stops the rest from being read.
func FuzzNFTRule(f *testing.F) {
	for _, chain := range nftChains(random(two())) {
		for _, r := range chain.rules {
			m := message(f, r)
			name, got, err := netfilter.ParseNFTRule(m)
			if err != nil || name != "forward" || !got.Equal(r) {
				f.Fatalf("%+v is read as %+v of %q, %v", r, got, name, err)
			}
			f.Add(m.Data)
		}
	}
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _, _ = netfilter.ParseNFTRule(netlink.Message{Data: data})
	})
}
