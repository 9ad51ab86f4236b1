package registry_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"testing"

	"github.com/lenonet/leno/registry"
)

func TestBackend(t *testing.T) {
	for _, tt := range []struct{ name, options, object, rest string }{
		{"nothing", "", `{"type":"vxlan"}`, `{}`},
		{"white space", " \n", `{"type":"vxlan"}`, `{}`},
		{"null", "null", `{"type":"vxlan"}`, `{}`},
		{"empty", "{}", `{"type":"vxlan"}`, `{}`},
		{"order kept, spacing not", `{ "vni" : 1, "gbp": {"b": [1, 2], "a": null} }`, `{"type":"vxlan","vni":1,"gbp":{"b":[1,2],"a":null}}`, `{"vni":1,"gbp":{"b":[1,2],"a":null}}`},
		{"another type", `{"vni":1,"type":"udp"}`, `{"type":"vxlan","vni":1}`, `{"vni":1}`},
		{"another case is another member", `{"Type":"udp"}`, `{"type":"vxlan","Type":"udp"}`, `{"Type":"udp"}`},
		{"large numbers", `{"x":12345678901234567890}`, `{"type":"vxlan","x":12345678901234567890}`, `{"x":12345678901234567890}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := registry.NewBackend("vxlan", json.RawMessage(tt.options))
			if err != nil || b.Type != "vxlan" || string(b.Object) != tt.object {
				t.Fatalf("got %s %s, %v, want %s", b.Type, b.Object, err, tt.object)
			}
			if got := string(b.Options()); got != tt.rest {
				t.Errorf("options %s, want %s", got, tt.rest)
			}
			value, err := json.Marshal(b)
			if err != nil {
				t.Fatal(err)
			}
			var back registry.Backend
			if err := json.Unmarshal(value, &back); err != nil || back.Type != "vxlan" || string(back.Object) != tt.object || !back.Equal(b) {
				t.Errorf("read back %s %s, %v", back.Type, back.Object, err)
			}
		})
	}
	for _, options := range []string{"[]", "1", `"x"`, "{", `{"a":}`, `{"a":1`} {
		if b, err := registry.NewBackend("vxlan", json.RawMessage(options)); !errors.Is(err, registry.ErrInvalid) {
			t.Errorf("options %s: %s, %v", options, b.Object, err)
		}
	}
	if got, err := json.Marshal(registry.Backend{Type: "alloc"}); err != nil || string(got) != `{"type":"alloc"}` {
		t.Errorf("type alone: %s, %v", got, err)
	}
	if got := string((registry.Backend{Type: "x", Object: []byte("{")}).Options()); got != `{}` {
		t.Errorf("options of a broken object: %s", got)
	}
}

func TestBackendEqual(t *testing.T) {
	base := registry.Backend{Type: "vxlan", Object: []byte(`{"type":"vxlan","vni":1,"a":{"b":1,"c":2}}`)}
	for _, tt := range []struct {
		object string
		want   bool
	}{
		{`{"type":"vxlan","vni":1,"a":{"b":1,"c":2}}`, true},
		{`{ "a": {"c":2, "b":1}, "vni":1, "type":"\u0076xlan" }`, true},
		{`{"type":"vxlan","vni":2,"a":{"b":1,"c":2}}`, false},
		{`{"type":"vxlan","a":{"b":1,"c":2}}`, false},
		{``, false},
	} {
		if got := base.Equal(registry.Backend{Type: "vxlan", Object: []byte(tt.object)}); got != tt.want {
			t.Errorf("equal to %s: %v", tt.object, got)
		}
	}
	if base.Equal(registry.Backend{Type: "udp", Object: base.Object}) {
		t.Error("two types are equal")
	}
}

func TestSameValue(t *testing.T) {
	n := smallNetwork(t)
	base := held(n, 3, 3)
	for name, tt := range map[string]struct {
		change func(*registry.Lease)
		want   bool
	}{
		"nothing":         {func(*registry.Lease) {}, true},
		"what stores say": {func(l *registry.Lease) { l.Session, l.Lapsed, l.CreateIndex, l.ModifyIndex = "", 1, 9, 9 }, true},
		"subnets":         {func(l *registry.Lease) { l.Subnets = n.Plan.Subnets(4) }, false},
		"node":            {func(l *registry.Lease) { l.Node = "x" }, false},
		"node id":         {func(l *registry.Lease) { l.NodeID = "x" }, false},
		"addresses":       {func(l *registry.Lease) { l.PublicIPs = []netip.Addr{addr(3), addr(4)} }, false},
		"mtu":             {func(l *registry.Lease) { l.MTU = 1400 }, false},
		"backend":         {func(l *registry.Lease) { l.Backend.Type = "udp" }, false},
	} {
		l := held(n, 3, 3)
		tt.change(&l)
		if got := base.SameValue(l); got != tt.want {
			t.Errorf("%s changed: same %v", name, got)
		}
	}
	if (registry.Lease{}).Subnet().IsValid() {
		t.Error("a lease without subnets has one")
	}
}

// TestReservationOfANodeID: the digits of an id may be written in either case.
func TestReservationOfANodeID(t *testing.T) {
	r := registry.Reservation{NodeID: "65EB4BA1-BAA7-7A15-0CB0-2D9447AD7CFF", Node: "host-b"}
	if !r.For(registry.Claim{NodeID: "65eb4ba1-baa7-7a15-0cb0-2d9447ad7cff", Node: "host-a"}) {
		t.Error("not for its host")
	}
	if r.For(registry.Claim{NodeID: "75eb4ba1-baa7-7a15-0cb0-2d9447ad7cff", Node: "host-b"}) {
		t.Error("for another host")
	}
}

// TestOutranks covers which of two versions of a lease stays when a snapshot has brought back the other one.
func TestOutranks(t *testing.T) {
	lease := func(id, session, kind string) registry.Lease {
		return registry.Lease{NodeID: id, Session: session, Backend: registry.Backend{Type: kind}}
	}
	for _, tt := range []struct {
		name         string
		known, other registry.Lease
		want         bool
	}{
		{"both held", lease("a", "s", "vxlan"), lease("a", "s", "vxlan"), true},
		{"another host's, both held", lease("a", "s", "vxlan"), lease("b", "s", "vxlan"), true},
		{"another host's, the known one lapsed", lease("a", "", "vxlan"), lease("b", "s", "vxlan"), false},
		{"another host's, both lapsed", lease("a", "", "vxlan"), lease("b", "", "vxlan"), true},
		{"the same host's, the known one lapsed", lease("a", "", "vxlan"), lease("a", "s", "vxlan"), true},
		{"only the other one has the network's backend", lease("a", "s", "udp"), lease("a", "s", "vxlan"), false},
		{"only the known one has it", lease("a", "s", "vxlan"), lease("a", "s", "udp"), true},
		{"neither has it", lease("a", "s", "udp"), lease("a", "s", "udp"), true},
	} {
		if got := tt.known.Outranks(tt.other, "vxlan"); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}
