package foreign

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// overlayPath returns one network of both families, on docker0.
func overlayPath(forward, masq bool) OverlayPath {
	return OverlayPath{Links: []string{"leno-default"}, Network: firewall.Network{
		Name: "default", Forward: forward, IPMasq: masq,
		Pools:   []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("fd00:5::/48")},
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.34.0/24"), netip.MustParsePrefix("fd00:5:0:22::/64")},
	}}
}

func bridges(name string) map[netip.Prefix]string {
	out := map[netip.Prefix]string{}
	for _, s := range overlayPath(true, true).Network.Subnets {
		out[s] = name
	}
	return out
}

// places returns the places of obstacles, and their rules.
func places(list []Obstacle) []string {
	var out []string
	for _, o := range list {
		text := strings.TrimPrefix(o.Where, "iptables table ") + ": " + o.Rule
		if o.More > 0 {
			text += " and more"
		}
		if o.Partial {
			text += " (part)"
		}
		out = append(out, text)
	}
	return out
}

// docker28 holds the rules that Docker 28.3 writes for docker0 with one container that publishes port 80 (moby:
// internal/iptabler/testdata/TestIptabler), with FORWARD's policy as the daemon sets it and the jump to DOCKER-USER
// that it inserts.
const docker28 = `*raw
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A PREROUTING -d 10.5.34.2/32 ! -i docker0 -j DROP
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:DOCKER-BRIDGE - [0:0]
:DOCKER-CT - [0:0]
:DOCKER-FORWARD - [0:0]
:DOCKER-INTERNAL - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER -d 10.5.34.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j ACCEPT
-A DOCKER ! -i docker0 -o docker0 -j DROP
-A DOCKER-BRIDGE -o docker0 -j DOCKER
-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-INTERNAL
-A DOCKER-FORWARD -j DOCKER-BRIDGE
-A DOCKER-FORWARD -i docker0 -j ACCEPT
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 10.5.34.0/24 ! -o docker0 -j MASQUERADE
-A POSTROUTING -s 10.5.34.2/32 -d 10.5.34.2/32 -p tcp -m tcp --dport 80 -j MASQUERADE
-A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.5.34.2:80
COMMIT
`

// behindOurs puts our forwarding rules first.
func behindOurs(saved string) string {
	return strings.Replace(saved, "-A FORWARD -j DOCKER-USER\n", ":LENO-FORWARD - [0:0]\n-A FORWARD -j LENO-FORWARD\n-A FORWARD -j DOCKER-USER\n"+
		"-A LENO-FORWARD -s 10.5.0.0/16 -m comment --comment \"leno default\" -j ACCEPT\n-A LENO-FORWARD -d 10.5.0.0/16 -m comment --comment \"leno default\" -j ACCEPT\n", 1)
}

func filter(policy, rules string) string {
	return "*filter\n:FORWARD " + policy + " [0:0]\n" + rules + "COMMIT\n"
}

func raw(rules string) string {
	return "*raw\n:PREROUTING ACCEPT [0:0]\n" + rules + "COMMIT\n"
}

func nat(rules string) string {
	return "*nat\n:POSTROUTING ACCEPT [0:0]\n" + rules + "COMMIT\n"
}

