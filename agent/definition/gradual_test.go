package definition

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/switchover"
	"github.com/lenonet/leno/backend/wireguard"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
)

// switchable returns network n with backends as for agenttest.Carriage, whose options have their defaults.
func switchable(t *testing.T, kind, options string) registry.Network {
	t.Helper()
	d, err := carriage.Of(agenttest.Carriage(t, kind, options)).Normalize(backends())
	must(t, err)
	plan, err := registry.Plan{{Prefix: netip.MustParsePrefix("10.5.0.0/16")}}.Normalize()
	must(t, err)
	n, err := carriage.Set(registry.Network{Name: "n", Plan: plan, ModifyIndex: 7}, d)
	must(t, err)
	return n
}

// TestGradual checks which changes become a switch, and what becomes of one that is under way.
func TestGradual(t *testing.T) {
	const toUDP = `{"switch":{"to":{"type":"udp"}}}`
	for _, tt := range []struct {
		name      string
		old       registry.Network
		kind      string
		options   string // of the wanted definition
		lapsed    bool
		deserted  bool   // there is no lease
		want      string // device, direction, current > next
		described []string
	}{
		{name: "the same", old: switchable(t, "vxlan", `{}`), kind: "vxlan", options: `{}`, want: "a vxlan", described: []string{"none"}},
		{name: "the same with the other device", old: switchable(t, "vxlan", `{"epoch":{"number":1}}`), kind: "vxlan", options: `{}`, want: "b vxlan",
			described: []string{"none"}},
		{name: "an option that changes in place", old: switchable(t, "vxlan", `{"epoch":{"number":1}}`), kind: "vxlan", options: `{"direct_routing":true}`, want: "b vxlan",
			described: []string{"update", "c backend.direct_routing false -> true", "h a 10.5.10.0/24 true: keeps 10.5.10.0/24"}},
		{name: "another backend", old: switchable(t, "vxlan", `{}`), kind: "udp", options: `{}`, want: "a vxlan > udp",
			described: []string{"switch", "c backend.checksum_offload auto -> ", "c backend.direct_routing false -> ", "c backend.gbp false -> ",
				"c backend.port 8472 -> 8285", "c backend.type vxlan -> udp", "c backend.vni 1 -> ",
				"h a 10.5.10.0/24 true: keeps 10.5.10.0/24; switches from vxlan to udp: it has both until all hosts send over udp"}},
		{name: "a smaller MTU", old: switchable(t, "host-gw", `{"epoch":{"number":1}}`), kind: "udp", options: `{}`, want: "b host-gw > udp",
			described: []string{"switch", "c backend.port  -> 8285", "c backend.type host-gw -> udp",
				"h a 10.5.10.0/24 true: keeps 10.5.10.0/24; switches from host-gw to udp: it has both until all hosts send over udp; " +
					"its containers' MTU becomes 1422 instead of 1450: those that run keep theirs, and the host tells them what fits"}},
		{name: "another port", old: switchable(t, "udp", `{}`), kind: "udp", options: `{"port":9000}`, want: "a udp > udp",
			described: []string{"switch", "c backend.port 8285 -> 9000",
				"h a 10.5.10.0/24 true: keeps 10.5.10.0/24; switches from udp (udp port 8285) to udp (udp port 9000): it has both until all hosts send over udp (udp port 9000)"}},
		{name: "without a host", old: switchable(t, "vxlan", `{}`), kind: "udp", options: `{}`, deserted: true, want: "a udp",
			described: []string{"update", "c backend.checksum_offload auto -> ", "c backend.direct_routing false -> ", "c backend.gbp false -> ",
				"c backend.port 8472 -> 8285", "c backend.type vxlan -> udp", "c backend.vni 1 -> "}},
		{name: "with a host that is away", old: switchable(t, "vxlan", `{}`), kind: "udp", options: `{}`, lapsed: true, want: "a vxlan > udp",
			described: []string{"switch", "c backend.checksum_offload auto -> ", "c backend.direct_routing false -> ", "c backend.gbp false -> ",
				"c backend.port 8472 -> 8285", "c backend.type vxlan -> udp", "c backend.vni 1 -> ",
				"h a 10.5.10.0/24 false: keeps 10.5.10.0/24; switches from vxlan to udp: it has both until all hosts send over udp; " +
					"is away: the switch waits until it is back, or until its lease expires"}},
		{name: "both need one port", old: switchable(t, "vxlan", `{}`), kind: "vxlan", options: `{"gbp":true}`, want: "a vxlan",
			described: []string{"update", "c backend.gbp false -> true",
				"h a 10.5.10.0/24 true: keeps 10.5.10.0/24; packets stop for a moment: the device is recreated",
				"r hosts have both backends during the switch, and both need vxlan with gbp vni 1 on port 8472"}},
		{name: "under way", old: switchable(t, "vxlan", toUDP), kind: "udp", options: `{}`, want: "a vxlan > udp",
			described: []string{"none", "h a 10.5.10.0/24 true: keeps 10.5.10.0/24; has not prepared udp yet; an agent older than this one cannot"}},
		{name: "reversed", old: switchable(t, "vxlan", toUDP), kind: "vxlan", options: `{}`, want: "a back vxlan > udp",
			described: []string{"switch", "c backend.checksum_offload  -> auto", "c backend.direct_routing  -> false", "c backend.gbp  -> false",
				"c backend.port 8285 -> 8472", "c backend.type udp -> vxlan", "c backend.vni  -> 1",
				"h a 10.5.10.0/24 true: keeps 10.5.10.0/24; sends to all hosts over vxlan"}},
		{name: "continued", old: switchable(t, "vxlan", `{"switch":{"to":{"type":"udp"},"direction":"stopped"}}`), kind: "udp", options: `{}`, want: "a vxlan > udp",
			described: []string{"switch", "h a 10.5.10.0/24 true: keeps 10.5.10.0/24; has not prepared udp yet; an agent older than this one cannot"}},
		{name: "a third backend", old: switchable(t, "vxlan", toUDP), kind: "host-gw", options: `{}`, want: "b host-gw",
			described: []string{"update", "c backend.port 8285 -> ", "c backend.type udp -> host-gw",
				"h a 10.5.10.0/24 true: keeps 10.5.10.0/24; changes from backend vxlan to host-gw: packets stop until its peers have too",
				"r the network is being switched from vxlan to udp, and backend.type or an option is that of neither"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Change{Old: tt.old, New: switchable(t, tt.kind, tt.options), Backends: backends(),
				Leases: []registry.Lease{changed(tt.old, "a", 10, !tt.lapsed)}}
			c.Leases[0].Backend = agenttest.Backend(t, tt.old.Backend.Type, `{}`)
			if tt.deserted {
				c.Leases = nil
			}
			c = c.Gradual()
			if got := definitionText(t, c.New); got != tt.want {
				t.Errorf("becomes %s, want %s", got, tt.want)
			}
			if diff := cmp.Diff(tt.described, describe(c.Plan())); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestUnreadableLeases: a network is switched, and not changed at once, if the only leases are records that cannot be
// read, because their hosts may be sending.
func TestUnreadableLeases(t *testing.T) {
	old := switchable(t, "vxlan", `{}`)
	c := Change{Old: old, New: switchable(t, "udp", `{}`), Backends: backends(),
		BadRecords: []registry.BadRecord{{Key: "leno/leases/n/10.5.1.0-24"}}}.Gradual()
	if got := definitionText(t, c.New); got != "a vxlan > udp" {
		t.Errorf("becomes %s", got)
	}
	if p := c.Plan(); p.Action != api.ActionSwitch || len(p.Refused) > 0 {
		t.Errorf("%+v", p)
	}
}

// TestSharedAddress checks that hosts with one public address keep the backend that tells them apart.
func TestSharedAddress(t *testing.T) {
	for _, tt := range []struct {
		kind, options string
		other         string // the address of the second host
		mapped        int    // 1 if it has a port of its own there
		refused       bool
		why           string
	}{
		{"vxlan", `{}`, "203.0.113.1", 1, true, "underlay.public_ports"},
		{"vxlan", `{}`, "203.0.113.2", 1, true, "underlay.public_ports"}, // for hosts that will come
		{"host-gw", `{}`, "203.0.113.1", 0, true, "as a"},
		{"vxlan", `{}`, "203.0.113.2", 0, false, ""},
		{"wireguard", `{"listen_port":4500}`, "203.0.113.1", 1, false, ""},
	} {
		old := switchable(t, "wireguard", `{}`)
		c := Change{Old: old, New: switchable(t, tt.kind, tt.options), Backends: backends()}
		for i, addr := range []string{"203.0.113.1", tt.other} {
			l := changed(old, string(rune('a'+i)), uint64(10+i), true)
			l.PublicIPs = []netip.Addr{netip.MustParseAddr(addr)}
			l.Backend = agenttest.Backend(t, "wireguard", fmt.Sprintf(`{"listen_port":51820%s}`, strings.Repeat(`,"public_port":51830`, i*tt.mapped)))
			c.Leases = append(c.Leases, l)
		}
		got := strings.Join(describe(c.Gradual().Plan()), "\n")
		want := fmt.Sprintf("R backend %s needs a public address for each host, and others have that of b (%s)", tt.kind, tt.why)
		if strings.Contains(got, want) != tt.refused {
			t.Errorf("%s, %s: refused %t:\n%s", tt.kind, tt.other, !tt.refused, got)
		}
	}
}

// TestFamiliesOfTarget: a switch that could never end is refused, even if it is forced, because a host cannot carry a
// family of the network over the new backend. A backend that the network has already is judged by the families that are
// added.
func TestFamiliesOfTarget(t *testing.T) {
	const (
		noIPv6   = "R backend host-gw needs an IPv6 address between hosts, which a (10.5.10.0/24) has not"
		less     = "R IPv6 needs an MTU of 1280, and backend wireguard leaves less on a (10.5.10.0/24)"
		narrow   = "R IPv6 needs an MTU of 1280, and on a (10.5.10.0/24) it is less"
		toHostGW = `{"switch":{"to":{"type":"host-gw"}}}`
	)
	for _, tt := range []struct {
		name          string
		kind, options string // of the old definition
		dual          bool   // it has IPv6, too
		to, wanted    string // the backend that the operator wants, with its options
		toIPv4        bool   // the new definition has no IPv6
		addrs         string // of the host, "" for IPv4 alone
		mtu           int    // of its lease
		lapsed        bool
		refused       string // if the change is made gradually
		forced        string // if it takes effect at once
	}{
		{name: "IPv6 is added with host-gw", kind: "vxlan", to: "host-gw", mtu: 1450, refused: noIPv6, forced: noIPv6},
		{name: "to host-gw", kind: "vxlan", dual: true, to: "host-gw", mtu: 1450, refused: noIPv6, forced: noIPv6},
		{name: "to host-gw with both addresses", kind: "vxlan", dual: true, to: "host-gw", addrs: "192.0.2.11 2001:db8::11", mtu: 1450},
		{name: "to host-gw with a lapsed lease", kind: "vxlan", dual: true, to: "host-gw", mtu: 1450, lapsed: true},
		{name: "to host-gw without IPv6", kind: "vxlan", to: "host-gw", toIPv4: true, mtu: 1450},
		{name: "within host-gw", kind: "host-gw", dual: true, to: "host-gw", mtu: 1450},
		{name: "from host-gw", kind: "host-gw", dual: true, to: "vxlan", mtu: 1500},
		{name: "IPv6 is added, from host-gw", kind: "host-gw", to: "vxlan", mtu: 1500, refused: noIPv6},
		{name: "IPv6 is added during a switch", kind: "vxlan", options: toHostGW, to: "host-gw", mtu: 1450, refused: noIPv6, forced: noIPv6},
		{name: "a switch that goes on", kind: "vxlan", options: toHostGW, dual: true, to: "host-gw", mtu: 1450},
		{name: "a switch that is reversed", kind: "vxlan", options: toHostGW, dual: true, to: "vxlan", mtu: 1450},
		{name: "too small for wireguard", kind: "vxlan", dual: true, to: "wireguard", mtu: 1289, refused: less, forced: less},
		{name: "just enough for wireguard", kind: "vxlan", dual: true, to: "wireguard", mtu: 1290},
		{name: "IPv6 is added with wireguard", kind: "vxlan", to: "wireguard", mtu: 1289, refused: less, forced: less},
		{name: "too small for wireguard, with a lapsed lease", kind: "vxlan", dual: true, to: "wireguard", mtu: 1289, lapsed: true},
		{name: "IPv4 alone", kind: "vxlan", to: "wireguard", toIPv4: true, mtu: 1289},
		{name: "from wireguard", kind: "wireguard", dual: true, to: "vxlan", mtu: 1280},
		{name: "IPv6 is added, from wireguard", kind: "wireguard", to: "vxlan", mtu: 1275, refused: narrow},
		{name: "within a backend", kind: "vxlan", dual: true, to: "vxlan", wanted: `{"direct_routing":true}`, mtu: 1270},
		{name: "another port", kind: "udp", dual: true, to: "udp", wanted: `{"port":9000}`, mtu: 1270},
		{name: "too small because of the option mtu", kind: "vxlan", options: `{"mtu":1200}`, to: "vxlan", mtu: 1200,
			refused: narrow, forced: narrow},
		{name: "a third backend", kind: "vxlan", options: `{"switch":{"to":{"type":"udp"}}}`, dual: true, to: "wireguard", mtu: 1289,
			refused: less, forced: less},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dual, err := registry.Plan{{Prefix: netip.MustParsePrefix("10.5.0.0/16")}, {Prefix: netip.MustParsePrefix("fd00:5::/48")}}.Normalize()
			must(t, err)
			old, wanted := switchable(t, tt.kind, tt.options), switchable(t, tt.to, tt.wanted)
			if tt.dual {
				old.Plan = dual
			}
			if !tt.toIPv4 {
				wanted.Plan = dual
			}
			l := changed(old, "a", 10, !tt.lapsed)
			l.MTU = tt.mtu
			if tt.addrs != "" {
				l.PublicIPs = nil
				for _, a := range strings.Fields(tt.addrs) {
					l.PublicIPs = append(l.PublicIPs, netip.MustParseAddr(a))
				}
			}
			c := Change{Old: old, New: wanted, Backends: backends(), Leases: []registry.Lease{l}}
			final := func(c Change) string {
				lines := slices.DeleteFunc(describe(c.Plan()), func(line string) bool { return !strings.HasPrefix(line, "R ") })
				return strings.Join(lines, "\n")
			}
			if got := final(c.Gradual()); got != tt.refused {
				t.Errorf("refused: %s, want %s", got, tt.refused)
			}
			if got := final(c.Forced(time.Now())); got != tt.forced {
				t.Errorf("refused if forced: %s, want %s", got, tt.forced)
			}
		})
	}
}

// TestGradualEncryption: encryption is required when the old backend carries nothing any more.
func TestGradualEncryption(t *testing.T) {
	kinds := backends()
	kinds["wireguard"] = wireguard.Type()
	old := switchable(t, "vxlan", `{}`)
	wanted := old
	wanted.Backend = agenttest.Backend(t, "wireguard", `{}`)
	wanted.Encryption = registry.EncryptionRequired
	c := Change{Old: old, New: wanted, Backends: kinds, Leases: []registry.Lease{changed(old, "a", 10, true)}}.Gradual()
	if c.New.Encryption != "" || Intended(c.New).Encryption != registry.EncryptionRequired {
		t.Errorf("%+v", c.New)
	}
	if p := c.Plan(); p.Action != api.ActionSwitch || !slices.Contains(p.Changes, api.Change{Field: "encryption", To: registry.EncryptionRequired}) {
		t.Errorf("%+v", p)
	}
	must(t, CheckEncryption(c.New, kinds))
	ended, err := ChangeSwitch(c.New, api.EndSwitch, time.Now(), nil, kinds)
	if err != nil || ended.Encryption != registry.EncryptionRequired || ended.Backend.Type != "wireguard" {
		t.Errorf("%+v, %v", ended, err)
	}
	must(t, CheckEncryption(ended, kinds))
	back := ended.WithCarriage(agenttest.Carriage(t, "wireguard", `{"epoch":{"number":1},"switch":{"to":{"type":"vxlan"}}}`))
	if err := CheckEncryption(back, kinds); err == nil || !strings.Contains(err.Error(), "backend vxlan does not encrypt") {
		t.Errorf("%v", err)
	}
}

// TestEncryptionDuringSwitch applies definitions to a network that is being switched. Encryption must never be required
// while one of its backends does not encrypt, or no host would carry it, and must be required in the end if the last
// definition says so.
func TestEncryptionDuringSwitch(t *testing.T) {
	kinds := backends()
	kinds["wireguard"] = wireguard.Type()
	type step struct {
		action     string // of the switch, or "" to apply the rest
		backend    string
		options    string
		encryption string
	}
	const required = registry.EncryptionRequired
	plain, encrypted, strict := step{backend: "vxlan"}, step{backend: "wireguard"}, step{backend: "wireguard", encryption: required}
	strictPort := step{backend: "wireguard", options: `{"listen_port":7}`, encryption: required}
	stop, reverse, rotate := step{action: api.StopSwitch}, step{action: api.ReverseSwitch}, step{action: api.RotateKeys}
	for _, tt := range []struct {
		name  string
		steps []step
		now   string // what is required after these steps
		ended string // what is required after the switch
	}{
		{"from the beginning", []step{plain, strict}, "", required},
		{"later", []step{plain, encrypted, strict}, "", required},
		{"applied twice", []step{plain, strict, strict}, "", required},
		{"applied to go on", []step{plain, strict, stop, strict}, "", required},
		{"after a reversal", []step{plain, strict, reverse, strict}, "", required},
		{"withdrawn", []step{plain, strict, encrypted}, "", ""},
		{"reversed", []step{plain, strict, plain}, "", ""},
		{"given up", []step{strict, plain}, "", ""},
		{"given up, and reversed", []step{strict, plain, strict}, "", required},
		{"given up, and reversed by command", []step{strict, plain, reverse}, "", required},
		{"both encrypt", []step{encrypted, strictPort}, required, required},
		{"new keys", []step{strict, rotate, strict}, required, required},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stored registry.Network
			for i, s := range tt.steps {
				if s.action != "" {
					changed, err := ChangeSwitch(stored, s.action, time.Now(), nil, kinds)
					must(t, err)
					stored = changed
					continue
				}
				wanted := registry.Network{Name: "n", Plan: switchable(t, "vxlan", `{}`).Plan, ModifyIndex: 7, Encryption: s.encryption}
				options, err := kinds[s.backend].Normalize(json.RawMessage(s.options))
				must(t, err)
				wanted.Backend = agenttest.Backend(t, s.backend, string(options))
				c := Change{New: wanted, Backends: kinds}
				if i > 0 {
					c.Old, c.Leases = stored, []registry.Lease{changed(stored, "a", 10, true)}
				}
				c = c.Gradual()
				if p := c.Plan(); (len(p.Refused) > 0) != DropsEncryption(stored, wanted) || c.NeedsForce() {
					t.Fatalf("step %d: %+v", i, p.Refused)
				}
				stored = c.New
				must(t, CheckEncryption(stored, kinds))
			}
			if stored.Encryption != tt.now || Intended(stored).Encryption != tt.ended {
				t.Errorf("required now: %q, in the end: %q, want %q and %q", stored.Encryption, Intended(stored).Encryption, tt.now, tt.ended)
			}
			ended, err := ChangeSwitch(stored, api.EndSwitch, time.Now(), nil, kinds)
			must(t, err)
			if ended.Encryption != tt.ended {
				t.Errorf("required after the switch: %q, want %q", ended.Encryption, tt.ended)
			}
			must(t, CheckEncryption(ended, kinds))
		})
	}
}

