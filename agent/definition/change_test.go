package definition

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/vxlan"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
)

// describe returns a plan as lines: c for changes, h for hosts, r for refusals, R for those that
// cannot be forced.
func describe(p api.NetworkPlan) []string {
	out := []string{p.Action}
	for _, c := range p.Changes {
		out = append(out, fmt.Sprintf("c %s %s -> %s", c.Field, c.From, c.To))
	}
	for _, h := range p.Hosts {
		out = append(out, fmt.Sprintf("h %s %s %t: %s", h.Node, h.Subnet, h.Held, strings.Join(h.What, "; ")))
	}
	for _, r := range p.Refused {
		kind := "r"
		if !r.Force {
			kind = "R"
		}
		out = append(out, kind+" "+r.Reason)
		if r.Way == "" {
			out = append(out, "no way is shown")
		}
	}
	return out
}

// changed is a lease of slot in n, held or not.
func changed(n registry.Network, node string, slot uint64, held bool) registry.Lease {
	l := registry.Lease{Network: n.Name, Slot: slot, Subnets: n.Plan.Subnets(slot), Node: node, NodeID: "id-" + node,
		PublicIPs: []netip.Addr{netip.MustParseAddr("192.0.2.11")}, MTU: 1450, Backend: n.Backend}
	if held {
		l.Session = "s-" + node
	}
	return l
}

