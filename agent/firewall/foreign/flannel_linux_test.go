package foreign

import (
	"slices"
	"testing"

	"github.com/lenonet/leno/internal/testkit/firewalltest"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestFlannelChains checks that flannel's chains of both kinds are found, and no others.
func TestFlannelChains(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	firewalltest.Load(t, ns, `table ip flannel-ipv4 { chain postrtg { type nat hook postrouting priority 100; }; chain forward { }; }
		table inet t { chain f { type filter hook forward priority 0; }; }`)
	ns.Sh("iptables-nft -N FLANNEL-FWD; iptables-nft -A FORWARD -j FLANNEL-FWD; iptables-nft -t nat -N FLANNEL-POSTRTG; iptables-nft -N MINE")
	ns.Do(func() {
		got, err := FlannelChains()
		want := []string{"the chain FLANNEL-FWD", "the chain FLANNEL-POSTRTG", "the nftables table flannel-ipv4"}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	})
}