// TestRotated: how often keys were rotated makes no difference to a block, and is kept when it is applied.
func TestRotated(t *testing.T) {
	kinds := backends()
	kinds["wireguard"] = wireguard.Type()
	block := registry.Network{Name: "n", Plan: switchable(t, "vxlan", `{}`).Plan, ModifyIndex: 7}
	options, err := kinds["wireguard"].Normalize(nil)
	must(t, err)
	block.Backend = agenttest.Backend(t, "wireguard", string(options))
	stored := block
	for round := range 3 {
		stored, err = ChangeSwitch(stored, api.RotateKeys, time.Now(), nil, kinds)
		must(t, err)
		stored, err = ChangeSwitch(stored, api.EndSwitch, time.Now(), nil, kinds)
		must(t, err)
		if differs := DifferencesOfBlock(block, stored, kinds); len(differs) > 0 {
			t.Errorf("after %d rotations: %q", round+1, differs)
		}
		c := Change{Old: stored, New: block, Backends: kinds, Leases: []registry.Lease{changed(stored, "a", 10, true)}}.Gradual()
		if p := c.Plan(); p.Action != api.ActionNone || !c.New.Carriage().Equal(stored.Carriage()) {
			t.Errorf("after %d rotations: %+v", round+1, p)
		}
	}
	other := block
	options, err = kinds["wireguard"].Normalize(json.RawMessage(`{"listen_port":7}`))
	must(t, err)
	other.Backend = agenttest.Backend(t, "wireguard", string(options))
	if differs := DifferencesOfBlock(other, stored, kinds); len(differs) != 1 {
		t.Errorf("%q", differs)
	}
}

