package switchover

import (
	"encoding/json"
	"testing"
	"time"
)

// definition returns the definition of a network with a backend. text is JSON with the backend's options, and with members
// "epoch" and "since" and, during a switch, "next" and "direction".
func definition(t *testing.T, kind, text string) (d Definition) {
	t.Helper()
	take := func(text json.RawMessage, members map[string]any) json.RawMessage {
		t.Helper()
		var all map[string]json.RawMessage
		if err := json.Unmarshal(text, &all); err != nil {
			t.Fatal(err)
		}
		for name, to := range members {
			if value, ok := all[name]; ok {
				if err := json.Unmarshal(value, to); err != nil {
					t.Fatal(err)
				}
				delete(all, name)
			}
		}
		own, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		return own
	}
	var next json.RawMessage
	d.Current.Type = kind
	d.Current.Options = take(json.RawMessage(text), map[string]any{"epoch": &d.Current.Epoch, "since": &d.Since, "direction": &d.Direction, "next": &next})
	if next != nil {
		d.Next = &Spec{Epoch: d.Current.Epoch + 1}
		d.Next.Options = take(next, map[string]any{"type": &d.Next.Type})
	}
	return d
}

// TestDefinitionSwitches checks how a switch changes a definition.
func TestDefinitionSwitches(t *testing.T) {
	one := definition(t, "vxlan", `{"vni":1}`)
	both := one.To("udp", json.RawMessage(`{}`))
	back := both
	back.Direction = Back
	udp := both.Ended(time.Unix(7, 0))
	if both.Target().Type != "udp" || back.Target().Type != "vxlan" || udp.Current.Type != "udp" || !udp.Current.IsOnDeviceB() || udp.Next != nil || udp.Since.Unix() != 7 || udp.Current.Epoch != 1 {
		t.Errorf("%+v, %+v, %+v", both, back, udp)
	}
	// After a reversed rotation, the keys are not due at once again.
	if vxlan := back.Ended(time.Unix(7, 0)); vxlan.Current.Type != "vxlan" || vxlan.Since.Unix() != 7 || vxlan.Current.Epoch != 0 {
		t.Errorf("%+v", vxlan)
	}
	if again := udp.To("vxlan", json.RawMessage(`{}`)); again.Next.IsOnDeviceB() {
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
	begun := func(d Definition) Definition { return d.ToNewKeys() }
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
	const prepared = `{"mac":"m","next":{"key":"k","type":"wireguard"}}`
	vxlan, wireguard := Spec{Type: "vxlan"}, Spec{Type: "wireguard", Epoch: 1}
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
		{"after the switch, new", "wireguard", `{"epoch":1,"key":"k"}`, wireguard, `{"key":"k"}`, "", true},
		{"after the switch, old", "wireguard", `{"epoch":1,"key":"k"}`, vxlan, "", "", false},
		{"the same backend with the other device", "vxlan", `{"epoch":1,"mac":"m"}`, vxlan, "", "", false},
		{"it cannot", "vxlan", `{"next":{"error":"no TUN","type":"wireguard"}}`, wireguard, `{}`, "no TUN", false},
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
		{"prepared", forward, `{"next":{"type":"udp"}}`, false},
		{"moved", forward, `{"next":{"type":"udp"},"sends":"b"}`, true},
		{"ahead", forward, `{"epoch":1}`, true},
		{"moved, and reversed since", back, `{"next":{"type":"udp"},"sends":"b"}`, false},
		{"moved back", back, `{"next":{"type":"udp"},"sends":"a"}`, true},
		{"never prepared, and reversed", back, `{}`, true},
		{"stopped", stopped, `{"next":{"type":"udp"},"sends":"b"}`, false},
		{"two switches behind, in the middle of the first", third, `{"next":{"type":"udp"},"sends":"b"}`, false},
		{"two switches behind, at the end of the first", third, `{"epoch":1}`, false},
		{"moved in an earlier switch to another backend, which was reversed", forward, `{"next":{"type":"wireguard"},"sends":"b"}`, false},
		{"moved in the third switch", third, `{"next":{"type":"udp"},"sends":"b","epoch":2}`, true},
		{"after the third switch", third, `{"epoch":3}`, true},
		{"the third was reversed, two behind", thirdBack, `{}`, false},
		{"the third was reversed, never prepared", thirdBack, `{"epoch":2}`, true},
		{"no switch", Definition{Current: forward.Current}, `{"sends":"a"}`, false},
	} {
		if got := tt.definition.IsMoved(json.RawMessage(tt.attributes)); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}
