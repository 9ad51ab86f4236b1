package foreign

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/internal/testkit/nstest"
)

// underlayPaths returns the paths to two peers.
func underlayPaths(samePort bool) []UnderlayPath {
	var out []UnderlayPath
	for _, peer := range []string{"192.0.2.12", "192.0.2.13"} {
		out = append(out, UnderlayPath{Network: "default", Link: "eth0", Own: netip.MustParseAddr("192.0.2.11"), Peer: netip.MustParseAddr(peer), Port: 8472, PeerPort: 8472, SamePort: samePort})
	}
	return out
}

// ufwInput holds the rules of ufw 0.36.2 for received packets, as `ufw enable` writes them, without those that only log
// or are for other ports.
const ufwInput = `*filter
:INPUT DROP [0:0]
:ufw-before-input - [0:0]
:ufw-logging-deny - [0:0]
:ufw-not-local - [0:0]
:ufw-after-input - [0:0]
:ufw-skip-to-policy-input - [0:0]
:ufw-user-input - [0:0]
-A INPUT -j ufw-before-input
-A INPUT -j ufw-after-input
-A ufw-after-input -p udp -m udp --dport 137 -j ufw-skip-to-policy-input
-A ufw-after-input -m addrtype --dst-type BROADCAST -j ufw-skip-to-policy-input
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-input -m conntrack --ctstate INVALID -j ufw-logging-deny
-A ufw-before-input -m conntrack --ctstate INVALID -j DROP
-A ufw-before-input -p icmp -m icmp --icmp-type 8 -j ACCEPT
-A ufw-before-input -j ufw-not-local
-A ufw-before-input -j ufw-user-input
-A ufw-logging-deny -m conntrack --ctstate INVALID -m limit --limit 3/min --limit-burst 10 -j RETURN
-A ufw-logging-deny -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix "[UFW BLOCK] "
-A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN
-A ufw-not-local -m addrtype --dst-type MULTICAST -j RETURN
-A ufw-not-local -m limit --limit 3/min --limit-burst 10 -j ufw-logging-deny
-A ufw-not-local -j DROP
-A ufw-skip-to-policy-input -j DROP
USER
COMMIT
`

// firewalldInput holds the rules of firewalld 1.3.3 for received packets: its zone public, and in ALLOW what is open.
const firewalldInput = `table inet firewalld {
	chain filter_INPUT {
		type filter hook input priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		jump filter_INPUT_ZONES
		reject with icmpx admin-prohibited
	}
	chain filter_INPUT_POLICIES_pre {
		jump filter_IN_policy_allow-host-ipv6
	}
	chain filter_INPUT_ZONES {
		ip saddr 10.5.0.0/16 goto filter_IN_trusted
		goto filter_IN_public
	}
	chain filter_IN_trusted {
		accept
	}
	chain filter_IN_public {
		jump filter_INPUT_POLICIES_pre
		jump filter_IN_public_deny
		jump filter_IN_public_allow
		meta l4proto { icmp, ipv6-icmp } accept
		reject with icmpx admin-prohibited
	}
	chain filter_IN_public_deny {
		DENY
	}
	chain filter_IN_public_allow {
		tcp dport 22 accept
		ip6 daddr fe80::/64 udp dport 546 accept
		ALLOW
	}
	chain filter_IN_policy_allow-host-ipv6 {
		icmpv6 type { nd-neighbor-advert, nd-neighbor-solicit } accept
	}
}
`