// TestRotatedAndChanged changes options of a network whose keys were rotated, from a file that has the options with which
// the network was defined. An option that changes live starts no switch, and the network keeps its ports.
func TestRotatedAndChanged(t *testing.T) {
	kinds := backends()
	for _, tt := range []struct {
		first, wanted string
		rotations     int
		want          string   // the ports that the network listens on, with the ones of a switch, and its rotation_port in the end
		changes       []string // in the plan
		differs       string   // what the block has and the store has not, "" for what was rotated only
	}{
		{`{}`, `{}`, 1, "51821, then 51820", nil, ""},
		{`{}`, `{"mtu":1380}`, 0, "51820, then 0", []string{"mtu"}, "backend.mtu is 1380"},
		{`{}`, `{"mtu":1380}`, 1, "51821, then 51820", []string{"mtu"}, "backend.mtu is 1380"},
		{`{}`, `{"mtu":1380}`, 2, "51820, then 0", []string{"mtu"}, "backend.mtu is 1380"},
		{`{}`, `{"mtu":1380}`, 3, "51821, then 51820", []string{"mtu"}, "backend.mtu is 1380"},
		{`{}`, `{"rotate_keys":"720h","persistent_keepalive":25}`, 1, "51821, then 51820", []string{"persistent_keepalive", "rotate_keys"},
			"backend.rotate_keys is 720h"},
		{`{}`, `{"rotation_port":51821,"mtu":1380}`, 1, "51821, then 51820", []string{"mtu", "rotation_port"}, "backend.mtu is 1380"},
		{`{"listen_port":7,"rotation_port":9}`, `{"listen_port":7,"rotation_port":9,"mtu":1380}`, 1, "9, then 7", []string{"mtu"}, "backend.mtu is 1380"},
		{`{"key_file":"/k"}`, `{"key_file":"/k","mtu":1380}`, 0, "51820, then 0", []string{"mtu"}, "backend.mtu is 1380"},

		// Other ports. The one that the network uses after an odd number of rotations is not among them.
		{`{}`, `{"rotation_port":9}`, 0, "51820, then 9", []string{"rotation_port"}, "backend.rotation_port is 9"},
		{`{}`, `{"rotation_port":9}`, 2, "51820, then 9", []string{"rotation_port"}, "backend.rotation_port is 9"},
		{`{}`, `{"rotation_port":9}`, 1, "51821 > 51820, then 9", []string{"rotation_port"}, "backend.rotation_port is 9"},
		{`{}`, `{"listen_port":7,"mtu":1380}`, 1, "51821 > 7, then 0", []string{"listen_port", "mtu"}, "backend.listen_port is 7"},
		{`{}`, `{"listen_port":51821}`, 0, "51820 > 51821, then 0", []string{"listen_port"}, "backend.listen_port is 51821"},

		// Options on which both ends of a path must agree.
		{`{}`, `{"psk_file":"/p"}`, 1, "51821 > 51820, then 0", []string{"psk_file"}, "backend.psk_file is /p"},
		{`{}`, `{"key_file":"/k"}`, 1, "51821 > 51820, then 0", []string{"key_file"}, "backend.key_file is /k"},
	} {
		t.Run(fmt.Sprintf("%s %d %s", tt.first, tt.rotations, tt.wanted), func(t *testing.T) {
			stored, wanted := switchable(t, "wireguard", tt.first), switchable(t, "wireguard", tt.wanted)
			for range tt.rotations {
				for _, action := range []string{api.RotateKeys, api.EndSwitch} {
					var err error
					stored, err = ChangeSwitch(stored, action, time.Now(), nil, kinds)
					must(t, err)
				}
			}
			change := Change{Old: stored, New: wanted, Backends: kinds, Leases: []registry.Lease{changed(stored, "a", 10, true)}}
			c := change.Gradual()
			if got := portsText(t, c.New); got != tt.want {
				t.Errorf("ports %s, want %s", got, tt.want)
			}
			p := c.Plan()
			var changes []string
			for _, change := range p.Changes {
				changes = append(changes, strings.TrimPrefix(change.Field, "backend."))
			}
			if diff := cmp.Diff(tt.changes, changes); diff != "" || len(p.Refused) > 0 {
				t.Errorf("%+v -want +got:\n%s", p.Refused, diff)
			}
			if strings.Contains(tt.want, ">") != (p.Action == api.ActionSwitch) || (tt.changes == nil) != (p.Action == api.ActionNone) {
				t.Errorf("action %s", p.Action)
			}
			if p.Action != api.ActionSwitch {
				if forced := change.Forced(time.Now()); !forced.New.Carriage().Equal(c.New.Carriage()) {
					t.Errorf("forced: %s, else %s", forced.New.Backend.Object, c.New.Backend.Object)
				}
			}

			differs := DifferencesOfBlock(wanted, stored, kinds)
			if len(differs) != len(tt.changes) || !strings.Contains(strings.Join(differs, ""), tt.differs) {
				t.Errorf("differs: %q, want %s", differs, tt.differs)
			}
			c.Old, c.New = c.New, wanted
			if p := c.Gradual().Plan(); p.Action != api.ActionNone {
				t.Errorf("applied again: %+v", p)
			}
		})
	}
}

