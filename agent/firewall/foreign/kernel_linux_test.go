package foreign

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/firewall/netfilter"
	"github.com/lenonet/leno/internal/testkit/firewalltest"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestObstaclesWithoutPrograms: without any program, rules against the pool are found in nf_tables, whichever program
// wrote them. See also TestObstaclesOfNFTables.
func TestObstaclesWithoutPrograms(t *testing.T) {
	chain := func(hook, policy, rules string) string {
		return "table inet x { chain c { type filter hook " + hook + " priority 0; policy " + policy + "; " + rules + "; }; }"
	}
	const inTable = "nftables table inet x chain c: "
	for _, tt := range []struct {
		name, ruleset, script string
		want                  []string
	}{
		{"a tunnel's range, for the host itself", chain("input", "accept", `ip saddr 10.0.0.0/8 iifname != "wt0" drop`), "",
			[]string{inTable + `ip saddr 10.0.0.0/8 iifname != "wt0" drop`}},
		{"a prefix that ends within a byte", chain("input", "accept", "ip saddr 10.4.0.0/14 drop"), "",
			[]string{inTable + "ip saddr 10.4.0.0/14 drop"}},
		{"a policy that other rules lead around", chain("input", "drop", `iif "lo" accept; ip saddr 10.0.0.0/8 accept`), "", nil},
		{"connections under way", chain("forward", "drop", "ct state vmap { established : accept, related : accept, invalid : drop }"), "",
			[]string{inTable + "policy drop"}},
		{"new connections", chain("forward", "drop", "ct state { established, new } accept"), "", nil},
		{"not connections under way", chain("forward", "drop", "ct state != established accept"), "", nil},
		{"something that is not known", chain("forward", "drop", "rt classid 7 accept"), "", nil},
		{"a value that something unknown changes", chain("forward", "accept", "ip saddr & 0.0.0.255 == 7 drop; ip saddr 10.0.0.0/8 meta mark 7 drop"), "", nil},
		{"statements alone", chain("forward", "drop", `counter; iifname "x" log prefix "x"; meta mark set 7`), "", []string{inTable + "policy drop"}},
		{"a device named after a protocol", chain("forward", "accept", `iifname "udp" ip saddr 10.0.0.0/8 drop; th dport 53 drop`), "", nil},
		{"iptables-nft", "", `iptables-nft -A FORWARD -m conntrack --ctstate INVALID -j DROP; iptables-nft -A FORWARD -i eth7 -j ACCEPT
			iptables-nft -A FORWARD -m comment --comment all -j REJECT`, []string{`nftables table ip filter chain FORWARD: reject`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns := nstest.New(t)
			addDocker0(ns)
			firewalltest.Load(t, ns, tt.ruleset)
			ns.Sh(tt.script)
			t.Setenv("PATH", t.TempDir())
			if diff := cmp.Diff(tt.want, places(findIn(t, ns, overlayPath(true, false)))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzTranslate checks that no rule of another program stops the translation.
func FuzzTranslate(f *testing.F) {
	attributes := func(list ...netlink.Attribute) []byte {
		data, err := netlink.MarshalAttributes(list)
		if err != nil {
			f.Fatal(err)
		}
		return data
	}
	for _, list := range [][]expr.Any{
		{&expr.Verdict{Kind: expr.VerdictDrop}},
		{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: []byte{255, 252, 0, 0}, Xor: make([]byte, 4)},
			&expr.Cmp{Register: 1, Data: []byte{10, 4, 0, 0}}},
		{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}, &expr.Lookup{SourceRegister: 1, SetName: "x"}},
		{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Lookup{SourceRegister: 1, SetName: "x", IsDestRegSet: true}},
		{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH}, &expr.Counter{}},
	} {
		var elements []netlink.Attribute
		for _, e := range list {
			data, err := expr.Marshal(unix.NFPROTO_IPV4, e)
			if err != nil {
				f.Fatal(err)
			}
			elements = append(elements, netlink.Attribute{Type: unix.NFTA_LIST_ELEM, Data: data})
		}
		f.Add(append([]byte{unix.NFPROTO_IPV4, 0, 0, 0},
			attributes(netlink.Attribute{Type: unix.NFTA_RULE_EXPRESSIONS, Data: attributes(elements...)})...), []byte{10, 0, 0, 0})
	}
	f.Fuzz(func(_ *testing.T, data, key []byte) {
		_, r, err := netfilter.ParseNFTRule(netlink.Message{Data: data})
		if err != nil {
			return
		}
		for _, family := range []string{"ip", "ip6", "inet"} {
			rule := translate(r, family, func(string) ([]nftables.SetElement, error) {
				return []nftables.SetElement{{Key: key}, {Key: key, Val: key, IntervalEnd: len(key) > 2}}, nil
			})
			rule.Family, rule.Table, rule.Chain = family, "t", "c"
			nftListing{Objects: []listedObject{{Rule: &rule}, {Chain: &listedChain{Family: family, Table: "t", Name: "c",
				Type: "filter", Hook: "forward", Prio: encode(0)}}}}.bases(func(string, string) bool { return false })
		}
	})
}
