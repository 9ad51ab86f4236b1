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
	if len(counts) != 1 || counts[0].Packets != 5 || counts[0].Where != "iptables table filter chain OWN" ||
		counts[0].Removal != "iptables -t filter -D OWN -s 10.5.1.2/32 -j REJECT --reject-with icmp-port-unreachable" {
		t.Errorf("%+v", counts)
	}
	// A packet for the host itself meets other chains.
	own := packet("10.5.1.2", "br0", "icmp", 0)
	own.Out = ""
	if counts := after.DroppedSince(before, own); len(counts) == 0 || counts[0].Rule != "-s 10.5.1.2/32 -j DROP" || counts[0].Packets != 8 {
		t.Errorf("%+v", counts)
	}
}