// TestLiveDuringSwitch changes options that change live while the network is being switched, and others.
func TestLiveDuringSwitch(t *testing.T) {
	const rotates = `{"rotate_keys":"1h","switch":{"to":{"type":"wireguard","rotate_keys":"1h"},"rotated":true}}`
	for _, tt := range []struct {
		name, kind    string
		old           string // the definition in the store, of the backend kind
		to, wanted    string // the backend and the options that the operator wants
		want          string // the definition after that
		action        string // of the plan
		changed, says string // in the plan: the options, and the reason why it is refused
	}{
		{"keys are no longer rotated", "wireguard", rotates, "wireguard", `{}`,
			`{"switch":{"to":{"type":"wireguard"},"rotated":true}}`,
			api.ActionUpdate, "rotate_keys", ""},
		{"in the second rotation", "wireguard", `{"epoch":{"number":1,"rotated":true},"switch":{"to":{"type":"wireguard"}}}`, "wireguard", `{"mtu":1380,"persistent_keepalive":25}`,
			`{"mtu":1380,"persistent_keepalive":25,"epoch":{"number":1,"rotated":true},"switch":{"to":{"type":"wireguard","mtu":1380,"persistent_keepalive":25}}}`,
			api.ActionUpdate, "mtu persistent_keepalive", ""},
		{"in a rotation that was reversed", "wireguard", `{"switch":{"to":{"type":"wireguard"},"rotated":true,"direction":"back"}}`,
			"wireguard", `{"mtu":1380}`,
			`{"mtu":1380,"switch":{"to":{"type":"wireguard","mtu":1380},"rotated":true,"direction":"back"}}`,
			api.ActionUpdate, "mtu", ""},
		{"nothing, in a rotation that was reversed", "wireguard",
			`{"switch":{"to":{"type":"wireguard"},"rotated":true,"direction":"back"}}`,
			"wireguard", `{"listen_port":51820}`,
			`{"switch":{"to":{"type":"wireguard"},"rotated":true,"direction":"back"}}`,
			api.ActionNone, "", ""},
		{"of the next backend", "vxlan", `{"switch":{"to":{"type":"wireguard"}}}`, "wireguard", `{"rotation_port":9}`,
			`{"switch":{"to":{"type":"wireguard","rotation_port":9}}}`, api.ActionUpdate, "rotation_port", ""},
		{"of the next backend of a switch that was stopped", "vxlan", `{"switch":{"to":{"type":"wireguard"},"direction":"stopped"}}`,
			"wireguard", `{"mtu":1380}`, `{"switch":{"to":{"type":"wireguard","mtu":1380}}}`, api.ActionSwitch, "mtu", ""},
		{"of the next backend of a switch that goes back", "vxlan", `{"switch":{"to":{"type":"vxlan","vni":2,"port":8473},"direction":"back"}}`,
			"vxlan", `{"vni":2,"port":8473,"direct_routing":true}`,
			`{"direct_routing":true,"switch":{"to":{"type":"vxlan","vni":2,"port":8473,"direct_routing":true}}}`,
			api.ActionSwitch, "direct_routing port vni", ""},
		{"of the current backend", "wireguard", `{"epoch":{"number":2,"since":"2026-01-01T00:00:00Z"},"switch":{"to":{"type":"vxlan"}}}`,
			"wireguard", `{"mtu":1380}`, `{"mtu":1380,"epoch":{"number":2,"since":"2026-01-01T00:00:00Z"},"switch":{"to":{"type":"vxlan"},"direction":"back"}}`,
			api.ActionSwitch, "checksum_offload direct_routing gbp key_file listen_port mtu persistent_keepalive port rotation_port type vni", ""},
		{"of the next options", "vxlan", `{"switch":{"to":{"type":"vxlan","vni":2,"port":8473}}}`, "vxlan",
			`{"vni":2,"port":8473,"direct_routing":true}`,
			`{"direct_routing":true,"switch":{"to":{"type":"vxlan","vni":2,"port":8473,"direct_routing":true}}}`,
			api.ActionUpdate, "direct_routing", ""},
		{"of the current options", "vxlan", `{"switch":{"to":{"type":"vxlan","vni":2,"port":8473}}}`, "vxlan", `{"direct_routing":true}`,
			`{"direct_routing":true,"switch":{"to":{"type":"vxlan","vni":2,"port":8473,"direct_routing":true},"direction":"back"}}`,
			api.ActionSwitch, "direct_routing port vni", ""},
		{"the next options, which differ in a live one", "vxlan", `{"switch":{"to":{"type":"vxlan","vni":2,"port":8473,"direct_routing":true}}}`,
			"vxlan", `{"vni":2,"port":8473,"direct_routing":true}`,
			`{"switch":{"to":{"type":"vxlan","vni":2,"port":8473,"direct_routing":true}}}`, api.ActionNone, "", ""},
		{"the port of the next rotation", "wireguard", `{"switch":{"to":{"type":"wireguard","listen_port":7}}}`, "wireguard",
			`{"listen_port":7,"rotation_port":51820,"mtu":1380}`,
			`{"mtu":1380,"switch":{"to":{"type":"wireguard","listen_port":7,"rotation_port":51820,"mtu":1380}}}`,
			api.ActionUpdate, "mtu rotation_port", ""},
		{"an option that the other backend cannot have", "wireguard", `{"key_file":"/k","switch":{"to":{"type":"wireguard","listen_port":7}}}`,
			"wireguard", `{"listen_port":7,"mtu":1380,"persistent_keepalive":25,"rotate_keys":"720h"}`,
			`{"key_file":"/k","mtu":1380,"persistent_keepalive":25,"switch":{"to":{"type":"wireguard","listen_port":7,"mtu":1380,"persistent_keepalive":25,"rotate_keys":"720h"}}}`,
			api.ActionUpdate, "mtu persistent_keepalive rotate_keys", ""},
		{"other options", "vxlan", `{"switch":{"to":{"type":"vxlan","vni":2,"port":8473}}}`, "vxlan", `{"vni":3,"direct_routing":true}`,
			"", api.ActionUpdate, "direct_routing port vni", "that of neither"},
		{"other ports", "wireguard", rotates, "wireguard", `{"listen_port":7}`, "", api.ActionUpdate, "listen_port rotate_keys", "that of neither"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old := switchable(t, tt.kind, tt.old)
			c := Change{Old: old, New: switchable(t, tt.to, tt.wanted), Backends: backends(),
				Leases: []registry.Lease{changed(old, "a", 10, true)}}.Gradual()
			if tt.want != "" {
				if want := switchable(t, tt.kind, tt.want); !c.New.Carriage().Equal(want.Carriage()) {
					t.Errorf("becomes %+v, want %+v", c.New.Carriage(), want.Carriage())
				}
			}
			p := c.Plan()
			var options, refused []string
			for _, change := range p.Changes {
				options = append(options, strings.TrimPrefix(change.Field, "backend."))
			}
			for _, r := range p.Refused {
				refused = append(refused, r.Reason)
			}
			if got := strings.Join(options, " "); got != tt.changed || p.Action != tt.action {
				t.Errorf("%s of %s, want %s of %s", p.Action, got, tt.action, tt.changed)
			}
			if got := strings.Join(refused, " "); !strings.Contains(got, tt.says) || (got == "") != (tt.says == "") {
				t.Errorf("refused: %q, want %q", got, tt.says)
			}
			if c.NeedsForce() != (tt.says != "") {
				t.Errorf("needs force: %t", c.NeedsForce())
			}
		})
	}
}

