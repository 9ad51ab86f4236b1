package foreign

import (
	"fmt"
	"slices"
	"strings"
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

func TestForwardDrops(t *testing.T) {
	t.Parallel()
	base := func(family, table string, policy string, rules ...string) string {
		return fmt.Sprintf("table %s %s { chain f { type filter hook forward priority 5; policy %s; %s; }; }\n", family, table, policy, strings.Join(rules, "; "))
	}
	for _, tt := range []struct {
		name, ruleset, script string
		want                  []string
	}{
		{"nothing", "", "", nil},
		{"iptables-nft, a policy", "", "iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP",
			[]string{"ip filter FORWARD (policy drop)", "ip6 filter FORWARD (policy drop)"}},
		{"iptables-nft, the last rule", "", `iptables-nft -A FORWARD -m conntrack --ctstate INVALID -j DROP; iptables-nft -A FORWARD -j REJECT --reject-with icmp-host-prohibited
			ip6tables-nft -A FORWARD -m comment --comment all -j DROP`, []string{"ip filter FORWARD (rule reject)", "ip6 filter FORWARD (rule drop)"}},
		{"iptables-nft, an accept before", "", "iptables-nft -A FORWARD -i eth7 -j ACCEPT; iptables-nft -P FORWARD DROP", nil},
		{"iptables-nft, conditions alone", "", "iptables-nft -A FORWARD -m conntrack --ctstate INVALID -j DROP; iptables-nft -A FORWARD -p tcp -j REJECT", nil},
		{"Docker: it leads to other chains", "", "iptables-nft -N DOCKER-USER; iptables-nft -A FORWARD -j DOCKER-USER; iptables-nft -P FORWARD DROP", nil},
		{"connections under way", base("inet", "t", "drop", "ct state established,related accept", "ct state invalid drop"), "", []string{"inet t f (policy drop)"}},
		{"new connections", base("inet", "t", "drop", "ct state new,established accept"), "", nil},
		{"not connections under way", base("inet", "t", "drop", "ct state & established == 0 accept"), "", nil},
		{"by a map", base("inet", "t", "drop", "ct state vmap { established : accept, new : accept }"), "", nil},
		{"by a set", base("inet", "t", "drop", "ip saddr { 10.5.0.0/16 } accept"), "", nil},
		{"something that is not known", base("inet", "t", "drop", "rt classid 7"), "", nil},
		{"firewalld's end", base("inet", "t", "accept", "ct state invalid drop", "reject with icmpx admin-prohibited"), "", []string{"inet t f (rule reject)"}},
		{"counted and logged", base("inet", "t", "accept", `counter log prefix "no " drop`), "", []string{"inet t f (rule drop)"}},
		{"an accept before", base("inet", "t", "drop", "counter accept", "drop"), "", nil},
		{"a return before", base("inet", "t", "drop", "return", "accept"), "", []string{"inet t f (policy drop)"}},
		{"a return with conditions", base("inet", "t", "accept", "ip saddr 10.0.0.0/8 return", "drop"), "", nil},
		{"a return with conditions, an accept", base("inet", "t", "drop", "ip saddr 10.0.0.0/8 return", "accept"), "", nil},
		{"conditions alone", base("ip", "t", "accept", "ip saddr 10.0.0.0/8 drop", "tcp dport 22 reject"), "", nil},
		{"statements alone", base("ip", "t", "drop", "counter", `iifname "x" log prefix "x"`, "meta mark set 7"), "", []string{"ip t f (policy drop)"}},
		{"an accept with conditions", base("ip6", "t", "drop", "ip6 saddr fd00::/8 accept"), "", nil},
		{"ours, and names like it", base("inet", "leno", "drop") + base("ip", "leno", "drop"), "", []string{"ip leno f (policy drop)"}},
		{"other hooks and families", `table inet t { chain i { type filter hook input priority 0; policy drop; }; chain f { drop; }; }
			table bridge b { chain f { type filter hook forward priority 0; policy drop; }; }
			table arp a { chain i { type filter hook input priority 0; policy drop; }; }`, "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			firewalltest.Load(t, ns, tt.ruleset)
			ns.Sh(tt.script)
			ns.Do(func() {
				drops, err := readForwardDrops(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, d := range drops {
					got = append(got, d.String())
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// Where no program lists nftables, chains that surely drop are still reported.
func TestObstaclesWithoutPrograms(t *testing.T) {
	ns := nstest.New(t)
	addDocker0(ns)
	firewalltest.Load(t, ns, `table inet mine { chain f { type filter hook forward priority 0; policy drop; ct state established accept; }; }
		table ip6 other { chain f { type filter hook forward priority 0; reject; }; }
		table ip unsure { chain f { type filter hook forward priority 0; policy drop; iifname "docker0" accept; }; }`)
	t.Setenv("PATH", t.TempDir())
	var got []string
	for _, o := range findIn(t, ns, overlayPath(true, true)) {
		got = append(got, o.Where+": "+o.Rule)
	}
	slices.Sort(got)
	want := []string{"nftables table inet mine chain f: policy drop", "nftables table ip6 other chain f: reject"}
	if diff := cmp.Diff(want, slices.Compact(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// FuzzRefusal checks that no rule of another program stops the evaluation.
func FuzzRefusal(f *testing.F) {
	attributes := func(list ...netlink.Attribute) []byte {
		data, err := netlink.MarshalAttributes(list)
		if err != nil {
			f.Fatal(err)
		}
		return data
	}
	for _, e := range []expr.Any{
		&expr.Verdict{Kind: expr.VerdictDrop},
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH},
		&expr.Counter{},
	} {
		data, err := expr.Marshal(unix.NFPROTO_INET, e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append([]byte{unix.NFPROTO_INET, 0, 0, 0}, attributes(
			netlink.Attribute{Type: unix.NFTA_RULE_CHAIN, Data: []byte("forward\x00")},
			netlink.Attribute{Type: unix.NFTA_RULE_EXPRESSIONS, Data: attributes(netlink.Attribute{Type: unix.NFTA_LIST_ELEM, Data: data})})...))
	}
	f.Fuzz(func(_ *testing.T, data []byte) {
		if _, r, err := netfilter.ParseNFTRule(netlink.Message{Data: data}); err == nil {
			findRefusal(nftables.ChainPolicyAccept, []netfilter.NFTRule{r})
		}
	})
}
