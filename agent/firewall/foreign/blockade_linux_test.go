package foreign

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/backend/kernel/nstest"
)

// underlayPaths returns the paths to two peers.
func underlayPaths(samePort bool) []UnderlayPath {
	var out []UnderlayPath
	for _, peer := range []string{"192.0.2.12", "192.0.2.13"} {
		out = append(out, UnderlayPath{Network: "default", Link: "eth0", Own: netip.MustParseAddr("192.0.2.11"), Peer: netip.MustParseAddr(peer), Port: 8472, SamePort: samePort})
	}
	return out
}

// TestBlockades checks that rules that block datagrams between hosts are reported for each direction, as the programs
// list them, and that rules that may let them pass are not.
func TestBlockades(t *testing.T) {
	const nft, ipt = "nftables table inet x chain ", "iptables-nft table filter chain "
	table := func(hook, policy, rules string) string {
		return fmt.Sprintf("echo 'table inet x { set ours { type ipv4_addr; elements = { 192.0.2.12 } }\nchain c { type filter hook %s priority 0; policy %s;\n%s\n}\n}' | nft -f -", hook, policy, rules)
	}
	for _, tt := range []struct {
		name, rules string
		samePort    bool
		want        []string // for the first peer, then for the second
	}{
		{name: "nothing"},
		{name: "a port dropped", rules: "iptables-nft -A INPUT -p udp --dport 8472 -j DROP",
			want: []string{"12 in " + ipt + `INPUT: "-p udp -m udp --dport 8472 -j DROP"`, "13 in " + ipt + `INPUT: "-p udp -m udp --dport 8472 -j DROP"`}},
		{name: "refused for one peer", rules: "iptables-nft -A OUTPUT -d 192.0.2.13 -p udp --dport 8000:9000 -j REJECT",
			want: []string{"13 out " + ipt + `OUTPUT: "-d 192.0.2.13/32 -p udp -m udp --dport 8000:9000 -j REJECT --reject-with icmp-port-unreachable"`}},
		{name: "another port, another protocol", rules: "iptables-nft -A INPUT -p udp --dport 8473 -j DROP; iptables-nft -A INPUT -p tcp --dport 8472 -j DROP; iptables-nft -A INPUT -i lo -j DROP"},
		{name: "a host that lets little in", rules: "iptables-nft -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; iptables-nft -A INPUT -p icmp -j ACCEPT; iptables-nft -A INPUT -p tcp --dport 22 -j ACCEPT; iptables-nft -P INPUT DROP",
			want: []string{"12 in " + ipt + `INPUT: "policy DROP"`, "13 in " + ipt + `INPUT: "policy DROP"`}},
		{name: "the same, and answers come", samePort: true,
			rules: "iptables-nft -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; iptables-nft -P INPUT DROP"},
		{name: "the same, opened", rules: "iptables-nft -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; iptables-nft -A INPUT -p udp -m multiport --dports 53,8472 -j ACCEPT; iptables-nft -P INPUT DROP"},
		{name: "opened for one", rules: table("input", "drop", "ct state established,related accept\niifname \"lo\" accept\nip saddr @ours udp dport 8472 accept"),
			want: []string{"13 in " + nft + `c: "policy drop"`}},
		{name: "sent to no host", rules: table("output", "accept", "meta l4proto udp th dport { 4789, 8472 } drop"),
			want: []string{"12 out " + nft + `c: "udp dport { 4789, 8472 } drop"`, "13 out " + nft + `c: "udp dport { 4789, 8472 } drop"`}},
		{name: "an opening that cannot be judged", rules: "iptables-nft -A INPUT -m limit --limit 5/s -j ACCEPT; iptables-nft -P INPUT DROP"},
		{name: "before routing", rules: table("prerouting", "accept", "ip saddr 192.0.2.12 ip protocol udp udp dport 8472 drop"),
			want: []string{"12 in " + nft + `c: "ip saddr 192.0.2.12 ip protocol udp udp dport 8472 drop"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			ns.Sh(tt.rules)
			var got []string
			ns.Do(func() {
				_, found, err := Find(t.Context(), nil, underlayPaths(tt.samePort))
				if err != nil {
					t.Error(err)
				}
				for _, b := range found {
					way := "out"
					if b.Inbound {
						way = "in"
					}
					got = append(got, fmt.Sprintf("%s %s %s", b.Path.Peer.String()[8:], way, b))
				}
			})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