// TestRotationPortDuringRotation: a definition with the two ports of a rotation leaves its direction as it is, and one
// with another rotation_port has to wait.
func TestRotationPortDuringRotation(t *testing.T) {
	const (
		first  = `{%s"switch":{"to":{"type":"wireguard"%s},"rotated":true%s}}`
		second = `{"epoch":{"number":1,"rotated":true},%s"switch":{"to":{"type":"wireguard"%s}%s}}`
		mtu    = `"mtu":1380`
		wait   = "keys are being rotated between two ports, and another backend."
	)
	for _, tt := range []struct {
		definition string
		wanted     string
		live       string // the live option that both backends get, "" for no change
		forced     string // the definition if the change is forced, "" if it is not refused
	}{
		{first, `{}`, "", ""},
		{first, `{"mtu":1380}`, mtu, ""},
		{first, `{"rotation_port":9}`, "", "a wireguard 51820 9"},
		{first, `{"rotation_port":9,"mtu":1380}`, "", "a wireguard 51820 9"},
		{first, `{"listen_port":7,"rotation_port":51821}`, "", "b wireguard 7 51821"},
		{second, `{}`, "", ""},
		{second, `{"mtu":1380}`, mtu, ""},
		{second, `{"rotation_port":9}`, "", "a wireguard 51820 9"},
	} {
		for _, direction := range []switchover.Direction{switchover.Forward, switchover.Stopped, switchover.Back} {
			t.Run(fmt.Sprintf("%s %s %s", tt.definition, direction, tt.wanted), func(t *testing.T) {
				with := func(option string) registry.Network {
					before, after, turned := "", "", ""
					if option != "" {
						before, after = option+",", ","+option
					}
					if direction != switchover.Forward {
						turned = fmt.Sprintf(`,"direction":%q`, direction)
					}
					return switchable(t, "wireguard", fmt.Sprintf(tt.definition, before, after, turned))
				}
				old := with("")
				c := Change{Old: old, New: switchable(t, "wireguard", tt.wanted), Backends: backends(),
					Leases: []registry.Lease{changed(old, "a", 10, true)}}.Gradual()
				p := c.Plan()
				if tt.forced != "" {
					options := effectiveFields(c.New, c.Backends)
					got := fmt.Sprintf("%s %s %s", definitionText(t, c.New), options["backend.listen_port"], options["backend.rotation_port"])
					if got != tt.forced || !c.NeedsForce() || p.Action == api.ActionSwitch {
						t.Errorf("forced: %s, want %s; needs force %t: %+v", got, tt.forced, c.NeedsForce(), p)
					}
					if len(p.Refused) != 1 || !strings.HasPrefix(p.Refused[0].Reason, wait) || !p.Refused[0].Force {
						t.Errorf("refused: %+v", p.Refused)
					}
					return
				}
				if want := with(tt.live); !c.New.Carriage().Equal(want.Carriage()) || len(p.Refused) > 0 {
					t.Errorf("becomes %+v, want %+v: %+v", c.New.Carriage(), want.Carriage(), p.Refused)
				}
				action := api.ActionNone
				if tt.live != "" {
					action = api.ActionUpdate
				}
				if p.Action != action {
					t.Errorf("%+v", p)
				}
			})
		}
	}
}