func TestObstaclesOfIPTables(t *testing.T) {
	const (
		direct = "raw chain PREROUTING: -d 10.5.34.2/32 ! -i docker0 -j DROP"
		masq   = "nat chain POSTROUTING: -s 10.5.34.0/24 ! -o docker0 -j MASQUERADE"
	)
	// Chains that each jump four times to the next: 4^15 paths.
	tree := ":C0 - [0:0]\n-A FORWARD -j C0\n"
	for i := range 15 {
		tree += fmt.Sprintf(":C%d - [0:0]\n", i+1) + strings.Repeat(fmt.Sprintf("-A C%d -j C%d\n", i, i+1), 4)
	}
	for _, tt := range []struct {
		name, saved string
		bridge      string // docker0 if ""
		want        []string
	}{
		{name: "nothing"},
		{name: "Docker alone", saved: docker28, want: []string{direct, "filter chain DOCKER: ! -i docker0 -o docker0 -j DROP", masq}},
		{name: "Docker behind our forwarding", saved: behindOurs(docker28), want: []string{direct, masq}},
		{name: "Docker with direct routing and without masquerading",
			saved: strings.NewReplacer("-A PREROUTING -d 10.5.34.2/32 ! -i docker0 -j DROP\n", "", "-A POSTROUTING -s 10.5.34.0/24 ! -o docker0 -j MASQUERADE\n", "").Replace(behindOurs(docker28))},
		{name: "Docker that trusts our device", saved: raw("-A PREROUTING -d 10.5.34.2/32 -i leno-default -j ACCEPT\n-A PREROUTING -d 10.5.34.2/32 ! -i docker0 -j DROP\n")},
		{name: "Docker that trusts another device", saved: raw("-A PREROUTING -d 10.5.34.2/32 -i eth0 -j ACCEPT\n-A PREROUTING -d 10.5.34.2/32 ! -i docker0 -j DROP\n"), want: []string{direct}},
		{name: "Docker that trusts it for another container", saved: raw("-A PREROUTING -d 10.5.34.3/32 -i leno-default -j ACCEPT\n-A PREROUTING -d 10.5.34.2/32 ! -i docker0 -j DROP\n"), want: []string{direct}},
		{name: "Docker 28.0", saved: raw("-A PREROUTING -d 10.5.34.2/32 ! -i docker0 -p tcp -m tcp --dport 80 -j DROP\n"),
			want: []string{"raw chain PREROUTING: -d 10.5.34.2/32 ! -i docker0 -p tcp -m tcp --dport 80 -j DROP"}},
		{name: "many containers", saved: raw("-A PREROUTING -d 10.5.34.2/32 ! -i docker0 -j DROP\n-A PREROUTING -d 10.5.34.3/32 ! -i docker0 -j DROP\n"), want: []string{direct + " and more"}},
		{name: "another bridge's containers", saved: raw("-A PREROUTING -d 172.18.0.2/32 ! -i br-1 -j DROP\n")},
		{name: "a bridge that is not known", saved: docker28, bridge: "-",
			want: []string{direct, "filter chain FORWARD: policy DROP", masq}},
		{name: "Docker 27", saved: filter("DROP", ":DOCKER-USER - [0:0]\n:DOCKER - [0:0]\n:DOCKER-ISOLATION-STAGE-1 - [0:0]\n:DOCKER-ISOLATION-STAGE-2 - [0:0]\n"+
			"-A FORWARD -j DOCKER-USER\n-A FORWARD -j DOCKER-ISOLATION-STAGE-1\n-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"+
			"-A FORWARD -o docker0 -j DOCKER\n-A FORWARD -i docker0 ! -o docker0 -j ACCEPT\n-A FORWARD -i docker0 -o docker0 -j ACCEPT\n"+
			"-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2\n-A DOCKER-ISOLATION-STAGE-1 -j RETURN\n"+
			"-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP\n-A DOCKER-ISOLATION-STAGE-2 -j RETURN\n-A DOCKER-USER -j RETURN\n"),
			want: []string{"filter chain FORWARD: policy DROP"}},

		{name: "policy", saved: filter("DROP", ""), want: []string{"filter chain FORWARD: policy DROP"}},
		{name: "policy, all accepted", saved: filter("DROP", "-A FORWARD -j ACCEPT\n")},
		{name: "policy, pool accepted", saved: filter("DROP", "-A FORWARD -s 10.5.0.0/16 -j ACCEPT\n")},
		{name: "policy, replies accepted", saved: filter("DROP", "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"), want: []string{"filter chain FORWARD: policy DROP"}},
		{name: "policy, new accepted", saved: filter("DROP", "-A FORWARD -m state --state NEW,RELATED -j ACCEPT\n")},
		{name: "policy, our device accepted", saved: filter("DROP", "-A FORWARD -i leno-+ -j ACCEPT\n-A FORWARD -o leno-default -j ACCEPT\n")},
		{name: "policy, one way accepted", saved: filter("DROP", "-A FORWARD -i leno-default -j ACCEPT\n"), want: []string{"filter chain FORWARD: policy DROP"}},
		{name: "policy, accepted in a chain", saved: filter("DROP", ":X - [0:0]\n:Y - [0:0]\n-A FORWARD -j X\n-A X -j Y\n-A Y -j ACCEPT\n")},
		{name: "policy, went to a chain", saved: filter("DROP", ":X - [0:0]\n-A FORWARD -g X\n-A FORWARD -j ACCEPT\n-A X -j RETURN\n"), want: []string{"filter chain FORWARD: policy DROP"}},
		{name: "policy, perhaps accepted", saved: filter("DROP", "-A FORWARD -m set --match-set allowed src -j ACCEPT\n")},
		{name: "policy, perhaps accepted in a chain", saved: filter("DROP", ":X - [0:0]\n-A FORWARD -m set --match-set allowed src -j X\n-A X -j ACCEPT\n")},
		{name: "policy, jump to an unknown target", saved: filter("DROP", "-A FORWARD -j NEWTARGET --x 1\n")},
		{name: "policy, marked and logged", saved: filter("DROP", "-A FORWARD -j LOG --log-prefix \"-j ACCEPT\"\n-A FORWARD -j MARK --set-xmark 0x1/0x1\n"), want: []string{"filter chain FORWARD: policy DROP"}},
		{name: "policy of another chain", saved: "*filter\n:INPUT DROP [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT DROP [0:0]\nCOMMIT\n"},

		{name: "drop", saved: filter("ACCEPT", "-A FORWARD -j DROP\n"), want: []string{"filter chain FORWARD: -j DROP"}},
		{name: "reject", saved: filter("ACCEPT", "-A FORWARD -j REJECT --reject-with icmp-host-prohibited\n"), want: []string{"filter chain FORWARD: -j REJECT --reject-with icmp-host-prohibited"}},
		{name: "drop of what is invalid", saved: filter("ACCEPT", "-A FORWARD -m conntrack --ctstate INVALID -j DROP\n")},
		{name: "drop of a port", saved: filter("ACCEPT", "-A FORWARD -p tcp -m tcp --dport 25 -j DROP\n"), want: []string{"filter chain FORWARD: -p tcp -m tcp --dport 25 -j DROP (part)"}},
		{name: "drop of a port of one host's containers", saved: filter("ACCEPT", "-A FORWARD -d 10.5.34.0/24 -p tcp -m tcp --dport 80 -j DROP\n"),
			want: []string{"filter chain FORWARD: -d 10.5.34.0/24 -p tcp -m tcp --dport 80 -j DROP (part)"}},
		{name: "drops of several ports, each of which is reported", saved: filter("ACCEPT", "-A FORWARD -p tcp -m tcp --dport 25 -j DROP\n-A FORWARD -p udp -m multiport --dports 53,5000:6000 -j REJECT\n"),
			want: []string{"filter chain FORWARD: -p tcp -m tcp --dport 25 -j DROP (part)", "filter chain FORWARD: -p udp -m multiport --dports 53,5000:6000 -j REJECT (part)"}},
		{name: "drop of all ports but some", saved: filter("ACCEPT", "-A FORWARD -p tcp -m multiport ! --dports 80,443 -j DROP\n"),
			want: []string{"filter chain FORWARD: -p tcp -m multiport ! --dports 80,443 -j DROP (part)"}},
		{name: "drop of all protocols but one", saved: filter("ACCEPT", "-A FORWARD ! -p tcp -j DROP\n"), want: []string{"filter chain FORWARD: ! -p tcp -j DROP (part)"}},
		{name: "drop of new connections to a port", saved: filter("ACCEPT", "-A FORWARD -p tcp -m tcp --dport 80 --tcp-flags FIN,SYN,RST,ACK SYN -j REJECT\n"),
			want: []string{"filter chain FORWARD: -p tcp -m tcp --dport 80 --tcp-flags FIN,SYN,RST,ACK SYN -j REJECT (part)"}},
		{name: "drop of a port in a chain", saved: filter("ACCEPT", ":X - [0:0]\n-A FORWARD -p tcp -j X\n-A X -p tcp -m tcp --dport 80 -j DROP\n"),
			want: []string{"filter chain X: -p tcp -m tcp --dport 80 -j DROP (part)"}},
		{name: "drop of a port in a chain for another protocol", saved: filter("ACCEPT", ":X - [0:0]\n-A FORWARD -p udp -j X\n-A X -p tcp -m tcp --dport 80 -j DROP\n")},
		{name: "drop of a port that was accepted with others", saved: filter("ACCEPT", "-A FORWARD -p tcp -m tcp --dport 1:1024 -j ACCEPT\n-A FORWARD -p tcp -m tcp --dport 80 -j DROP\n")},
		{name: "drop of ports in either direction", saved: filter("ACCEPT", "-A FORWARD -p tcp -m multiport --ports 80,81 -j DROP\n"),
			want: []string{"filter chain FORWARD: -p tcp -m multiport --ports 80,81 -j DROP (part)"}},
		{name: "the same, and an ACCEPT before it that does not cover it", saved: filter("ACCEPT", "-A FORWARD -p tcp -m multiport --ports 80 -j ACCEPT\n-A FORWARD -p tcp -m multiport --ports 80,81 -j DROP\n"),
			want: []string{"filter chain FORWARD: -p tcp -m multiport --ports 80,81 -j DROP (part)"}},
		{name: "the same, accepted before it", saved: filter("ACCEPT", "-A FORWARD -p tcp -m multiport --ports 80,81 -j ACCEPT\n-A FORWARD -p tcp -m multiport --ports 80,81 -j DROP\n")},
		{name: "drop of a port of which one is accepted", saved: filter("ACCEPT", "-A FORWARD -p tcp -m tcp --dport 80 -j ACCEPT\n-A FORWARD -p tcp -m multiport --dports 80,81 -j DROP\n"),
			want: []string{"filter chain FORWARD: -p tcp -m multiport --dports 80,81 -j DROP (part)"}},
		{name: "drop of a port to others' containers", saved: filter("ACCEPT", "-A FORWARD -d 172.17.0.0/16 -p tcp -m tcp --dport 80 -j DROP\n")},
		{name: "drop of a container", saved: filter("ACCEPT", "-A FORWARD -d 10.5.34.9/32 -j DROP\n"), want: []string{"filter chain FORWARD: -d 10.5.34.9/32 -j DROP (part)"}},
		{name: "drop of all but a peer's subnet", saved: filter("ACCEPT", "-A FORWARD ! -s 10.5.77.0/24 -d 10.5.34.0/24 -p tcp -m tcp --dport 5432 -j DROP\n"),
			want: []string{"filter chain FORWARD: ! -s 10.5.77.0/24 -d 10.5.34.0/24 -p tcp -m tcp --dport 5432 -j DROP (part)"}},
		{name: "drop of pings", saved: filter("ACCEPT", "-A FORWARD -p icmp -m icmp --icmp-type 8 -j DROP\n"), want: []string{"filter chain FORWARD: -p icmp -m icmp --icmp-type 8 -j DROP (part)"}},
		{name: "drop of ICMP that containers do not need", saved: filter("ACCEPT", "-A FORWARD -p icmp -m icmp --icmp-type 5 -j DROP\n-A FORWARD -p icmp -m icmp --icmp-type 13 -j DROP\n")},
		{name: "a part gets another source", saved: nat("-A POSTROUTING -s 10.5.34.2/32 -p tcp -m tcp --dport 80 -j MASQUERADE\n")},

		// Rules that these programs write on hosts where nothing is wrong.
		{name: "kube-proxy", saved: filter("ACCEPT", ":KUBE-FORWARD - [0:0]\n:KUBE-EXTERNAL-SERVICES - [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-PROXY-FIREWALL - [0:0]\n"+
			"-A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL\n"+
			"-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD\n-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES\n-A FORWARD -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES\n"+
			"-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP\n-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT\n"+
			"-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m udp --dport 53 -j REJECT --reject-with icmp-port-unreachable\n"+
			"-A KUBE-EXTERNAL-SERVICES -p tcp -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j REJECT --reject-with icmp-port-unreachable\n"+
			"-A KUBE-PROXY-FIREWALL -d 203.0.113.9/32 -p tcp -m tcp --dport 80 -j DROP\n")},
		{name: "fail2ban", saved: filter("ACCEPT", ":DOCKER-USER - [0:0]\n:f2b-npm - [0:0]\n-A FORWARD -j DOCKER-USER\n-A DOCKER-USER -p tcp -m multiport --dports 80,443 -j f2b-npm\n"+
			"-A f2b-npm -s 203.0.113.5/32 -j REJECT --reject-with icmp-port-unreachable\n-A f2b-npm -m set --match-set f2b-npm src -j REJECT\n-A f2b-npm -j RETURN\n-A DOCKER-USER -j RETURN\n")},
		{name: "UFW without routes", saved: filter("ACCEPT", ":ufw-before-forward - [0:0]\n:ufw-user-forward - [0:0]\n-A FORWARD -j ufw-before-forward\n-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"+
			"-A ufw-before-forward -p icmp -m icmp --icmp-type 3 -j ACCEPT\n-A ufw-before-forward -p icmp -m icmp --icmp-type 8 -j ACCEPT\n-A ufw-before-forward -j ufw-user-forward\n")},
		{name: "Podman, Tailscale and libvirt", saved: filter("ACCEPT", ":NETAVARK_FORWARD - [0:0]\n:ts-forward - [0:0]\n:LIBVIRT_FWI - [0:0]\n-A FORWARD -j ts-forward\n-A FORWARD -j NETAVARK_FORWARD\n-A FORWARD -j LIBVIRT_FWI\n"+
			"-A ts-forward -i tailscale0 -j MARK --set-xmark 0x40000/0xff0000\n-A ts-forward -m mark --mark 0x40000/0xff0000 -j ACCEPT\n-A ts-forward -s 100.64.0.0/10 -o tailscale0 -j DROP\n-A ts-forward -o tailscale0 -j ACCEPT\n"+
			"-A NETAVARK_FORWARD -m conntrack --ctstate INVALID -j DROP\n-A NETAVARK_FORWARD -d 10.89.0.0/24 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A LIBVIRT_FWI -o virbr0 -j REJECT --reject-with icmp-port-unreachable\n")},
		{name: "drop of a port behind our accept", saved: behindOurs(docker28)[strings.Index(behindOurs(docker28), "*filter"):strings.Index(behindOurs(docker28), "*nat")]},
		{name: "drop of a peer's subnet", saved: filter("ACCEPT", "-A FORWARD -s 10.5.77.0/24 -j DROP\n"), want: []string{"filter chain FORWARD: -s 10.5.77.0/24 -j DROP"}},
		{name: "drop of a peer's subnet that was accepted", saved: filter("ACCEPT", "-A FORWARD -s 10.5.77.0/24 -j ACCEPT\n-A FORWARD -s 10.5.77.9/32 -j DROP\n")},
		{name: "drop of what others send as ours", saved: filter("ACCEPT", "-A FORWARD -i leno-default -s 10.5.34.0/24 -j DROP\n")},
		{name: "drop of other networks", saved: filter("ACCEPT", "-A FORWARD -s 192.0.2.0/24 -j DROP\n-A FORWARD ! -s 10.0.0.0/8 -j DROP\n-A FORWARD -i eth0 -j DROP\n")},
		{name: "drop of all but a device", saved: filter("ACCEPT", "-A FORWARD ! -i docker0 -j DROP\n"), want: []string{"filter chain FORWARD: ! -i docker0 -j DROP"}},
		{name: "drop with a limit", saved: filter("ACCEPT", "-A FORWARD -m limit --limit 5/sec -j DROP\n-A FORWARD -m length --length 1400:1500 -j DROP\n-A FORWARD -f -j DROP\n")},
		{name: "drop of scans", saved: filter("ACCEPT", "-A FORWARD -p tcp -m tcp --tcp-flags FIN,SYN,RST,PSH,ACK,URG NONE -j DROP\n")},
		{name: "drop after some returned", saved: filter("ACCEPT", ":X - [0:0]\n-A FORWARD -j X\n-A X -p tcp -j RETURN\n-A X -j DROP\n"), want: []string{"filter chain X: -j DROP"}},
		{name: "drop of what was perhaps returned", saved: filter("ACCEPT", ":X - [0:0]\n-A FORWARD -j X\n-A X -m set --match-set x src -j RETURN\n-A X -j DROP\n")},
		{name: "drop of what perhaps went elsewhere", saved: filter("DROP", ":X - [0:0]\n-A FORWARD -m mark --mark 0x1 -g X\n-A FORWARD -j DROP\n")},
		{name: "drop that is perhaps, then one that is sure", saved: filter("ACCEPT", ":X - [0:0]\n-A FORWARD -m mark --mark 0x1 -j X\n-A FORWARD -j DROP\n-A X -j LOG\n"), want: []string{"filter chain FORWARD: -j DROP"}},
		{name: "a loop", saved: filter("DROP", ":X - [0:0]\n-A FORWARD -j X\n-A X -j X\n")},
		{name: "drop in a chain that is perhaps jumped to", saved: filter("ACCEPT", ":X - [0:0]\n-A FORWARD -m set --match-set x src -j X\n-A X -j DROP\n")},
		{name: "a tree", saved: filter("DROP", tree)},
		{name: "a bush", saved: filter("DROP", ":X - [0:0]\n:Y - [0:0]\n-A FORWARD -j X\n"+strings.Repeat("-A X -j Y\n-A Y -j X\n", 20))},
		{name: "mangle", saved: "*mangle\n:FORWARD ACCEPT [0:0]\n-A FORWARD -o leno-default -j DROP\nCOMMIT\n", want: []string{"mangle chain FORWARD: -o leno-default -j DROP"}},
		{name: "UFW", saved: filter("DROP", ":ufw-before-forward - [0:0]\n-A FORWARD -j ufw-before-forward\n-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"+
			"-A ufw-before-forward -p icmp -m icmp --icmp-type 8 -j ACCEPT\n-A ufw-before-forward -s 10.5.77.0/24 -j REJECT\n"),
			want: []string{"filter chain ufw-before-forward: -s 10.5.77.0/24 -j REJECT", "filter chain FORWARD: policy DROP"}},

		{name: "masquerade behind our exemption", saved: nat(":LENO-OVERLAY - [0:0]\n-A POSTROUTING -j LENO-OVERLAY\n-A POSTROUTING -s 10.5.34.0/24 ! -o docker0 -j MASQUERADE\n" +
			"-A LENO-OVERLAY -s 10.5.34.0/24 -d 10.5.0.0/16 -j ACCEPT\n")},
		{name: "masquerade before our exemption", saved: nat(":LENO-OVERLAY - [0:0]\n-A POSTROUTING -s 10.5.34.0/24 ! -o docker0 -j MASQUERADE\n-A POSTROUTING -j LENO-OVERLAY\n" +
			"-A LENO-OVERLAY -s 10.5.34.0/24 -d 10.5.0.0/16 -j ACCEPT\n"), want: []string{masq}},
		{name: "our masquerade", saved: nat(":LENO-POSTROUTING - [0:0]\n-A POSTROUTING -j LENO-POSTROUTING\n-A LENO-POSTROUTING -s 10.5.34.0/24 -d 10.5.0.0/16 -j RETURN\n-A LENO-POSTROUTING -s 10.5.34.0/24 -j MASQUERADE\n")},
		{name: "masquerade by the device", saved: nat("-A POSTROUTING -o eth0 -j MASQUERADE\n")},
		{name: "masquerade of everything", saved: nat("-A POSTROUTING -j MASQUERADE --random-fully\n"), want: []string{"nat chain POSTROUTING: -j MASQUERADE --random-fully"}},
		{name: "SNAT of another subnet", saved: nat("-A POSTROUTING -s 172.17.0.0/16 -j SNAT --to-source 192.0.2.1\n")},
		{name: "masquerade of what the host sends", saved: nat("-A POSTROUTING -m addrtype --src-type LOCAL -o docker0 -j MASQUERADE\n-A POSTROUTING -m addrtype --src-type LOCAL -j MASQUERADE\n")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tables, err := netfilter.ParseSave(tt.saved)
			if err != nil {
				t.Fatal(err)
			}
			known := bridges("docker0")
			if tt.bridge == "-" {
				known = nil
			}
			got := findObstacles(iptablesBases("iptables", false, tables), []OverlayPath{overlayPath(true, true)}, known)
			if diff := cmp.Diff(tt.want, places(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestObstaclesOfInput checks that rules that drop packets of the overlay for this host itself are reported if they are
// against addresses of the pool, and that rules against all addresses or some ports are not.
func TestObstaclesOfInput(t *testing.T) {
	input := func(policy, rules string) string {
		return "*filter\n:INPUT " + policy + " [0:0]\n:ts-input - [0:0]\n" + rules + "COMMIT\n"
	}
	const (
		tailscale = "-A INPUT -j ts-input\n-A ts-input -s 10.5.99.1/32 -i lo -j ACCEPT\n" +
			"-A ts-input -s 10.115.92.0/23 ! -i tailscale0 -j RETURN\n-A ts-input -s 10.0.0.0/8 ! -i tailscale0 -j DROP\n" +
			"-A ts-input -i tailscale0 -j ACCEPT\n"
		dropped = "filter chain ts-input: -s 10.0.0.0/8 ! -i tailscale0 -j DROP"
	)
	for _, tt := range []struct {
		name, saved string
		want        []string
	}{
		{"another tunnel's range", input("ACCEPT", tailscale), []string{dropped}},
		{"the same on a host that lets little in", input("DROP", tailscale+"-A INPUT -s 10.5.0.0/16 -j ACCEPT\n"), []string{dropped}},
		{"another tunnel's range, accepted before", input("ACCEPT", "-A INPUT -s 10.5.0.0/16 -j ACCEPT\n"+tailscale), nil},
		{"another range", input("ACCEPT", "-A INPUT -s 100.64.0.0/10 ! -i tailscale0 -j DROP\n"), nil},
		{"a peer's subnet", input("ACCEPT", "-A INPUT -s 10.5.77.0/24 -j REJECT\n"), []string{"filter chain INPUT: -s 10.5.77.0/24 -j REJECT"}},
		{"mangle", "*mangle\n:INPUT ACCEPT [0:0]\n-A INPUT -s 10.5.0.0/16 -j DROP\nCOMMIT\n", []string{"mangle chain INPUT: -s 10.5.0.0/16 -j DROP"}},
		{"a host that lets little in", input("DROP", "-A INPUT -i lo -j ACCEPT\n-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT\n"), nil},
		{"a host that lets in its own LAN", input("ACCEPT", "-A INPUT ! -s 192.168.0.0/16 -j DROP\n"), nil},
		{"a port", input("ACCEPT", "-A INPUT -s 10.5.0.0/16 -p tcp -m tcp --dport 22 -j DROP\n"), nil},
		{"one container", input("ACCEPT", "-A INPUT -s 10.5.77.9/32 -j DROP\n"), nil},
		{"perhaps accepted", input("ACCEPT", "-A INPUT -m set --match-set ours src -j ACCEPT\n"+tailscale), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tables, err := netfilter.ParseSave(tt.saved)
			if err != nil {
				t.Fatal(err)
			}
			got := findObstacles(iptablesBases("iptables", false, tables), []OverlayPath{overlayPath(true, true)}, bridges("docker0"))
			if diff := cmp.Diff(tt.want, places(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestObstaclesOfBothFamilies(t *testing.T) {
	tables, err := netfilter.ParseSave(strings.NewReplacer("10.5.34.2/32", "fd00:5:0:22::2/128", "10.5.34.0/24", "fd00:5:0:22::/64").Replace(docker28))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"ip6tables table raw chain PREROUTING: -d fd00:5:0:22::2/128 ! -i docker0 -j DROP", "ip6tables table filter chain DOCKER: ! -i docker0 -o docker0 -j DROP",
		"ip6tables table nat chain POSTROUTING: -s fd00:5:0:22::/64 ! -o docker0 -j MASQUERADE"}
	if diff := cmp.Diff(want, places(findObstacles(iptablesBases("ip6tables", true, tables), []OverlayPath{overlayPath(true, true)}, bridges("docker0")))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Each obstacle's advice uses the terms of the program that wrote the rule.
func TestObstacleAdvice(t *testing.T) {
	for _, tt := range []struct {
		name, saved   string
		forward, masq bool
		want          []string
	}{
		{"direct", raw("-A PREROUTING -d 10.5.34.2/32 ! -i docker0 -j DROP\n"), true, true, []string{`iptables table raw chain PREROUTING: "-d 10.5.34.2/32 ! -i docker0 -j DROP"`,
			"drops packets of other hosts for the container 10.5.34.2", "--allow-direct-routing", "trusted_host_interfaces=leno-default"}},
		{"many", raw("-A PREROUTING -d 10.5.34.2/32 ! -i docker0 -j DROP\n-A PREROUTING -d 10.5.34.3/32 ! -i docker0 -j DROP\n-A PREROUTING -d 10.5.34.4/32 ! -i docker0 -j DROP\n"), true, true, []string{"(and 2 like it)"}},
		{"masquerade", nat("-A POSTROUTING -s 10.5.34.0/24 ! -o docker0 -j MASQUERADE\n"), true, true, []string{"this host's address instead of the container's", "--ip-masq=false", "enable_ip_masquerade=false"}},
		{"masquerade instead of us", nat("-A POSTROUTING -s 10.5.34.0/24 ! -o docker0 -j MASQUERADE\n"), true, false, []string{"and set ip_masq = true"}},
		{"masquerade of others", nat("-A POSTROUTING -j MASQUERADE\n"), true, false, []string{"exclude packets from 10.5.34.0/24 to 10.5.0.0/16 from that rule"}},
		{"policy without us", filter("DROP", ""), false, true, []string{`chain FORWARD: "policy DROP"`, "drops packets of other hosts for containers in 10.5.34.0/24", "set forward = true"}},
		{"policy with us", filter("DROP", ""), true, true, []string{"accept packets from and to 10.5.0.0/16 there"}},
		{"UFW", filter("ACCEPT", ":ufw-x - [0:0]\n-A FORWARD -j ufw-x\n-A ufw-x -j REJECT\n"), true, true, []string{"`ufw route allow from 10.5.0.0/16 to 10.5.0.0/16`"}},
		{"UFW's policy", filter("DROP", ":ufw-before-forward - [0:0]\n-A FORWARD -j ufw-before-forward\n-A ufw-before-forward -p icmp -m icmp --icmp-type 8 -j ACCEPT\n"), false, true, []string{`chain FORWARD: "policy DROP"`, "`ufw route allow from 10.5.0.0/16 to 10.5.0.0/16`"}},
		{"a rule of UFW's administrator", filter("DROP", ":ufw-user-forward - [0:0]\n-A FORWARD -j ufw-user-forward\n-A ufw-user-forward -s 10.5.0.0/16 -j DROP\n"), true, true, []string{"chain ufw-user-forward", "accept packets from and to 10.5.0.0/16 there, before that rule"}},
		{"a port", filter("ACCEPT", "-A FORWARD -d 10.5.34.0/24 -p tcp -m multiport --dports 80,8000:9000 -j DROP\n"), true, true, []string{
			"drops some packets between containers, those from 10.5.0.0/16 to 10.5.34.0/24: TCP, to port 80, 8000-9000", "it may be intended; if not, remove it (`iptables -t filter -D FORWARD -d 10.5.34.0/24 -p tcp -m multiport --dports 80,8000:9000 -j DROP`), or: accept packets from and to 10.5.0.0/16 there, before that rule"}},
		{"a comment that a shell reads", filter("ACCEPT", "-A FORWARD -d 10.5.34.0/24 ! -p tcp -m comment --comment \"it's \\\"$(x)\\\"; see(wiki)\" -j DROP\n"), true, true, []string{
			"(`iptables -t filter -D FORWARD -d 10.5.34.0/24 ! -p tcp -m comment --comment 'it'\\''s \"$(x)\"; see(wiki)' -j DROP`)"}},
		{"a comment without spaces that a shell reads", filter("ACCEPT", "-A FORWARD -d 10.5.34.0/24 -p tcp -m comment --comment blocked;see(wiki) -j DROP\n"), true, true, []string{
			"--comment 'blocked;see(wiki)' -j DROP`)"}},
		{"all but a peer", filter("ACCEPT", "-A FORWARD ! -s 10.5.77.0/24 -p icmp -m icmp --icmp-type 8 -j DROP\n"), true, true, []string{"ICMP, type 8, not from 10.5.77.0/24"}},
		{"a peer's subnet", filter("ACCEPT", "-A FORWARD -s 10.5.77.0/24 -j DROP\n"), true, true, []string{"drops packets from 10.5.77.0/24 for containers in 10.5.34.0/24"}},
		{"for a peer's subnet", filter("ACCEPT", "-A FORWARD -d 10.5.77.0/24 -j DROP\n"), true, true, []string{"drops packets of containers in 10.5.34.0/24 for 10.5.77.0/24"}},
		{"Tailscale's range", "*filter\n:INPUT ACCEPT [0:0]\n:ts-input - [0:0]\n-A INPUT -j ts-input\n-A ts-input -s 10.0.0.0/8 ! -i tailscale0 -j DROP\nCOMMIT\n", true, true,
			[]string{"drops packets from 10.5.0.0/16 for this host itself; use a pool outside 100.64.0.0/10", "--netfilter-mode=nodivert"}},
		{"this host", "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -s 10.0.0.0/8 -j DROP\nCOMMIT\n", true, true, []string{"accept packets from 10.5.0.0/16 there, before that rule"}},
		{"the other way", filter("ACCEPT", "-A FORWARD -o leno-default -j DROP\n"), true, true, []string{"drops packets of containers in 10.5.34.0/24 for other hosts"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tables, err := netfilter.ParseSave(tt.saved)
			if err != nil {
				t.Fatal(err)
			}
			got := findObstacles(iptablesBases("iptables", false, tables), []OverlayPath{overlayPath(tt.forward, tt.masq)}, bridges("docker0"))
			if len(got) != 1 {
				t.Fatalf("%v", got)
			}
			for _, want := range tt.want {
				if !strings.Contains(got[0].String(), want) {
					t.Errorf("%q is missing in %q", want, got[0])
				}
			}
			if got[0].Own != strings.Contains(tt.saved, ":INPUT") {
				t.Errorf("about this host itself: %t", got[0].Own)
			}
			if got[0].Network != "default" {
				t.Errorf("network %q", got[0].Network)
			}
		})
	}
}

// TestManyPartialObstacles checks that a long list of an administrator's rules is reported up to a readable length,
// and the rest counted.
func TestManyPartialObstacles(t *testing.T) {
	var rules strings.Builder
	for port := range 50 {
		fmt.Fprintf(&rules, "-A FORWARD -p tcp -m tcp --dport %d -j DROP\n", 1000+port)
	}
	tables, err := netfilter.ParseSave(filter("ACCEPT", rules.String()))
	if err != nil {
		t.Fatal(err)
	}
	got := findObstacles(iptablesBases("iptables", false, tables), []OverlayPath{overlayPath(true, true)}, bridges("docker0"))
	if last := got[len(got)-1]; len(got) != maxPartial || last.More != 50-maxPartial {
		t.Errorf("%d rules are reported, and %d counted", len(got), last.More)
	}
}

// TestTableReadOnce: the rules of a table are parsed once for all of its chains.
func TestTableReadOnce(t *testing.T) {
	tables, err := netfilter.ParseSave(docker28)
	if err != nil {
		t.Fatal(err)
	}
	read := map[string]uintptr{}
	for _, b := range iptablesBases("iptables", false, tables) {
		lines := reflect.ValueOf(b.lines).Pointer()
		if before, known := read[b.table()]; known && before != lines {
			t.Errorf("%s: the table was read again", b.where)
		}
		read[b.table()] = lines
	}
}

// BenchmarkKubeProxy reads the rules that kube-proxy writes for 5,000 services.
func BenchmarkKubeProxy(b *testing.B) {
	var chains, rules strings.Builder
	for i := range 5000 {
		service := fmt.Sprintf("KUBE-SVC-%016d", i)
		fmt.Fprintf(&chains, ":%s - [0:0]\n", service)
		fmt.Fprintf(&rules, "-A KUBE-SERVICES -d 10.96.%d.%d/32 -p tcp -m tcp --dport 80 -j %s\n", i/250, i%250, service)
		for j := range 3 {
			endpoint := fmt.Sprintf("KUBE-SEP-%014d%02d", i, j)
			fmt.Fprintf(&chains, ":%s - [0:0]\n", endpoint)
			fmt.Fprintf(&rules, "-A %s -m statistic --mode random --probability 0.5 -j %s\n", service, endpoint)
			fmt.Fprintf(&rules, "-A %s -s 10.244.1.2/32 -j KUBE-MARK-MASQ\n", endpoint)
			fmt.Fprintf(&rules, "-A %s -p tcp -m tcp -j DNAT --to-destination 10.244.1.2:80\n", endpoint)
		}
	}
	tables, err := netfilter.ParseSave("*nat\n:POSTROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n" +
		chains.String() + rules.String() + "COMMIT\n")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		iptablesBases("iptables", false, tables)
	}
}

func TestNumbers(t *testing.T) {
	parse := func(list string) numbers {
		if list == "" {
			return nil
		}
		n, ok := parseNumbers(strings.Split(list, ","), noName)
		if !ok {
			t.Fatal(list)
		}
		return n
	}
	text := func(n numbers) string { return n.text(func(i int) string { return fmt.Sprint(i) }) }
	for _, tt := range []struct{ a, b, with, without string }{
		{"80", "80", "80", ""},
		{"", "80", "80", "0-79, 81-65535"},
		{"1:1024", "80,443", "80, 443", "1-79, 81-442, 444-1024"},
		{"80,443", "1:1024", "80, 443", ""},
		{"80-90,85:100", "95", "95", "80-94, 96-100"},
		{"65535", "0", "", "65535"},
		{"", "", "0-65535", ""},
	} {
		a, b := parse(tt.a), parse(tt.b)
		if with, without := text(a.intersect(b)), text(a.subtract(b)); with != tt.with || without != tt.without {
			t.Errorf("%q and %q: with %q, without %q", tt.a, tt.b, with, without)
		}
		if got := b.contains(a); got != (tt.without == "") {
			t.Errorf("%q contains %q: %t", tt.b, tt.a, got)
		}
	}
	for _, bad := range []string{"", "x", "90-80", "70000", "-1"} {
		if n, ok := parseNumbers([]string{bad}, noName); ok {
			t.Errorf("%q is %v", bad, n)
		}
	}
	if n, ok := parseNumbers([]string{"ipv6-icmp", "17"}, protocolNumber); !ok || n.text(protocolName) != "UDP, ICMPv6" {
		t.Errorf("%v", n)
	}
}
