package registry_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/lenonet/leno/registry"
)

func pool(prefix string, length int, ends ...string) registry.Pool {
	p := registry.Pool{SubnetLen: length}
	if prefix != "" {
		p.Prefix = netip.MustParsePrefix(prefix)
	}
	if len(ends) > 0 && ends[0] != "" {
		p.Min = netip.MustParseAddr(ends[0])
	}
	if len(ends) > 1 {
		p.Max = netip.MustParseAddr(ends[1])
	}
	return p
}

func mustPlan(t testing.TB, pools ...registry.Pool) registry.Plan {
	t.Helper()
	plan, err := registry.Plan(pools).Normalize()
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func TestPoolDefaults(t *testing.T) {
	for _, tt := range []struct {
		name       string
		give, want registry.Pool
	}{
		{"/16", pool("10.5.0.0/16", 0), pool("10.5.0.0/16", 24, "10.5.1.0", "10.5.255.0")},
		{"/8", pool("10.0.0.0/8", 0), pool("10.0.0.0/8", 24, "10.0.1.0", "10.255.255.0")},
		{"/22 is the longest with /24s", pool("10.5.4.0/22", 0), pool("10.5.4.0/22", 24, "10.5.5.0", "10.5.7.0")},
		{"/23 gets two bits", pool("10.5.4.0/23", 0), pool("10.5.4.0/23", 25, "10.5.4.128", "10.5.5.128")},
		{"/28 gets two bits", pool("10.5.4.0/28", 0), pool("10.5.4.0/28", 30, "10.5.4.4", "10.5.4.12")},
		{"ipv6 /48", pool("fd00:5::/48", 0), pool("fd00:5::/48", 64, "fd00:5:0:1::", "fd00:5:0:ffff::")},
		{"ipv6 /63 gets two bits", pool("fd00:5::/63", 0), pool("fd00:5::/63", 65, "fd00:5::8000:0:0:0", "fd00:5:0:1:8000::")},
		{"ipv6 /32 is the shortest with /64s", pool("fd00:5::/32", 0), pool("fd00:5::/32", 64, "fd00:5:0:1::", "fd00:5:ffff:ffff::")},
		{"given values stay", pool("10.5.0.0/16", 28, "10.5.0.0", "10.5.0.0"), pool("10.5.0.0/16", 28, "10.5.0.0", "10.5.0.0")},
		{"min alone", pool("10.5.0.0/16", 24, "10.5.9.0"), pool("10.5.0.0/16", 24, "10.5.9.0", "10.5.255.0")},
		{"the last address space", pool("240.0.0.0/4", 24), pool("240.0.0.0/4", 24, "240.0.1.0", "255.255.255.0")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.give.Normalize()
			if err != nil || got != tt.want {
				t.Fatalf("got %v, %v, want %v", got, err, tt.want)
			}
			if again, err := got.Normalize(); err != nil || again != got {
				t.Errorf("normalized again: %v, %v", again, err)
			}
		})
	}
}