// portsText describes the ports of a network with the backend wireguard like "51820 > 51821, then 51820".
func portsText(t *testing.T, n registry.Network) string {
	t.Helper()
	def := carriage.Of(n.Carriage())
	type ports struct {
		Listen int `json:"listen_port"`
		Next   int `json:"rotation_port"`
	}
	var now, target ports
	read := func(spec switchover.Spec, to *ports) {
		must(t, json.Unmarshal(spec.Running(backends()), to))
	}
	read(def.Current, &now)
	read(def.Target(), &target)
	out := fmt.Sprint(now.Listen)
	if def.Next != nil {
		out += fmt.Sprintf(" > %d", target.Listen)
	}
	return fmt.Sprintf("%s, then %d", out, target.Next)
}

// definitionText describes a definition like "b back vxlan > udp": the device of the current backend, and the direction if it is
// not forward.
func definitionText(t *testing.T, n registry.Network) string {
	t.Helper()
	def := carriage.Of(n.Carriage())
	words := []string{"a"}
	if def.Current.IsOnDeviceB() {
		words[0] = "b"
	}
	if def.Direction != switchover.Forward {
		words = append(words, string(def.Direction))
	}
	words = append(words, def.Current.Type)
	if def.Next != nil {
		words = append(words, ">", def.Next.Type)
	}
	return strings.Join(words, " ")
}

