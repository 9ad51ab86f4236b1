package transition

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/backend"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		name, kind, options string
		want                Definition
	}{
		{"one backend", "vxlan", `{"vni":1}`, Definition{Current: Spec{Type: "vxlan", Options: json.RawMessage(`{"vni":1}`)}}},
		{"the other device", "vxlan", `{"device":"b","vni":1}`,
			Definition{Current: Spec{Type: "vxlan", Options: json.RawMessage(`{"vni":1}`), Other: true}}},
		{"a switch", "vxlan", `{"next":{"device":"b","port":1,"type":"udp"},"vni":1}`, Definition{
			Current: Spec{Type: "vxlan", Options: json.RawMessage(`{"vni":1}`)},
			Next:    &Spec{Type: "udp", Options: json.RawMessage(`{"port":1}`), Other: true},
		}},
		{"a reversed switch", "host-gw", `{"device":"b","next":{"type":"udp"},"switch":"back"}`, Definition{
			Current:   Spec{Type: "host-gw", Options: json.RawMessage(`{}`), Other: true},
			Next:      &Spec{Type: "udp", Options: json.RawMessage(`{}`)},
			Direction: Back,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse(tt.kind, json.RawMessage(tt.options))
			if err != nil {
				t.Fatal(err)
			}
			if !got.Current.Equal(tt.want.Current) || (got.Next == nil) != (tt.want.Next == nil) || got.Direction != tt.want.Direction {
				t.Fatalf("%+v, want %+v", got, tt.want)
			}
			if got.Next != nil && !got.Next.Equal(*tt.want.Next) {
				t.Errorf("next %+v, want %+v", got.Next, tt.want.Next)
			}
			if back, err := got.Options(); err != nil || string(back) != tt.options {
				t.Errorf("options %s, %v", back, err)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for options, says := range map[string]string{
		`{"device":"c"}`:            `device: is "c"`,
		`{"switch":"back"}`:         `switch: is "back" without a next backend`,
		`{"switch":"up","next":{}}`: `switch: is "up"`,
		`{"next":7}`:                `next: is not a backend`,
		`{"next":{"vni":1}}`:        `next: has no type`,
		`{"next":{"type":"udp"}}`:   `next: must use the other device`,
		`{"sends":"a"}`:             `sends: is no option`,
		`{"next":{"type":"udp","device":"b","next":{"type":"udp"}}}`: `next: has a next backend of its own`,
	} {
		_, err := Parse("vxlan", json.RawMessage(options))
		if option := (&backend.OptionError{}); err == nil || !errors.As(err, &option) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s", options, err, says)
		}
	}
}

// TestDefinitionSwitches checks how a switch changes a definition.
func TestDefinitionSwitches(t *testing.T) {
	one, err := Parse("vxlan", json.RawMessage(`{"vni":1}`))
	if err != nil {
		t.Fatal(err)
	}
	both := one.To("udp", json.RawMessage(`{}`))
	back := both
	back.Direction = Back
	udp := both.Ended(time.Unix(7, 0))
	if both.Target().Type != "udp" || back.Target().Type != "vxlan" || udp.Current.Type != "udp" || !udp.Current.Other || udp.Next != nil || udp.Since.Unix() != 7 || udp.Switches != 1 {
		t.Errorf("%+v, %+v, %+v", both, back, udp)
	}
	// After a reversed rotation, the keys are not due at once again.
	if vxlan := back.Ended(time.Unix(7, 0)); vxlan.Current.Type != "vxlan" || vxlan.Since.Unix() != 7 || vxlan.Switches != 0 {
		t.Errorf("%+v", vxlan)
	}
	if again := udp.To("vxlan", json.RawMessage(`{}`)); again.Next.Other {
		t.Errorf("%+v does not take the first device again", again)
	}
	for _, tt := range []struct {
		from, to Definition
		want     bool
	}{
		{one, both, true},
		{both, one, true},
		{both, udp, true},
		{one, udp, false},
		{udp, both, false},
		{both, back, true},
	} {
		if got := tt.from.Follows(tt.to); got != tt.want {
			t.Errorf("%+v follows %+v: %t", tt.to, tt.from, got)
		}
	}
}

// TestIsOutdated checks from two definitions whether a host has a key from before switches that it has missed.
func TestIsOutdated(t *testing.T) {
	first := Definition{Current: Spec{Type: "wireguard", Options: json.RawMessage(`{"listen_port":1}`)}}
	begun := func(d Definition) Definition { return d.To("wireguard", json.RawMessage(`{"listen_port":2}`)) }
	rotated := func(d Definition) Definition { return begun(d).Ended(time.Unix(7, 0)) }
	reversed := begun(first)
	reversed.Direction = Back
	periodic := first
	periodic.Since, periodic.Current.Options = time.Unix(7, 0), json.RawMessage(`{"listen_port":1,"rotate_keys":"1h"}`)
	twice := rotated(rotated(first))
	for _, tt := range []struct {
		name          string
		from, to      Definition
		current, next bool // what is outdated, if the host still runs it
	}{
		{"the same", twice, twice, false, false},
		{"a time and other options", first, periodic, false, false},
		{"a switch begins", first, begun(first), false, true},
		{"it ends", begun(first), rotated(first), false, false},
		{"one rotation", first, rotated(first), true, false},
		{"two rotations", first, twice, true, false},
		{"two rotations, and a third one begun", first, begun(twice), true, true},
		{"two rotations, and a third one begun, from the middle of the first", begun(first), begun(twice), true, true},
		{"one rotation, and the next one begun", begun(first), begun(rotated(first)), false, true},
		{"three rotations, from the middle of the first", begun(first), rotated(twice), true, false},
		{"a switch that was reversed", begun(first), reversed.Ended(time.Unix(7, 0)), false, false},
		{"set back", twice, first, false, false},
	} {
		if got := tt.from.isOutdated(tt.to, tt.to.Current); got != tt.current {
			t.Errorf("%s: current %t", tt.name, got)
		}
		if tt.to.Next != nil && tt.from.isOutdated(tt.to, *tt.to.Next) != tt.next {
			t.Errorf("%s: next %t", tt.name, !tt.next)
		}
	}
}

// TestEntry checks what a peer's lease says of each backend, also when the peer is ahead or behind.
func TestEntry(t *testing.T) {
	const prepared = `{"mac":"m","next":{"device":"b","key":"k","type":"wireguard"}}`
	vxlan, wireguard := Spec{Type: "vxlan"}, Spec{Type: "wireguard", Other: true}
	for _, tt := range []struct {
		name, kind, attributes string
		instance               Spec
		own, fault             string
		ok                     bool
	}{
		{"before the switch, old", "vxlan", `{"mac":"m"}`, vxlan, `{"mac":"m"}`, "", true},
		{"before the switch, new", "vxlan", `{"mac":"m"}`, wireguard, "", "", false},
		{"prepared, old", "vxlan", prepared, vxlan, `{"mac":"m"}`, "", true},
		{"prepared, new", "vxlan", prepared, wireguard, `{"key":"k"}`, "", true},
		{"after the switch, new", "wireguard", `{"device":"b","key":"k"}`, wireguard, `{"key":"k"}`, "", true},
		{"after the switch, old", "wireguard", `{"device":"b","key":"k"}`, vxlan, "", "", false},
		{"the same backend with the other device", "vxlan", `{"device":"b","mac":"m"}`, vxlan, "", "", false},
		{"it cannot", "vxlan", `{"next":{"device":"b","error":"no TUN","type":"wireguard"}}`, wireguard, `{}`, "no TUN", false},
		{"no object", "vxlan", `"next"`, vxlan, `"next"`, "", false},
	} {
		own, fault, ok := tt.instance.entry(tt.kind, json.RawMessage(tt.attributes))
		if string(own) != tt.own || fault != tt.fault || ok != tt.ok {
			t.Errorf("%s: %s, %q, %t", tt.name, own, fault, ok)
		}
	}
}

// TestIsMoved checks for several leases whether their host still needs the other backend.
func TestIsMoved(t *testing.T) {
	forward := Definition{Current: Spec{Type: "vxlan"}}.To("udp", json.RawMessage(`{}`))
	back, stopped := forward, forward
	back.Direction, stopped.Direction = Back, Stopped
	third := forward.Ended(time.Unix(7, 0)).To("vxlan", json.RawMessage(`{}`)).Ended(time.Unix(8, 0)).To("udp", json.RawMessage(`{}`))
	thirdBack := third
	thirdBack.Direction = Back
	for _, tt := range []struct {
		name       string
		definition Definition
		attributes string
		want       bool
	}{
		{"not prepared", forward, `{}`, false},
		{"prepared", forward, `{"next":{"device":"b","type":"udp"}}`, false},
		{"moved", forward, `{"next":{"device":"b","type":"udp"},"sends":"b"}`, true},
		{"ahead", forward, `{"device":"b","switches":1}`, true},
		{"moved, and reversed since", back, `{"next":{"device":"b","type":"udp"},"sends":"b"}`, false},
		{"moved back", back, `{"next":{"device":"b","type":"udp"},"sends":"a"}`, true},
		{"never prepared, and reversed", back, `{}`, true},
		{"stopped", stopped, `{"next":{"device":"b","type":"udp"},"sends":"b"}`, false},
		{"two switches behind, in the middle of the first", third, `{"next":{"device":"b","type":"udp"},"sends":"b"}`, false},
		{"two switches behind, at the end of the first", third, `{"device":"b","switches":1}`, false},
		{"moved in an earlier switch to another backend, which was reversed", forward, `{"next":{"device":"b","type":"wireguard"},"sends":"b"}`, false},
		{"moved in the third switch", third, `{"next":{"device":"b","type":"udp"},"sends":"b","switches":2}`, true},
		{"after the third switch", third, `{"device":"b","switches":3}`, true},
		{"the third was reversed, two behind", thirdBack, `{}`, false},
		{"the third was reversed, never prepared", thirdBack, `{"switches":2}`, true},
		{"no switch", Definition{Current: forward.Current}, `{"sends":"a"}`, false},
	} {
		if got := tt.definition.IsMoved(json.RawMessage(tt.attributes)); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}