func TestChange(t *testing.T) {
	pool := func(prefix string, rest ...string) registry.Pool {
		p := registry.Pool{Prefix: netip.MustParsePrefix(prefix)}
		for _, r := range rest {
			switch a, err := netip.ParseAddr(r); {
			case err != nil:
				p.SubnetLen = len(r)
			case !p.Min.IsValid():
				p.Min = a
			default:
				p.Max = a
			}
		}
		return p
	}
	network := func(kind, options string, pools ...registry.Pool) registry.Network {
		plan, err := registry.Plan(pools).Normalize()
		must(t, err)
		return registry.Network{Name: "n", Plan: plan, Backend: agenttest.Backend(t, kind, options), ModifyIndex: 7}
	}
	var (
		v4   = pool("10.5.0.0/16", "10.5.1.0", "10.5.99.0")
		v6   = pool("fd00:5::/48")
		base = network("vxlan", "", v4)
		dual = network("vxlan", "", v4, v6)
		six  = network("vxlan", "", v6)
		kept = "h a 10.5.10.0/24 true: keeps 10.5.10.0/24"
	)
	const v6Changes = "c ipv6.max %[1]s; c ipv6.min %[2]s; c ipv6.prefix %[3]s; c ipv6.subnet_len %[4]s"
	added := strings.Split(fmt.Sprintf(v6Changes, " -> fd00:5:0:ffff::", " -> fd00:5:0:1::", " -> fd00:5::/48", " -> 64"), "; ")
	removed := strings.Split(fmt.Sprintf(v6Changes, "fd00:5:0:ffff:: -> ", "fd00:5:0:1:: -> ", "fd00:5::/48 -> ", "64 -> "), "; ")

	for _, tt := range []struct {
		name     string
		old, new registry.Network
		leases   []registry.Lease // default: host a on slot 10
		reserved []string
		// reservedFor are reservations for hosts of the network, by subnet.
		reservedFor map[string]string
		others      []registry.Network
		want        []string
	}{
		{name: "nothing", old: base, new: base, want: []string{"none"}},
		{name: "a default spelled out", old: base, new: network("vxlan", `{"vni":1}`, v4), want: []string{"none"}},
		{name: "created", new: network("udp", "", pool("10.7.0.0/24", "..........................")),
			want: []string{"create", "c backend.mtu  -> 0", "c backend.port  -> 8285", "c backend.type  -> udp", "c ipv4.max  -> 10.7.0.192", "c ipv4.min  -> 10.7.0.64",
				"c ipv4.prefix  -> 10.7.0.0/24", "c ipv4.subnet_len  -> 26"}},

		{name: "created with public pools", new: network("alloc", "", pool("8.8.0.0/16"), pool("2000::/3", strings.Repeat(".", 35))),
			want: []string{"create", "c backend.type  -> alloc", "c ipv4.max  -> 8.8.255.0", "c ipv4.min  -> 8.8.1.0",
				"c ipv4.prefix  -> 8.8.0.0/16", "c ipv4.subnet_len  -> 24", "c ipv6.max  -> 3fff:ffff:e000::", "c ipv6.min  -> 2000:0:2000::",
				"c ipv6.prefix  -> 2000::/3", "c ipv6.subnet_len  -> 35",
				"r pool 8.8.0.0/16 contains public addresses, which hosts could no longer reach",
				"r pool 2000::/3 contains public addresses, which hosts could no longer reach"}},
		{name: "public already", old: network("vxlan", "", pool("8.8.0.0/16")), new: network("vxlan", "", pool("8.8.0.0/17")),
			want: []string{"update", "c ipv4.max 8.8.255.0 -> 8.8.127.0", "c ipv4.prefix 8.8.0.0/16 -> 8.8.0.0/17",
				"h a 8.8.10.0/24 true: keeps 8.8.10.0/24"}},
		{name: "public pool grows", old: network("vxlan", "", pool("8.8.0.0/16")), new: network("vxlan", "", pool("8.8.0.0/15")),
			want: []string{"update", "c ipv4.max 8.8.255.0 -> 8.9.255.0", "c ipv4.prefix 8.8.0.0/16 -> 8.8.0.0/15",
				"h a 8.8.10.0/24 true: keeps 8.8.10.0/24", "r pool 8.8.0.0/15 contains public addresses, which hosts could no longer reach"}},

		// What changes live.
		{name: "direct routing", old: base, new: network("vxlan", `{"direct_routing":true}`, v4),
			want: []string{"update", "c backend.direct_routing false -> true", kept}},
		{name: "checksum offload", old: base, new: network("vxlan", `{"checksum_offload":"off"}`, v4),
			want: []string{"update", "c backend.checksum_offload auto -> off", kept}},
		{name: "range grows", old: base, new: network("vxlan", "", pool("10.5.0.0/16", "10.5.0.0", "10.5.255.0")),
			want: []string{"update", "c ipv4.max 10.5.99.0 -> 10.5.255.0", "c ipv4.min 10.5.1.0 -> 10.5.0.0", kept}},
		{name: "pool grows", old: base, new: network("vxlan", "", pool("10.4.0.0/15", "10.5.1.0", "10.5.99.0")),
			want: []string{"update", "c ipv4.prefix 10.5.0.0/16 -> 10.4.0.0/15", kept}},
		{name: "range shrinks where no host is", old: base, new: network("vxlan", "", pool("10.5.0.0/16", "10.5.10.0", "10.5.10.0")),
			want: []string{"update", "c ipv4.max 10.5.99.0 -> 10.5.10.0", "c ipv4.min 10.5.1.0 -> 10.5.10.0", kept}},
		{name: "IPv6 added", old: base, new: dual,
			want: append(append([]string{"update"}, added...), kept+"; gains fd00:5:0:a::/64; "+uncertainIPv6)},
		{name: "IPv6 added to a host that has it", old: base, new: dual, leases: []registry.Lease{withIPv6(changed(base, "a", 10, true))},
			want: append(append([]string{"update"}, added...), kept+"; gains fd00:5:0:a::/64")},
		{name: "IPv6 added where one host has followed", old: dual, new: network("vxlan", `{"direct_routing":true}`, v4, v6),
			leases: []registry.Lease{changed(base, "a", 10, true), changed(dual, "b", 11, true)},
			want: []string{"update", "c backend.direct_routing false -> true", kept + "; gains fd00:5:0:a::/64; " + uncertainIPv6,
				"h b 10.5.11.0/24 true: keeps 10.5.11.0/24, fd00:5:0:b::/64"}},
		{name: "lapsed leases stand against nothing", old: base, new: network("vxlan", `{"vni":2}`, pool("10.5.0.0/16", "10.5.20.0")),
			leases: []registry.Lease{changed(base, "a", 10, false), changed(base, "b", 30, false)},
			want: []string{"update", "c backend.vni 1 -> 2", "c ipv4.max 10.5.99.0 -> 10.5.255.0", "c ipv4.min 10.5.1.0 -> 10.5.20.0",
				"h a 10.5.10.0/24 false: takes another subnet: 10.5.10.0/24 is outside the new range; " + stop(vxlan.Type(), "vni"),
				"h b 10.5.30.0/24 false: keeps 10.5.30.0/24; " + stop(vxlan.Type(), "vni")}},

		// What takes something from hosts.
		{name: "range shrinks", old: base, new: network("vxlan", "", pool("10.5.0.0/16", "10.5.1.0", "10.5.20.0")),
			leases: []registry.Lease{changed(base, "a", 10, true), changed(base, "b", 30, true), changed(base, "c", 40, true), changed(base, "d", 41, false)},
			want: []string{"update", "c ipv4.max 10.5.99.0 -> 10.5.20.0", kept,
				"h b 10.5.30.0/24 true: takes another subnet: 10.5.30.0/24 is outside the new range",
				"h c 10.5.40.0/24 true: takes another subnet: 10.5.40.0/24 is outside the new range",
				"h d 10.5.41.0/24 false: takes another subnet: 10.5.41.0/24 is outside the new range",
				"r b (10.5.30.0/24), c (10.5.40.0/24) would lose the subnet, and containers their addresses: it is outside the new range"}},
		{name: "range shrinks to less than there are hosts", old: base, new: network("vxlan", "", pool("10.5.0.0/16", "10.5.10.0", "10.5.11.0")),
			leases: []registry.Lease{changed(base, "a", 10, true), changed(base, "b", 30, true), changed(base, "c", 40, true), changed(base, "d", 41, false)},
			want: []string{"update", "c ipv4.max 10.5.99.0 -> 10.5.11.0", "c ipv4.min 10.5.1.0 -> 10.5.10.0", kept,
				"h b 10.5.30.0/24 true: may find no other subnet: 10.5.30.0/24 is outside the new range, in which 1 of 2 hosts would find one",
				"h c 10.5.40.0/24 true: may find no other subnet: 10.5.40.0/24 is outside the new range, in which 1 of 2 hosts would find one",
				"h d 10.5.41.0/24 false: may find no other subnet: 10.5.41.0/24 is outside the new range, in which 1 of 3 hosts would find one",
				"r b (10.5.30.0/24), c (10.5.40.0/24) would lose the subnet, and containers their addresses: it is outside the new range",
				"r hosts that need another subnet: 2, free in the new range: 1; the rest would wait for one"}},
		{name: "range shrinks to what is taken", old: base, new: network("vxlan", "", pool("10.5.0.0/16", "10.5.10.0", "10.5.13.0")),
			leases:   []registry.Lease{changed(base, "a", 10, true), changed(base, "b", 11, false), changed(base, "c", 40, true), changed(base, "e", 50, true)},
			reserved: []string{"10.5.12.0/24"}, reservedFor: map[string]string{"10.5.13.0/24": "c"},
			want: []string{"update", "c ipv4.max 10.5.99.0 -> 10.5.13.0", "c ipv4.min 10.5.1.0 -> 10.5.10.0", kept,
				"h b 10.5.11.0/24 false: keeps 10.5.11.0/24",
				"h c 10.5.40.0/24 true: takes another subnet, 10.5.13.0/24, which is reserved for it: 10.5.40.0/24 is outside the new range",
				"h e 10.5.50.0/24 true: finds no other subnet: 10.5.50.0/24 is outside the new range, in which none is free",
				"r c (10.5.40.0/24), e (10.5.50.0/24) would lose the subnet, and containers their addresses: it is outside the new range",
				"r hosts that need another subnet: 1, free in the new range: 0; the rest would wait for one"}},
		{name: "a small IPv6 range shrinks the whole", old: base, new: network("vxlan", "", v4, pool("fd00:5::/60")),
			leases: []registry.Lease{changed(base, "a", 10, true), changed(base, "b", 30, true)},
			want: []string{"update", "c ipv6.max  -> fd00:5:0:f::", "c ipv6.min  -> fd00:5:0:1::", "c ipv6.prefix  -> fd00:5::/60", "c ipv6.subnet_len  -> 64",
				kept + "; gains fd00:5:0:a::/64; " + uncertainIPv6, "h b 10.5.30.0/24 true: takes another subnet: 10.5.30.0/24 is outside the new range",
				"r b (10.5.30.0/24) would lose the subnet, and containers their addresses: it is outside the new range"}},
		{name: "other subnet length", old: base, new: network("vxlan", "", pool("10.5.0.0/16", "10.5.1.0", "10.5.99.0", ".........................")),
			want: []string{"update", "c ipv4.subnet_len 24 -> 25", "h a 10.5.10.0/24 true: takes another subnet: 10.5.10.0/24 is no subnet of the new pools",
				"r a (10.5.10.0/24) would lose the subnet, and containers their addresses: it is no subnet of the new pools"}},
		{name: "pool grows downwards beside another family", old: dual, new: network("vxlan", "", pool("10.4.0.0/15", "10.5.1.0", "10.5.99.0"), pool("fd00:5::/48", "fd00:5:0:1::")),
			want: []string{"update", "c ipv4.prefix 10.5.0.0/16 -> 10.4.0.0/15",
				"h a 10.5.10.0/24 true: takes another subnet: 10.5.10.0/24 goes with another subnet of the other family in the new pools",
				"r a (10.5.10.0/24) would lose the subnet, and containers their addresses: it goes with another subnet of the other family in the new pools"}},
		{name: "IPv6 removed", old: dual, new: base,
			want: append(append([]string{"update"}, removed...), kept+"; loses fd00:5:0:a::/64",
				"r containers on a (10.5.10.0/24) would lose their addresses of one family")},
		{name: "IPv4 removed", old: dual, new: six,
			want: []string{"update", "c ipv4.max 10.5.99.0 -> ", "c ipv4.min 10.5.1.0 -> ", "c ipv4.prefix 10.5.0.0/16 -> ", "c ipv4.subnet_len 24 -> ",
				"h a 10.5.10.0/24 true: takes another subnet: 10.5.10.0/24 is no subnet of the new pools",
				"r a (10.5.10.0/24) would lose the subnet, and containers their addresses: it is no subnet of the new pools"}},
		{name: "IPv4 added before IPv6", old: six, new: network("vxlan", "", pool("10.5.0.0/16"), v6),
			want: []string{"update", "c ipv4.max  -> 10.5.255.0", "c ipv4.min  -> 10.5.1.0", "c ipv4.prefix  -> 10.5.0.0/16", "c ipv4.subnet_len  -> 24",
				"h a fd00:5:0:a::/64 true: keeps fd00:5:0:a::/64; " + renamed + "; gains 10.5.10.0/24",
				"r IPv4 would name the lease of a (fd00:5:0:a::/64), which moves to another key: packets stop until peers have read that"}},
		{name: "vni", old: base, new: network("vxlan", `{"vni":2}`, v4),
			want: []string{"update", "c backend.vni 1 -> 2", kept + "; " + stop(vxlan.Type(), "vni"),
				"r backend.vni changes: packets stop, since " + vxlan.Type().Interrupts["vni"]}},
		{name: "backend", old: base, new: network("alloc", "", v4),
			want: []string{"update", "c backend.checksum_offload auto -> ", "c backend.direct_routing false -> ", "c backend.gbp false -> ", "c backend.mtu 0 -> ", "c backend.port 8472 -> ",
				"c backend.type vxlan -> alloc", "c backend.vni 1 -> ",
				kept + "; changes from backend vxlan to alloc: packets stop until its peers have too",
				"r backend vxlan becomes alloc: packets stop between hosts that have changed and those that have not"}},
		{name: "a reservation", old: base, new: network("vxlan", "", pool("10.5.0.0/16", "10.5.1.0", "10.5.20.0")), reserved: []string{"10.5.20.0/24", "10.5.21.0/24"},
			want: []string{"update", "c ipv4.max 10.5.99.0 -> 10.5.20.0", kept, "r the reservation of 10.5.21.0/24 (for r) would be void"}},

		// What could not work.
		{name: "pool over the hosts", old: base, new: network("vxlan", "", pool("192.0.0.0/8")), leases: []registry.Lease{},
			want: []string{"update", "c ipv4.max 10.5.99.0 -> 192.255.255.0", "c ipv4.min 10.5.1.0 -> 192.0.1.0", "c ipv4.prefix 10.5.0.0/16 -> 192.0.0.0/8",
				"r pool 192.0.0.0/8 contains public addresses, which hosts could no longer reach"}},
		{name: "pool over a host", old: network("vxlan", "", pool("192.0.0.0/24")), new: network("vxlan", "", pool("192.0.0.0/22", "192.0.0.0")),
			leases: []registry.Lease{changed(network("vxlan", "", pool("192.0.0.0/24", "..........................")), "a", 1, true)},
			want: []string{"update", "c ipv4.max 192.0.0.192 -> 192.0.3.0", "c ipv4.min 192.0.0.64 -> 192.0.0.0", "c ipv4.prefix 192.0.0.0/24 -> 192.0.0.0/22", "c ipv4.subnet_len 26 -> 24",
				"h a 192.0.0.64/26 true: takes another subnet: 192.0.0.64/26 is no subnet of the new pools",
				"r a (192.0.0.64/26) would lose the subnet, and containers their addresses: it is no subnet of the new pools",
				"R pool 192.0.0.0/22 contains the address between hosts of a (192.0.0.64/26)",
				"r pool 192.0.0.0/22 contains public addresses, which hosts could no longer reach"}},
		{name: "IPv6 without addresses for it", old: network("host-gw", "", v4), new: network("host-gw", "", v4, v6),
			leases: []registry.Lease{changed(base, "a", 10, true)},
			want: append(append([]string{"update"}, added...), kept+"; gains fd00:5:0:a::/64",
				"R backend host-gw needs an IPv6 address between hosts, which a (10.5.10.0/24) has not")},
		{name: "IPv6 on a narrow underlay", old: base, new: dual, leases: []registry.Lease{narrow(changed(base, "a", 10, true))},
			want: append(append([]string{"update"}, added...), kept+"; gains fd00:5:0:a::/64; "+uncertainIPv6,
				"R IPv6 needs an MTU of 1280, and on a (10.5.10.0/24) it is less")},

		// Beside other networks.
		{name: "overlap", old: base, new: network("vxlan", "", pool("10.4.0.0/15", "10.5.1.0", "10.5.99.0")),
			others: []registry.Network{base, {Name: "m", Plan: agenttest.Plan(t, "10.4.0.0/16"), Backend: agenttest.Backend(t, "udp", "")}},
			want: []string{"update", "c ipv4.prefix 10.5.0.0/16 -> 10.4.0.0/15", kept,
				"r pool 10.4.0.0/15 overlaps 10.4.0.0/16 of network m: a host can take part in one of them only"}},
		{name: "overlap there was", old: base, new: network("vxlan", `{"direct_routing":true}`, v4),
			others: []registry.Network{{Name: "m", Plan: agenttest.Plan(t, "10.5.0.0/16"), Backend: agenttest.Backend(t, "vxlan", "")}},
			want:   []string{"update", "c backend.direct_routing false -> true", kept}},
		{name: "created beside", new: network("vxlan", "", pool("10.7.0.0/16")),
			others: []registry.Network{{Name: "m", Plan: agenttest.Plan(t, "10.8.0.0/16"), Backend: agenttest.Backend(t, "vxlan", "")}},
			want: []string{"create", "c backend.checksum_offload  -> auto", "c backend.direct_routing  -> false", "c backend.gbp  -> false", "c backend.mtu  -> 0", "c backend.port  -> 8472",
				"c backend.type  -> vxlan", "c backend.vni  -> 1", "c ipv4.max  -> 10.7.255.0", "c ipv4.min  -> 10.7.1.0", "c ipv4.prefix  -> 10.7.0.0/16", "c ipv4.subnet_len  -> 24",
				"r it needs vxlan vni 1 on port 8472, which network m uses: a host can take part in one of them only"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Change{Old: tt.old, New: tt.new, Leases: tt.leases, Others: tt.others, Backends: backends()}
			if c.Leases == nil && c.exists() {
				c.Leases = []registry.Lease{changed(tt.old, "a", 10, true)}
			}
			for _, r := range tt.reserved {
				c.Reservations = append(c.Reservations, registry.Reservation{Subnet: netip.MustParsePrefix(r), Node: "r"})
			}
			for subnet, node := range tt.reservedFor {
				c.Reservations = append(c.Reservations, registry.Reservation{Subnet: netip.MustParsePrefix(subnet), Node: node})
			}
			if diff := cmp.Diff(tt.want, describe(c.Plan())); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func stop(kind backend.Type, option string) string {
	return "packets stop for a moment: " + kind.Interrupts[option]
}

func withIPv6(l registry.Lease) registry.Lease {
	l.PublicIPs = append(l.PublicIPs, netip.MustParseAddr("2001:db8::11"))
	return l
}

func narrow(l registry.Lease) registry.Lease {
	l.MTU = 1230
	return l
}

// TestInterruptingOptions are options there are.
func TestInterruptingOptions(t *testing.T) {
	for name, kind := range backends() {
		options := parseOptions(typeSet(backends()).spec(agenttest.Backend(t, name, "")).Options)
		for option := range kind.Interrupts {
			if _, ok := options[option]; !ok {
				t.Errorf("%s has no option %s, but %v", name, option, slices.Sorted(maps.Keys(options)))
			}
		}
	}
}

// TestCheckDefinition: a block defines no network that the hosts of another one could
// not carry.
func TestCheckDefinition(t *testing.T) {
	network := func(name, prefix, options string) registry.Network {
		t.Helper()
		plan, err := registry.Plan{{Prefix: netip.MustParsePrefix(prefix)}}.Normalize()
		must(t, err)
		return registry.Network{Name: name, Plan: plan, Backend: agenttest.Backend(t, "vxlan", options)}
	}
	kinds := map[string]backend.Type{"vxlan": vxlan.Type()}
	others := []registry.Network{network("a", "10.5.0.0/16", `{"vni":1}`), network("b", "10.6.0.0/16", `{"vni":2}`)}
	for _, tt := range []struct {
		name  string
		n     registry.Network
		wants []string // words of the refusal; none: it is defined
	}{
		{"a free pool and VNI", network("c", "10.7.0.0/16", `{"vni":3}`), nil},
		{"the default VNI", network("c", "10.7.0.0/16", `{}`), []string{"vxlan vni 1 on port 8472, which network a uses", "choose another"}},
		{"a part of a pool", network("c", "10.6.128.0/17", `{"vni":3}`), []string{"pool 10.6.128.0/17 overlaps 10.6.0.0/16 of network b", "choose a pool that is free"}},
		{"both", network("c", "10.6.0.0/16", `{"vni":1}`), []string{"network a uses", "of network b"}},
		{"the port's other kind of socket", network("c", "10.7.0.0/16", `{"vni":3,"gbp":true}`), []string{"vxlan with gbp vni 3 on port 8472, and network a uses vxlan vni 1 on port 8472"}},
		{"its own name", network("a", "10.5.0.0/16", `{"vni":1}`), nil},
		{"another port", network("c", "10.7.0.0/16", `{"port":4789}`), nil},
	} {
		err := CheckBlock(tt.n, others, kinds)
		if len(tt.wants) == 0 && err != nil || len(tt.wants) > 0 && !errors.Is(err, ErrNotDefinable) {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		for _, words := range tt.wants {
			if !strings.Contains(err.Error(), words) {
				t.Errorf("%s: %v, want %q", tt.name, err, words)
			}
		}
	}
}

func TestSome(t *testing.T) {
	for n, want := range map[int]string{0: "", 1: "x", 5: "x, x, x, x, x", 7: "x, x, x, x, x and 2 more"} {
		if got := FirstFew(slices.Repeat([]string{"x"}, n)); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