// TestForced checks that a change that takes effect at once keeps the device and the keys of a backend that the network
// has already, and gets new ones otherwise. It ends a switch.
func TestForced(t *testing.T) {
	const (
		earlier = "since 2026-01-01 epoch"
		now     = "since 2026-03-01 epoch"
	)
	vxlan := func(epoch int, to, direction string) registry.Network {
		n := switchable(t, "vxlan", fmt.Sprintf(`{"epoch":{"number":%d,"since":"2026-01-01T00:00:00Z"}%s}`, epoch, to))
		if n.Switch != nil {
			n.Switch.Direction = direction
		}
		return n
	}
	const toUDP, toVNI2 = `,"switch":{"to":{"type":"udp"}}`, `,"switch":{"to":{"type":"vxlan","vni":2,"port":8473}}`
	for _, tt := range []struct {
		name          string
		old           registry.Network
		kind, options string // of the wanted definition
		want          string
	}{
		{"an option", vxlan(5, "", ""), "vxlan", `{"vni":3}`, "b vxlan 3 " + earlier + " 5"},
		{"another backend", vxlan(5, "", ""), "udp", `{}`, "b udp " + now + " 7"},
		{"the same", vxlan(5, "", ""), "vxlan", `{}`, "b vxlan 1 " + earlier + " 5"},
		{"the next backend", vxlan(4, toUDP, ""), "udp", `{}`, "b udp " + now + " 5"},
		{"the next backend of a switch that was stopped", vxlan(4, toUDP, "stopped"), "udp", `{}`, "b udp " + now + " 5"},
		{"the next backend of a switch that goes back", vxlan(4, toUDP, "back"), "udp", `{}`, "b udp " + now + " 5"},
		{"the next backend with another option", vxlan(4, toUDP, ""), "udp", `{"port":9000}`, "b udp " + now + " 5"},
		{"the current backend", vxlan(4, toUDP, ""), "vxlan", `{}`, "a vxlan 1 " + earlier + " 4"},
		{"the current backend of a switch that goes back", vxlan(4, toUDP, "back"), "vxlan", `{}`, "a vxlan 1 " + earlier + " 4"},
		{"the current backend with another option", vxlan(4, toUDP, ""), "vxlan", `{"vni":3}`, "a vxlan 3 " + earlier + " 4"},
		{"a third backend", vxlan(4, toUDP, ""), "host-gw", `{}`, "b host-gw " + now + " 7"},
		{"a third backend of a switch that goes back", vxlan(4, toUDP, "back"), "host-gw", `{}`, "a host-gw " + now + " 6"},
		{"the next options", vxlan(4, toVNI2, ""), "vxlan", `{"vni":2,"port":8473}`, "b vxlan 2 " + now + " 5"},
		{"the next options of a switch that goes back", vxlan(4, toVNI2, "back"), "vxlan", `{"vni":2,"port":8473}`, "b vxlan 2 " + now + " 5"},
		{"the current options", vxlan(4, toVNI2, ""), "vxlan", `{}`, "a vxlan 1 " + earlier + " 4"},
		{"other options", vxlan(4, toVNI2, ""), "vxlan", `{"vni":3}`, "b vxlan 3 " + now + " 5"},
		{"other options of a switch that goes back", vxlan(4, toVNI2, "back"), "vxlan", `{"vni":3}`, "a vxlan 3 " + earlier + " 4"},
		{"a backend of others", vxlan(4, toUDP, ""), "alloc", `{}`, "a alloc since 0001-01-01 epoch 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Change{Old: tt.old, New: switchable(t, tt.kind, tt.options), Backends: backends()}
			c = c.Forced(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
			def := carriage.Of(c.New.Carriage())
			var vni string
			if def.Current.Type == "vxlan" {
				vni = " " + effectiveFields(c.New, c.Backends)["backend.vni"]
			}
			if got := fmt.Sprintf("%s%s since %s epoch %d", definitionText(t, c.New), vni, def.Since.Format(time.DateOnly), def.Current.Epoch); got != tt.want {
				t.Errorf("becomes %s, want %s", got, tt.want)
			}
			if p := c.Plan(); p.Action == api.ActionSwitch {
				t.Errorf("%+v", p)
			}
		})
	}
}