// TestBlockades checks that rules that block datagrams between hosts are reported for each direction, as the programs
// list them, and that rules that may let them pass are not.
func TestBlockades(t *testing.T) {
	t.Parallel()
	const nft, ipt = "nftables table inet x chain ", "iptables-nft table filter chain "
	table := func(hook, policy, rules string) string {
		return fmt.Sprintf("echo 'table inet x { set ours { type ipv4_addr; elements = { 192.0.2.12 } }\nchain c { type filter hook %s priority 0; policy %s;\n%s\n}\n}' | nft -f -", hook, policy, rules)
	}
	ufw := func(user string) string {
		return "iptables-nft-restore <<'END'\n" + strings.Replace(ufwInput, "USER", user, 1) + "END"
	}
	firewalld := func(deny, allow string) string {
		return "nft -f - <<'END'\n" + strings.NewReplacer("DENY", deny, "ALLOW", allow).Replace(firewalldInput) + "END"
	}
	for _, tt := range []struct {
		name, rules string
		samePort    bool
		want        []string // for the first peer, then for the second
		command     string   // of the first blockade
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
			rules: "iptables-nft -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; iptables-nft -P INPUT DROP",
			want:  []string{"12 in, but for answers, " + ipt + `INPUT: "policy DROP"`, "13 in, but for answers, " + ipt + `INPUT: "policy DROP"`}},
		{name: "the same, all answers and new ones", samePort: true,
			rules: "iptables-nft -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; iptables-nft -A INPUT -p udp --sport 8472 -j ACCEPT; iptables-nft -P INPUT DROP"},
		{name: "ufw, answers come", rules: ufw("#"), samePort: true, command: "ufw allow proto udp from 192.0.2.12 to any port 8472",
			want: []string{"12 in, but for answers, " + ipt + `INPUT: "policy DROP"`, "13 in, but for answers, " + ipt + `INPUT: "policy DROP"`}},
		{name: "the same, opened", rules: "iptables-nft -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; iptables-nft -A INPUT -p udp -m multiport --dports 53,8472 -j ACCEPT; iptables-nft -P INPUT DROP"},
		{name: "opened for one", rules: table("input", "drop", "ct state established,related accept\niifname \"lo\" accept\nip saddr @ours udp dport 8472 accept"),
			want: []string{"13 in " + nft + `c: "policy drop"`}},
		{name: "sent to no host", rules: table("output", "accept", "meta l4proto udp th dport { 4789, 8472 } drop"),
			want: []string{"12 out " + nft + `c: "udp dport { 4789, 8472 } drop"`, "13 out " + nft + `c: "udp dport { 4789, 8472 } drop"`}},
		{name: "an opening that cannot be judged", rules: "iptables-nft -A INPUT -m limit --limit 5/s -j ACCEPT; iptables-nft -P INPUT DROP"},
		{name: "before routing", rules: table("prerouting", "accept", "ip saddr 192.0.2.12 ip protocol udp udp dport 8472 drop"),
			want: []string{"12 in " + nft + `c: "ip saddr 192.0.2.12 ip protocol udp udp dport 8472 drop"`}},
		{name: "ufw", rules: ufw("#"), command: "ufw allow proto udp from 192.0.2.12 to any port 8472",
			want: []string{"12 in " + ipt + `INPUT: "policy DROP"`, "13 in " + ipt + `INPUT: "policy DROP"`}},
		{name: "ufw, one host let in", rules: ufw("-A ufw-user-input -s 192.0.2.12/32 -p udp -m udp --dport 8472 -j ACCEPT"),
			want: []string{"13 in " + ipt + `INPUT: "policy DROP"`}, command: "ufw allow proto udp from 192.0.2.13 to any port 8472"},
		{name: "ufw, the port refused", rules: ufw("-A ufw-user-input -s 192.0.2.12/32 -p udp -m udp --dport 8472 -j REJECT --reject-with icmp-port-unreachable\n-A ufw-user-input -p udp -m udp --dport 8472 -j ACCEPT"),
			want: []string{"12 in " + ipt + `ufw-user-input: "-s 192.0.2.12/32 -p udp -m udp --dport 8472 -j REJECT --reject-with icmp-port-unreachable"`}},
		{name: "ufw that lets nothing out", rules: "iptables-nft -P OUTPUT DROP; iptables-nft -N ufw-before-output; iptables-nft -A OUTPUT -j ufw-before-output; iptables-nft -A ufw-before-output -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
			want: []string{"12 out " + ipt + `OUTPUT: "policy DROP"`, "13 out " + ipt + `OUTPUT: "policy DROP"`}, command: "ufw allow out proto udp from any to 192.0.2.12 port 8472"},
		{name: "firewalld", rules: firewalld("", ""), command: "firewall-cmd --permanent --zone=public --add-port=8472/udp && firewall-cmd --reload",
			want: []string{"12 in nftables table inet firewalld chain filter_IN_public: \"reject\"", "13 in nftables table inet firewalld chain filter_IN_public: \"reject\""}},
		{name: "firewalld, opened", rules: firewalld("", "udp dport 8472 accept")},
		{name: "firewalld, refused by a rule of the zone", rules: firewalld("ip saddr 192.0.2.12 reject", "udp dport 8472 accept"),
			want: []string{"12 in nftables table inet firewalld chain filter_IN_public_deny: \"ip saddr 192.0.2.12 reject\""}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			ns.Sh(tt.rules)
			var got []string
			command := ""
			ns.Do(func() {
				_, found, err := Find(t.Context(), nil, underlayPaths(tt.samePort))
				if err != nil {
					t.Error(err)
				}
				for i, b := range found {
					if i == 0 {
						command = b.Command
					}
					way := "out"
					if b.Inbound {
						way = "in"
					}
					if b.ExceptAnswers {
						way += ", but for answers,"
					}
					got = append(got, fmt.Sprintf("%s %s %s", b.Path.Peer.String()[8:], way, b))
				}
			})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if command != tt.command {
				t.Errorf("the command is %q, want %q", command, tt.command)
			}
		})
	}
}

