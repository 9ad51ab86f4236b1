package probe

import (
	"strings"
	"testing"
)

// drop puts rules into a table of the host's own, each with its hook first, and returns a function that removes them.
func (h *host) drop(rules ...string) func() {
	h.t.Helper()
	script := "nft add table inet fault\n"
	for _, rule := range rules {
		hook, match, _ := strings.Cut(rule, " ")
		script += "nft 'add chain inet fault " + hook + " { type filter hook " + hook + " priority 0; }'\nnft 'add rule inet fault " + hook + " " + match + "'\n"
	}
	h.ns.Sh(h.words.Replace(script))
	return func() { h.ns.Sh("nft delete table inet fault") }
}

// sh runs one script, and returns a function that runs another.
func (h *host) sh(now, then string) func() {
	h.t.Helper()
	h.ns.Sh(now)
	return func() { h.ns.Sh(then) }
}

// The expected reports; PORT and @MTU are the backend's.
const (
	silent = "overlay 10.5.2.0 0/2 0/0 largest 0 of @MTU\noverlay fd00:5:0:2:: 0/2 0/0 largest 0 of @MTU\n"
	well   = "overlay 10.5.2.0 2/2 2/2 largest @MTU of @MTU, echo reply\noverlay fd00:5:0:2:: 2/2 2/2 largest @MTU of @MTU, echo reply\n"
	under  = "underlay 192.0.2.2 2/2 2/2 largest 1500 of 1500, echo reply"
)

// TestFaults checks what a probe reports for each fault, and that it reports none afterwards.
func TestFaults(t *testing.T) {
	all := []struct {
		name    string
		begin   func(a, b *host) (end func())
		reached bool
		want    map[string]string // by backend; "" for all
	}{
		{"lost on the way to the peer", func(_, b *host) func() { return b.drop("input udp dport PORT drop") }, false, map[string]string{
			"": silent + under + "\nto lost, from passes"}},
		{"lost on the way from the peer", func(_, b *host) func() { return b.drop("output udp dport PORT drop") }, false, map[string]string{
			"vxlan": silent + under + "\nto passes, from lost",
			"udp":   silent + under + "\nto unknown, from unknown"}},
		{"lost both ways", func(a, _ *host) func() { return a.drop("input udp dport PORT drop", "output udp dport PORT drop") }, false, map[string]string{
			"vxlan": silent + under + "\nto unknown, from unknown"}},
		{"lost on the way to the peer, to a host with a strict filter", func(_, b *host) func() {
			end := b.drop("input udp dport PORT drop")
			more := b.sh("sysctl -qw net.ipv4.conf.all.rp_filter=1", "sysctl -qw net.ipv4.conf.all.rp_filter=0")
			return func() { end(); more() }
		}, false, map[string]string{"vxlan": silent + under + "\nto unknown, from unknown"}},
		{"refused", func(_, b *host) func() { return b.drop("input udp dport PORT reject") }, false, map[string]string{
			"": silent + under + "; port unreachable from 192.0.2.2 about udp port PORT\nto lost, from passes"}},
		{"no echo over the underlay", func(_, b *host) func() { return b.drop("input iifname eth0 icmp type echo-request drop") }, true, map[string]string{
			"": well + "underlay 192.0.2.2 0/2 0/0 largest 0 of 1500"}},
		{"no echo through the overlay", func(_, b *host) func() {
			return b.drop("input iifname leno-n icmp type echo-request drop", "input iifname leno-n icmpv6 type echo-request drop")
		}, true, map[string]string{"": silent + under + "\nto passes, from passes"}},
		{"no echo at all", func(_, b *host) func() {
			return b.drop("input icmp type echo-request drop", "input icmpv6 type echo-request drop")
		}, true, map[string]string{"vxlan": silent + "underlay 192.0.2.2 0/2 0/0 largest 0 of 1500\nto passes, from passes"}},
		{"own firewall", func(a, _ *host) func() { return a.drop("output ip daddr 192.0.2.2 icmp type echo-request drop") }, true, map[string]string{
			"vxlan": well + "underlay 192.0.2.2 0/2 0/0 largest 0 of 1500; a firewall of this host drops it"}},
		{"a route of another program to a part of the subnet", func(a, _ *host) func() {
			return a.sh("ip link add lan0 type bridge; ip link set lan0 up; ip route add 10.5.2.0/25 dev lan0; ip route add fd00:5:0:2::/65 dev lan0",
				"ip link del lan0")
		}, false, map[string]string{"vxlan": silent + under + "\nto lost, from passes"}},
		// A veth lets 4 more bytes pass, for the tag of a VLAN.
		{"black hole", func(_, b *host) func() { return b.sh("ip link set eth0 mtu 1400", "ip link set eth0 mtu 1500") }, true, map[string]string{
			"vxlan": strings.ReplaceAll(well, "2/2 2/2 largest @MTU", "2/2 0/2 largest 1354") + "underlay 192.0.2.2 2/2 0/2 largest 1404 of 1500, echo reply"}},
		{"host down", func(_, b *host) func() { return b.sh("ip link set eth0 down", "ip link set eth0 up") }, false, map[string]string{
			"vxlan": silent + "underlay 192.0.2.2 0/2 0/0 largest 0 of 1500"}},
	}
	for kind, words := range map[string]*strings.Replacer{
		"vxlan": strings.NewReplacer("PORT", "8472", "@MTU", "1450"), "udp": strings.NewReplacer("PORT", "8285", "@MTU", "1472")} {
		for _, tt := range all {
			want := tt.want[kind] + tt.want[""]
			if want == "" {
				continue
			}
			t.Run(kind+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				a, b := newHosts(t, kind)
				a.words, b.words = words, words
				end := tt.begin(a, b)
				checkProbe(t, a.probe(b, briefRequest()), tt.reached, words.Replace(want))
				if end(); tt.name != "host down" { // which needs more than that to come back
					checkProbe(t, a.probe(b, patientRequest()), true, healthy[kind])
				}
			})
		}
	}
}
