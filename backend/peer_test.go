package backend

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestClaims(t *testing.T) {
	c := NewClaims(prefixes("10.5.0.0/16", "fd00:5::/48"), prefixes("10.5.1.0/24", "fd00:5:0:1::/64"))
	for _, tt := range []struct {
		node    string
		subnets []netip.Prefix
		reason  string
	}{
		{"a", prefixes("10.5.2.0/24", "fd00:5:0:2::/64"), ""},
		{"none", nil, "has no subnet"},
		{"zero", []netip.Prefix{{}}, "subnet invalid Prefix is invalid"},
		{"host bits", prefixes("10.5.3.1/24"), "subnet 10.5.3.1/24 is invalid"},
		{"outside", prefixes("10.6.3.0/24"), "subnet 10.6.3.0/24 is outside the network"},
		{"wider than the pool", prefixes("10.4.0.0/15"), "subnet 10.4.0.0/15 is outside the network"},
		{"ours", prefixes("10.5.3.0/24", "fd00:5:0:1::/64"), "subnet fd00:5:0:1::/64 is our own"},
		{"around ours", prefixes("10.5.0.0/23"), "subnet 10.5.0.0/23 is our own"},
		{"b", prefixes("10.5.4.0/24", "fd00:5:0:2::/64"), "subnet fd00:5:0:2::/64 is node a's too"},
		{"c", prefixes("10.5.4.0/24"), ""}, // b's failure left it free
	} {
		if got := c.Take(Peer{Node: tt.node, Subnets: tt.subnets}); got != tt.reason {
			t.Errorf("%s: %q, want %q", tt.node, got, tt.reason)
		}
	}
}

func TestSortedPeersDependsOnThePeersAlone(t *testing.T) {
	a := Peer{Node: "a", Subnets: prefixes("10.5.9.0/24")}
	b1 := Peer{Node: "b", Subnets: prefixes("10.5.2.0/24")}
	b2 := Peer{Node: "b", Subnets: prefixes("10.5.3.0/24")}
	for _, in := range [][]Peer{{a, b1, b2}, {b2, b1, a}, {b1, a, b2}} {
		got := SortedPeers(in)
		if got[0].Node != "a" || got[1].Subnets[0] != b1.Subnets[0] || got[2].Subnets[0] != b2.Subnets[0] {
			t.Errorf("sorted %v", got)
		}
	}
}

func TestOuter(t *testing.T) {
	addrs := func(texts ...string) (out []netip.Addr) {
		for _, s := range texts {
			out = append(out, netip.MustParseAddr(s))
		}
		return out
	}
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, tt := range []struct {
		over   netip.Addr
		peer   []netip.Addr
		want   netip.Addr
		reason string
	}{
		{v4, addrs("192.0.2.2", "2001:db8::2"), netip.MustParseAddr("192.0.2.2"), ""},
		{v4, addrs("::ffff:192.0.2.2"), netip.MustParseAddr("192.0.2.2"), ""},
		{v6, addrs("2001:db8::2", "192.0.2.2"), netip.MustParseAddr("2001:db8::2"), ""},
		{v6, addrs("192.0.2.2", "2001:db8::2"), netip.MustParseAddr("2001:db8::2"), "receives over IPv4, and this host over IPv6"},
		{v4, addrs("2001:db8::2"), netip.Addr{}, "no IPv4 public address"},
		{v6, nil, netip.Addr{}, "no IPv6 public address"},
	} {
		if got, reason := (Peer{PublicIPs: tt.peer}).Outer(tt.over); got != tt.want || reason != tt.reason {
			t.Errorf("over %s to %v: %v, %q", tt.over, tt.peer, got, reason)
		}
	}
}

func TestPublicIP(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	p := Peer{PublicIPs: []netip.Addr{v6, v4}}
	if got, ok := p.PublicIP(netip.MustParseAddr("10.0.0.1")); !ok || got != v4 {
		t.Errorf("IPv4: %v %v", got, ok)
	}
	if got, ok := p.PublicIP(v6); !ok || got != v6 {
		t.Errorf("IPv6: %v %v", got, ok)
	}
	if _, ok := (Peer{PublicIPs: []netip.Addr{v6}}).PublicIP(v4); ok {
		t.Error("found an IPv4 address among IPv6 ones")
	}
}

// TestEqual checks that a state differs if any field does, including fields added later.
func TestEqual(t *testing.T) {
	peer := func() Peer {
		return Peer{Node: "b", Subnets: prefixes("10.5.2.0/24"), PublicIPs: []netip.Addr{netip.MustParseAddr("192.0.2.2")},
			MTU: 1450, Backend: "vxlan", Attributes: []byte(`{}`), Precedence: 7}
	}
	state := func() State {
		return State{Subnets: prefixes("10.5.1.0/24"), MTU: 1450, Peers: []Peer{peer()},
			Elsewhere: prefixes("10.5.3.0/24"), Published: []byte(`{}`), Precedence: 5,
			Underlay: Underlay{Interface: "eth0", Index: 2, MTU: 1500, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}
	}
	if !state().Equal(state()) || !(State{}).Equal(State{}) {
		t.Error("equal states differ")
	}
	check := func(of reflect.Type, change func(field int) State) {
		for i := range of.NumField() {
			if change(i).Equal(state()) {
				t.Errorf("%s.%s makes no difference", of, of.Field(i).Name)
			}
		}
	}
	zeroed := func(v reflect.Value, field int) {
		if f := v.Field(field); f.IsZero() && f.Kind() == reflect.Bool {
			f.SetBool(true)
		} else {
			f.SetZero()
		}
	}
	check(reflect.TypeFor[State](), func(i int) State { s := state(); zeroed(reflect.ValueOf(&s).Elem(), i); return s })
	check(reflect.TypeFor[Peer](), func(i int) State { s := state(); zeroed(reflect.ValueOf(&s.Peers[0]).Elem(), i); return s })
}

func TestPublicIPs(t *testing.T) {
	ip := netip.MustParseAddr
	got := PublicIPs([]Peer{{PublicIPs: []netip.Addr{ip("192.0.2.3"), ip("2001:db8::3")}}, {}, {PublicIPs: []netip.Addr{ip("192.0.2.2"), ip("192.0.2.3")}}})
	if want := []netip.Addr{ip("192.0.2.2"), ip("192.0.2.3"), ip("2001:db8::3")}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