// TestNotCarried: a network whose definition contradicts itself, so that no host carries it, is not switched: hosts would
// send unencrypted until the end of the switch. What the operator wants replaces the definition at once.
func TestNotCarried(t *testing.T) {
	const (
		required    = registry.EncryptionRequired
		toWireguard = `{"epoch":{"number":4,"since":"2026-01-01T00:00:00Z"},"switch":{"to":{"type":"wireguard"}}}`
		back        = `{"epoch":{"number":4},"switch":{"to":{"type":"vxlan"},"direction":"back"}}`
	)
	for _, tt := range []struct {
		name          string
		kind, options string // of the old definition, which requires encryption
		to            string // the backend that the operator wants
		encryption    string // likewise
		want          string
		epoch         int
	}{
		{"another backend", "vxlan", `{}`, "wireguard", required, "a wireguard", 2},
		{"no encryption", "vxlan", `{}`, "vxlan", "", "a vxlan", 0},
		{"the next backend of a switch", "vxlan", toWireguard, "wireguard", required, "b wireguard", 5},
		{"the next backend of a switch, without encryption", "vxlan", toWireguard, "wireguard", "", "b wireguard", 5},
		{"the current backend of a switch, without encryption", "vxlan", toWireguard, "vxlan", "", "a vxlan", 4},
		{"the current backend of a switch that goes back", "wireguard", back, "wireguard", required, "a wireguard", 4},
		{"a third backend", "vxlan", `{"switch":{"to":{"type":"udp"}}}`, "wireguard", required, "b wireguard", 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old, wanted := switchable(t, tt.kind, tt.options), switchable(t, tt.to, `{}`)
			old.Encryption, wanted.Encryption = required, tt.encryption
			c := Change{Old: old, New: wanted, Backends: backends(), Leases: []registry.Lease{changed(old, "a", 10, true)}}
			if c.isCarried() {
				t.Fatal("carried")
			}
			c = c.Gradual()
			def := carriage.Of(c.New.Carriage())
			if got := definitionText(t, c.New); got != tt.want || def.Current.Epoch != tt.epoch {
				t.Errorf("becomes %s in epoch %d", got, def.Current.Epoch)
			}
			if c.New.Encryption != tt.encryption || Intended(c.New).Encryption != tt.encryption {
				t.Errorf("encryption %q, in the end %q", c.New.Encryption, Intended(c.New).Encryption)
			}
			must(t, CheckEncryption(c.New, c.Backends))
			p := c.Plan()
			if p.Action != api.ActionUpdate || (len(p.Refused) > 0) != (tt.encryption == "") || c.NeedsForce() || c.IsNone() {
				t.Errorf("needs force %t: %+v", c.NeedsForce(), p)
			}
		})
	}
}

// TestRequiredLater: that encryption is required now, and not only when the switch ends, is a difference.
func TestRequiredLater(t *testing.T) {
	old := switchable(t, "wireguard", `{"switch":{"to":{"type":"wireguard","listen_port":7},"encryption":"required"}}`)
	wanted := switchable(t, "wireguard", `{"listen_port":7}`)
	wanted.Encryption = registry.EncryptionRequired
	c := Change{Old: old, New: wanted, Backends: backends(), Leases: []registry.Lease{changed(old, "a", 10, true)}}.Gradual()
	if p := c.Plan(); c.New.Encryption != registry.EncryptionRequired || c.IsNone() || p.Action != api.ActionUpdate {
		t.Errorf("encryption %q: %+v", c.New.Encryption, p)
	}
	c.Old, c.New = c.New, wanted
	if c := c.Gradual(); !c.IsNone() {
		t.Errorf("applied again: %+v", c.Plan())
	}
}

// TestTurn checks the actions on a switch, and that each is refused where it makes no sense.
func TestTurn(t *testing.T) {
	kinds := backends()
	one, both := switchable(t, "vxlan", `{}`), switchable(t, "vxlan", `{"switch":{"to":{"type":"udp"}}}`)
	stopped := switchable(t, "vxlan", `{"switch":{"to":{"type":"udp"},"direction":"stopped"}}`)
	for _, tt := range []struct {
		action string
		on     registry.Network
		want   string // or the error
	}{
		{api.StopSwitch, both, "a stopped vxlan > udp"},
		{api.ReverseSwitch, both, "a back vxlan > udp"},
		{api.ContinueSwitch, stopped, "a vxlan > udp"},
		{api.EndSwitch, both, "b udp"},
		{api.EndSwitch, stopped, "it is stopped: continue or reverse it first"},
		{api.StopSwitch, one, "network n is not being switched"},
		{api.RotateKeys, one, `backend "vxlan" has no keys`},
		{api.RotateKeys, both, "keys are rotated after that"},
		{"turn", both, `action "turn"`},
	} {
		got, err := ChangeSwitch(tt.on, tt.action, time.Now(), nil, kinds)
		switch {
		case err != nil && !strings.Contains(err.Error(), tt.want):
			t.Errorf("%s: %v, want %s", tt.action, err, tt.want)
		case err != nil && errors.Is(err, ErrSwitch) == errors.Is(err, registry.ErrInvalid):
			t.Errorf("%s: %v wraps neither or both", tt.action, err)
		case err == nil && definitionText(t, got) != tt.want:
			t.Errorf("%s: %s, want %s", tt.action, definitionText(t, got), tt.want)
		}
	}
}

// TestProgress counts the hosts that have moved.
func TestProgress(t *testing.T) {
	n := switchable(t, "vxlan", `{"switch":{"to":{"type":"udp"}}}`)
	leases := []registry.Lease{changed(n, "a", 10, true), changed(n, "b", 11, true), changed(n, "c", 12, false), changed(n, "d", 13, true)}
	for i, attributes := range []string{`{"next":{"type":"udp"},"sends":"b"}`, `{"next":{"type":"udp"}}`, `{}`,
		`{"next":{"error":"no TUN","type":"udp"}}`} {
		leases[i].Backend = agenttest.Backend(t, "vxlan", attributes)
	}
	got := Progress(n, leases, backends())
	var hosts []string
	for _, h := range got.Hosts {
		hosts = append(hosts, fmt.Sprint(h.Node, " ", h.What))
	}
	want := []string{"a [sends to all hosts over udp]", "b [receives over udp]", "c [has not prepared udp: it is away]", "d [cannot use udp: no TUN]"}
	if got.From != "vxlan" || got.To != "udp" || got.Direction != api.SwitchForward || got.Moved != 1 || !slices.Equal(hosts, want) {
		t.Errorf("%+v", got)
	}
	if got := Progress(switchable(t, "udp", `{}`), leases, backends()); got.From != "udp" || got.To != "" || got.Hosts == nil {
		t.Errorf("%+v", got)
	}
}

// effectiveFields returns the values of a definition with the defaults of its backend.
func effectiveFields(n registry.Network, kinds map[string]backend.Type) map[string]string {
	n.Backend = WithDefaults(n.Backend, kinds)
	return n.Fields()
}