// TestBlockadesBehindNAT: datagrams to a host behind a NAT have the port that the NAT forwards to it. The NAT may
// send from either port.
func TestBlockadesBehindNAT(t *testing.T) {
	t.Parallel()
	path := underlayPaths(true)[0]
	path.PeerPort = 30001
	for _, tt := range []struct{ name, rules, want string }{
		{"sent to the port of other hosts", "iptables-nft -A OUTPUT -p udp --dport 8472 -j DROP", ""},
		{"sent to its port", "iptables-nft -A OUTPUT -p udp --dport 30001 -j DROP", "out 30001"},
		{"received at this host's port", "iptables-nft -A INPUT -p udp --dport 8472 -j DROP", "in 8472"},
		{"received at its port", "iptables-nft -A INPUT -p udp --dport 30001 -j DROP", ""},
		{"received from another port only", "iptables-nft -A INPUT -p udp --sport 53 -j ACCEPT; iptables-nft -P INPUT DROP", "in 8472"},
		{"received from its port only", "iptables-nft -A INPUT -p udp --sport 30001 -j ACCEPT; iptables-nft -P INPUT DROP", ""},
		{"received from the port of other hosts only", "iptables-nft -A INPUT -p udp --sport 8472 -j ACCEPT; iptables-nft -P INPUT DROP", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			ns.Sh(tt.rules)
			got := ""
			ns.Do(func() {
				_, found, err := Find(t.Context(), nil, []UnderlayPath{path})
				if err != nil {
					t.Error(err)
				}
				for _, b := range found {
					switch {
					case b.Echoes:
					case b.Inbound:
						got += fmt.Sprintf("in %d", b.Path.Port)
					default:
						got += fmt.Sprintf("out %d", b.Path.PeerPort)
					}
				}
			})
			if got != tt.want {
				t.Errorf("blocked %q, want %q", got, tt.want)
			}
		})
	}
}

// TestEchoRules: rules that certainly drop the answers to echo requests of this host are reported with the command that
// removes them.
func TestEchoRules(t *testing.T) {
	t.Parallel()
	v4 := UnderlayPath{Link: "eth0", Own: netip.MustParseAddr("192.0.2.11"), Peer: netip.MustParseAddr("192.0.2.12"), Port: 8472, PeerPort: 8472}
	v6 := v4
	v6.Own, v6.Peer = netip.MustParseAddr("2001:db8::11"), netip.MustParseAddr("2001:db8::12")
	const remove = "iptables-nft -t filter -D INPUT "
	nft := func(rule string) string {
		return "nft 'add table inet x; add chain inet x c { type filter hook input priority 0; }; add rule inet x c " + rule + "'"
	}
	for _, tt := range []struct {
		name, rules string
		path        UnderlayPath
		rule        string
		removal     string
	}{
		{"nothing", "true", v4, "", ""},
		{"all of ICMP", "iptables-nft -A INPUT -p icmp -j DROP", v4, "-p icmp -j DROP", remove + "-p icmp -j DROP"},
		{"all of ICMP, but for answers", "iptables-nft -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT; iptables-nft -A INPUT -p icmp -j DROP", v4, "", ""},
		{"all of ICMP, but for echo replies", "iptables-nft -A INPUT -p icmp --icmp-type echo-reply -j ACCEPT; iptables-nft -A INPUT -p icmp -j DROP", v4, "", ""},
		{"echo replies", "iptables-nft -A INPUT -p icmp --icmp-type 0 -j DROP", v4, "-p icmp -m icmp --icmp-type 0 -j DROP", remove + "-p icmp -m icmp --icmp-type 0 -j DROP"},
		{"echo requests", "iptables-nft -A INPUT -p icmp --icmp-type 8 -j DROP", v4, "", ""},
		{"the policy", "iptables-nft -A INPUT -p udp --dport 8472 -j ACCEPT; iptables-nft -P INPUT DROP", v4, "policy DROP", ""},
		{"what is sent", "iptables-nft -A OUTPUT -p icmp --icmp-type 0 -j DROP", v4, "", ""},
		{"nftables", nft("icmp type { echo-reply, echo-request } drop"), v4, "icmp type { echo-reply, echo-request } drop", ""},
		{"nftables, echo requests", nft("icmp type echo-request drop"), v4, "", ""},
		{"IPv6", "ip6tables-nft -A INPUT -p ipv6-icmp -j DROP", v6, "-p ipv6-icmp -j DROP", "ip6tables-nft -t filter -D INPUT -p ipv6-icmp -j DROP"},
		{"IPv6, echo replies", nft("icmpv6 type echo-reply drop"), v6, "icmpv6 type echo-reply drop", ""},
		{"IPv6, of IPv4", "iptables-nft -A INPUT -p icmp -j DROP", v6, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			ns.Sh(tt.rules)
			var got Blockade
			ns.Do(func() {
				_, found, err := Find(t.Context(), nil, []UnderlayPath{tt.path})
				if err != nil {
					t.Error(err)
				}
				for _, b := range found {
					if b.Echoes {
						got = b
					}
				}
			})
			if got.Rule != tt.rule || got.Removal != tt.removal || got.Inbound != (tt.rule != "") {
				t.Errorf("got %+v", got)
			}
		})
	}
}
