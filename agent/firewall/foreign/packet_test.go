package foreign

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// TestPacket: rules that certainly drop one packet are found, with its devices, protocol and port, and of the rules with
// counters, those that may apply to it and have dropped packets.
func TestPacket(t *testing.T) {
	const saved = "*filter\n:INPUT DROP [0:0]\n:FORWARD ACCEPT [0:0]\n:OWN - [0:0]\n" +
		"-A INPUT -s 10.5.1.2/32 -j DROP\n-A FORWARD -s 10.5.1.9/32 -j DROP\n-A FORWARD -i br0 -o leno-n -j OWN\n" +
		"-A OWN -p tcp -m tcp --dport 80 -j DROP\n-A OWN -m limit --limit 1/sec -j RETURN\n-A OWN -s 10.5.1.2/32 -j REJECT --reject-with icmp-port-unreachable\nCOMMIT\n"
	ruleset := func(packets ...uint64) Ruleset {
		tables, err := netfilter.ParseSave(saved)
		if err != nil {
			t.Fatal(err)
		}
		table := tables["filter"]
		table.Packets, table.PolicyPackets = packets, map[string]uint64{"INPUT": 1}
		tables["filter"] = table
		return Ruleset{iptablesBases("iptables", false, tables)}
	}
	packet := func(src, in, protocol string, port int) Packet {
		return Packet{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr("10.5.2.2"), In: in, Out: "leno-n", Protocol: protocol, Port: port}
	}
	before := ruleset(1, 1, 1, 1, 1, 1)
	for _, tt := range []struct {
		name  string
		of    Packet
		drops []string
	}{
		{"a port", packet("10.5.1.3", "br0", "tcp", 80), []string{"-p tcp -m tcp --dport 80 -j DROP"}},
		{"another port", packet("10.5.1.3", "br0", "tcp", 81), nil},
		{"another protocol", packet("10.5.1.3", "br0", "icmp", 0), nil},
		{"a source", packet("10.5.1.9", "br0", "icmp", 0), []string{"-s 10.5.1.9/32 -j DROP"}},
		{"by another device", packet("10.5.1.3", "br1", "tcp", 80), nil},
		{"after a limit", packet("10.5.1.2", "br0", "icmp", 0), nil}, // it is not certain
	} {
		var got []string
		for _, o := range before.Drops(tt.of) {
			got = append(got, o.Rule)
		}
		if !slices.Equal(got, tt.drops) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.drops)
		}
	}
	after := ruleset(9, 9, 9, 9, 9, 6)
	counts := after.DroppedSince(before, packet("10.5.1.2", "br0", "icmp", 0))
	if len(counts) != 1 || counts[0].Packets != 5 || counts[0].IsCertain || counts[0].Where != "iptables table filter chain OWN" ||
		counts[0].Removal != "iptables -t filter -D OWN -s 10.5.1.2/32 -j REJECT --reject-with icmp-port-unreachable" {
		t.Errorf("%+v", counts)
	}
	// A packet for the host itself meets other chains.
	own := packet("10.5.1.2", "br0", "icmp", 0)
	own.Out = ""
	if counts := after.DroppedSince(before, own); len(counts) != 1 || counts[0].Rule != "-s 10.5.1.2/32 -j DROP" || counts[0].Packets != 8 || !counts[0].IsCertain {
		t.Errorf("%+v", counts)
	}
}

// TestCounts: of the rules that dropped packets between two readings, those count that the packets, or answers to them, may meet.
func TestCounts(t *testing.T) {
	const accepted = "-A INPUT -i lo -j ACCEPT\n-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"
	for _, tt := range []struct {
		name, rules string // of INPUT, whose policy is DROP
		answer      bool
		protocol    string
		want        []string // "certain" or "possible" and the rule
	}{
		{"answers are accepted before the policy", accepted, true, "icmp", nil},
		{"first packets are not", accepted, false, "icmp", []string{"certain policy DROP"}},
		{"nothing accepts answers", "", true, "icmp", []string{"certain policy DROP"}},
		{"a rule before the one that accepts answers", "-A INPUT -p icmp -j DROP\n" + accepted, true, "icmp", []string{"certain -p icmp -j DROP"}},
		{"answers of another type", "-A INPUT -p icmp -m icmp --icmp-type 8 -j DROP\n" + accepted, true, "icmp", nil},
		{"answers that are not tracked", "-A INPUT -m conntrack --ctstate INVALID -j DROP\n" + accepted, true, "icmp", []string{"possible -m conntrack --ctstate INVALID -j DROP"}},
		{"a set of addresses", "-A INPUT -m set --match-set x src -j DROP\n-A INPUT -p icmp -j ACCEPT\n", false, "icmp", []string{"possible -m set --match-set x src -j DROP"}},
		{"after a set of addresses", "-A INPUT -m set --match-set x src -j ACCEPT\n", false, "icmp", []string{"possible policy DROP"}},
		{"from a port", "-A INPUT -p tcp -m tcp --sport 80 -j DROP\n" + accepted, true, "tcp", []string{"certain -p tcp -m tcp --sport 80 -j DROP"}},
		{"only first packets", "-A INPUT -p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -m conntrack --ctstate NEW -j DROP\n" + accepted, true, "tcp", nil},
		{"a chain", "-A INPUT -p icmp -j OWN\n-A INPUT -j ACCEPT\n-A OWN -m conntrack --ctstate ESTABLISHED -j RETURN\n-A OWN -j DROP\n", true, "icmp", nil},
		{"a chain without return", "-A INPUT -p icmp -g OWN\n-A INPUT -j ACCEPT\n-A OWN -m conntrack --ctstate ESTABLISHED -j RETURN\n", true, "icmp", []string{"certain policy DROP"}},
		{"a chain that jumps to itself", "-A INPUT -j OWN\n-A OWN -j OWN\n", true, "icmp", nil},
	} {
		ruleset := func(packets uint64) Ruleset {
			tables, err := netfilter.ParseSave("*filter\n:INPUT DROP [0:0]\n:OWN - [0:0]\n" + tt.rules + "COMMIT\n")
			if err != nil {
				t.Fatal(err)
			}
			table := tables["filter"]
			for range table.Rules {
				table.Packets = append(table.Packets, packets)
			}
			table.PolicyPackets = map[string]uint64{"INPUT": packets}
			tables["filter"] = table
			return Ruleset{iptablesBases("iptables", false, tables)}
		}
		p := Packet{Src: netip.MustParseAddr("10.5.2.2"), Dst: netip.MustParseAddr("10.5.1.0"), In: "leno-n", Protocol: tt.protocol, IsAnswer: tt.answer}
		if tt.protocol == "tcp" {
			p.Port = 80
		}
		var got []string
		for _, c := range ruleset(11).DroppedSince(ruleset(1), p) {
			got = append(got, map[bool]string{true: "certain ", false: "possible "}[c.IsCertain]+c.Rule)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