func TestPlanErrors(t *testing.T) {
	for _, tt := range []struct {
		name string
		give registry.Plan
		want []string // each in the error's text
	}{
		{"no pool", nil, []string{"at least one pool"}},
		{"no prefix", registry.Plan{{}}, []string{"prefix is missing"}},
		{"two of a family", registry.Plan{pool("10.5.0.0/16", 0), pool("10.6.0.0/16", 0)}, []string{"2 IPv4 pools"}},
		{"two of IPv6", registry.Plan{pool("fd00:5::/48", 0), pool("fd00:6::/48", 0)}, []string{"2 IPv6 pools"}},
		{"host bits", registry.Plan{pool("10.5.0.1/16", 0)}, []string{"host bits", "10.5.0.0/16"}},
		{"IPv4 as IPv6", registry.Plan{pool("::ffff:10.5.0.0/112", 0)}, []string{"write it as IPv4"}},
		{"everything", registry.Plan{pool("0.0.0.0/0", 24)}, []string{"unicast"}},
		{"this network", registry.Plan{pool("0.0.0.0/8", 24)}, []string{"unicast"}},
		{"around loopback", registry.Plan{pool("64.0.0.0/2", 24)}, []string{"unicast", "127.0.0.0/8"}},
		{"loopback", registry.Plan{pool("127.9.0.0/16", 24)}, []string{"unicast"}},
		{"link-local", registry.Plan{pool("169.254.0.0/16", 24)}, []string{"unicast"}},
		{"multicast", registry.Plan{pool("239.0.0.0/8", 24)}, []string{"unicast"}},
		{"around multicast", registry.Plan{pool("192.0.0.0/2", 24)}, []string{"unicast"}},
		{"all of IPv6", registry.Plan{pool("::/0", 32)}, []string{"unicast"}},
		{"IPv6 link-local", registry.Plan{pool("fe80::/64", 80)}, []string{"unicast"}},
		{"IPv6 multicast", registry.Plan{pool("ff05::/48", 64)}, []string{"unicast"}},
		{"IPv6 loopback", registry.Plan{pool("::/64", 80)}, []string{"unicast"}},
		{"too few subnets", registry.Plan{pool("10.5.0.0/23", 24)}, []string{"fewer than 4", "at least 25"}},
		{"shorter than the prefix", registry.Plan{pool("10.5.0.0/16", 8)}, []string{"fewer than 4"}},
		{"negative", registry.Plan{pool("10.5.0.0/16", -1)}, []string{"fewer than 4"}},
		{"too long", registry.Plan{pool("10.5.0.0/16", 31)}, []string{"longer than 30"}},
		{"prefix too long", registry.Plan{pool("10.5.0.0/29", 0)}, []string{"the prefix is longer than /28, which holds 4 subnets of /30"}},
		{"prefix too long for a length that is set", registry.Plan{pool("10.5.0.0/29", 30)}, []string{"the prefix is longer than /28"}},
		{"IPv6 prefix too long", registry.Plan{pool("fd00:5::/125", 0)}, []string{"the prefix is longer than /124, which holds 4 subnets of /126"}},
		{"too many by default", registry.Plan{pool("fd00::/16", 0)}, []string{"subnet_len 64, the default, makes more than 2^32 subnets", "set it to 48 or less"}},
		{"IPv6 too long", registry.Plan{pool("fd00:5::/120", 127)}, []string{"longer than 126"}},
		{"too many subnets", registry.Plan{pool("fd00:4::/31", 64)}, []string{"more than 2^32"}},
		{"min outside", registry.Plan{pool("10.5.0.0/16", 24, "10.6.0.0")}, []string{"min 10.6.0.0 is outside"}},
		{"min of the other family", registry.Plan{pool("10.5.0.0/16", 24, "fd00::")}, []string{"min fd00:: is outside"}},
		{"max outside", registry.Plan{pool("10.5.0.0/16", 24, "", "10.6.0.0")}, []string{"max 10.6.0.0 is outside"}},
		{"min inside a subnet", registry.Plan{pool("10.5.0.0/16", 24, "10.5.1.1")}, []string{"min 10.5.1.1 is not the first address of a /24"}},
		{"min above max", registry.Plan{pool("10.5.0.0/16", 24, "10.5.9.0", "10.5.8.0")}, []string{"min 10.5.9.0 is above max 10.5.8.0"}},
		{"all at once", registry.Plan{pool("10.5.0.0/16", 31), pool("fd00:5::/48", 64, "fd00:6::", "fd00:7::")},
			[]string{"longer than 30", "min fd00:6::", "max fd00:7::"}},
		{"no slot in common", registry.Plan{pool("10.5.0.0/16", 24, "10.5.200.0"), pool("fd00:5::/48", 64, "", "fd00:5:0:9::")},
			[]string{"no slot in common"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := tt.give.Normalize()
			if !errors.Is(err, registry.ErrInvalid) {
				t.Fatalf("got %v, want %v", err, registry.ErrInvalid)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

// Slots and subnets count the same thing in different ways, at both ends of the largest plans.
func TestSlots(t *testing.T) {
	v4, v6 := pool("10.5.0.0/16", 24), pool("fd00:5::/48", 64)
	for _, tt := range []struct {
		name        string
		plan        registry.Plan
		first, last uint64
		subnets     map[uint64]string
	}{
		{"/16 of /24s", mustPlan(t, v4), 1, 255, map[uint64]string{0: "10.5.0.0/24", 1: "10.5.1.0/24", 34: "10.5.34.0/24", 255: "10.5.255.0/24"}},
		{"/8 of /24s", mustPlan(t, pool("10.0.0.0/8", 24)), 1, 65535, map[uint64]string{256: "10.1.0.0/24", 65535: "10.255.255.0/24"}},
		{"/8 of /30s", mustPlan(t, pool("10.0.0.0/8", 30)), 1, 1<<22 - 1, map[uint64]string{1: "10.0.0.4/30", 1<<22 - 1: "10.255.255.252/30"}},
		{"/3 of /24s", mustPlan(t, pool("192.0.0.0/3", 24)), 1, 1<<21 - 1, map[uint64]string{1<<21 - 1: "223.255.255.0/24"}},
		{"/48 of /64s", mustPlan(t, v6), 1, 65535, map[uint64]string{34: "fd00:5:0:22::/64", 65535: "fd00:5:0:ffff::/64"}},
		{"/32 of /64s", mustPlan(t, pool("fd00:5::/32", 64)), 1, 1<<32 - 1, map[uint64]string{1<<32 - 1: "fd00:5:ffff:ffff::/64", 1 << 31: "fd00:5:8000::/64"}},
		{"/48 of /80s crosses no word", mustPlan(t, pool("fd00:5::/48", 80)), 1, 1<<32 - 1,
			map[uint64]string{1: "fd00:5:0:0:1::/80", 1 << 16: "fd00:5:0:1::/80", 1<<32 - 1: "fd00:5:0:ffff:ffff::/80"}},
		{"/112 of /126s", mustPlan(t, pool("fd00:5::/112", 126)), 1, 1<<14 - 1, map[uint64]string{1: "fd00:5::4/126", 1<<14 - 1: "fd00:5::fffc/126"}},
		{"/96 of /112s", mustPlan(t, pool("fd00:5::/96", 112)), 1, 65535, map[uint64]string{65535: "fd00:5::ffff:0/112"}},
		{"in range", mustPlan(t, pool("10.5.0.0/16", 24, "10.5.10.0", "10.5.20.0")), 10, 20, map[uint64]string{10: "10.5.10.0/24"}},
		{"dual stack, IPv4 first", mustPlan(t, v6, v4), 1, 255, map[uint64]string{34: "10.5.34.0/24 fd00:5:0:22::/64"}},
		{"dual stack has the ranges' common part", mustPlan(t, pool("10.5.0.0/16", 24, "10.5.9.0"), pool("fd00:5::/48", 64, "", "fd00:5:0:80::")),
			9, 0x80, map[uint64]string{9: "10.5.9.0/24 fd00:5:0:9::/64"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if first, last := tt.plan.Range(); first != tt.first || last != tt.last {
				t.Errorf("range %d to %d, want %d to %d", first, last, tt.first, tt.last)
			}
			if got, want := tt.plan.Capacity(), tt.last-tt.first+1; got != want {
				t.Errorf("capacity %d, want %d", got, want)
			}
			for _, edge := range []struct {
				slot uint64
				want bool
			}{{tt.first - 1, false}, {tt.first, true}, {tt.last, true}, {tt.last + 1, false}} {
				if got := tt.plan.InRange(edge.slot); got != edge.want {
					t.Errorf("slot %d in range: %v", edge.slot, got)
				}
			}
			for slot, want := range tt.subnets {
				var texts []string
				for i, p := range tt.plan.Subnets(slot) {
					texts = append(texts, p.String())
					if !tt.plan[i].Prefix.Contains(p.Addr()) {
						t.Errorf("slot %d: %s is outside %s", slot, p, tt.plan[i].Prefix)
					}
					if back, err := tt.plan.Slot(p); err != nil || back != slot {
						t.Errorf("slot of %s is %d, %v, want %d", p, back, err, slot)
					}
				}
				if got := strings.Join(texts, " "); got != want {
					t.Errorf("slot %d is %s, want %s", slot, got, want)
				}
			}
		})
	}
}

func TestSlotErrors(t *testing.T) {
	plan := mustPlan(t, pool("10.5.0.0/16", 24), pool("fd00:5::/48", 64))
	for subnet, want := range map[string]string{
		"10.6.0.0/24":            "outside",
		"10.5.1.0/25":            "are /24",
		"10.5.0.0/16":            "are /24",
		"10.5.1.1/24":            "host bits",
		"fd00:6::/64":            "outside",
		"fd00:5::/48":            "are /64",
		"::ffff:10.5.1.0/120":    "outside",
		"::ffff:a05:100/24":      "outside",
		"fd00:5:0:1::1/64":       "host bits",
		"255.255.255.255/32":     "outside",
		"fd00:5:0:1:8000::1/128": "are /64",
	} {
		_, err := plan.Slot(netip.MustParsePrefix(subnet))
		if !errors.Is(err, registry.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("slot of %s: %v, want %q", subnet, err, want)
		}
	}
	if _, err := plan.Slot(netip.Prefix{}); !errors.Is(err, registry.ErrInvalid) {
		t.Errorf("slot of no subnet: %v", err)
	}
}

// TestSlotsBeyondAPool: a subnet of the larger pool of one family may have a slot that the other family's pool lacks.
func TestSlotsBeyondAPool(t *testing.T) {
	t.Parallel()
	plan := mustPlan(t, registry.Pool{Prefix: netip.MustParsePrefix("192.168.0.0/16"), SubnetLen: 24},
		registry.Pool{Prefix: netip.MustParsePrefix("fd00::/32"), SubnetLen: 64})
	n := registry.Network{Name: "default", Plan: plan}
	for _, text := range []string{"fd00:0:3f:4fff::/64", "fd00:0:ffff:ffff::/64"} {
		subnet := netip.MustParsePrefix(text)
		slot, err := plan.Slot(subnet)
		if err != nil {
			t.Fatal(err)
		}
		if got := plan.Subnets(slot); len(got) != 2 || got[1] != subnet || plan.InRange(slot) {
			t.Errorf("%s: slot %d, %s, in range %t", text, slot, got, plan.InRange(slot))
		}
		key := registry.SubnetKey(subnet)
		if _, err := registry.ParseLease(n, key, []byte("{}")); !errors.Is(err, registry.ErrInvalid) {
			t.Errorf("lease %s: %v", key, err)
		}
		if _, err := registry.ParseReservation(n, key, []byte("{}")); !errors.Is(err, registry.ErrInvalid) {
			t.Errorf("reservation %s: %v", key, err)
		}
	}
}

func TestOverlapping(t *testing.T) {
	plan := mustPlan(t, pool("10.5.0.0/16", 24), pool("fd00:5::/48", 64))
	for _, tt := range []struct {
		prefix      string
		first, last uint64
		ok          bool
	}{
		{"10.5.34.0/24", 34, 34, true},
		{"10.5.34.128/25", 34, 34, true},
		{"10.5.34.7/32", 34, 34, true},
		{"10.5.34.0/23", 34, 35, true},
		{"10.5.35.7/23", 34, 35, true},
		{"10.5.128.0/17", 128, 255, true},
		{"10.5.0.0/16", 0, 255, true},
		{"10.0.0.0/8", 0, 255, true},
		{"0.0.0.0/0", 0, 255, true},
		{"10.6.0.0/24", 0, 0, false},
		{"fd00:5:0:22::/64", 0x22, 0x22, true},
		{"fd00:5:0:22::7/128", 0x22, 0x22, true},
		{"fd00:5:0:8000::/49", 0x8000, 0xffff, true},
		{"::/0", 0, 0xffff, true},
		{"fd00:6::/64", 0, 0, false},
	} {
		first, last, ok := plan.Overlapping(netip.MustParsePrefix(tt.prefix))
		if first != tt.first || last != tt.last || ok != tt.ok {
			t.Errorf("%s overlaps %d to %d, %v, want %d to %d, %v", tt.prefix, first, last, ok, tt.first, tt.last, tt.ok)
		}
	}
	if _, _, ok := plan.Overlapping(netip.Prefix{}); ok {
		t.Error("no prefix overlaps")
	}
}
