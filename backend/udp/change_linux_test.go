package udp

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestChange checks that device and socket are kept under another definition: a network with one
// family gains the other, its pool grows, its port changes.
func TestChange(t *testing.T) {
	t.Parallel()
	a, b := newHosts(t, 4)
	grown := prefixes("10.4.0.0/15", "fd00:5::/48")
	for _, h := range []*host{a, b} {
		change := h.backend.overlay.Config
		change.Pools = pools[:1]
		if err := h.backend.Change(change); err != nil {
			t.Fatal(err)
		}
		h.state.Subnets = h.state.Subnets[:1]
		h.state.Peers[0].Subnets = h.state.Peers[0].Subnets[:1]
		h.apply()
	}
	device, socket := a.backend.engine.devices.all[0], a.backend.engine.binds.all[0]
	ping(t, a.container, inner(b.n)[0])

	for _, h := range []*host{a, b} {
		change := h.backend.overlay.Config
		change.Pools = grown
		if err := h.backend.Change(change); err != nil {
			t.Fatal(err)
		}
		h.state.Subnets, h.state.Peers[0] = labPeer(h.outer, h.n).Subnets, labPeer(h.outer, 3-h.n)
		if report := h.apply(); len(report.Skipped) != 0 || report.Peers != 1 {
			t.Errorf("report %+v", report)
		}
	}
	for _, to := range inner(b.n) {
		ping(t, a.container, to)
	}
	mustContain(t, a.dump(), "unreachable 10.4.0.0/15", "unreachable fd00:5::/48")
	if dump := a.dump(); strings.Contains(dump, "unreachable 10.5.0.0/16") {
		t.Errorf("the former pool stays:\n%s", dump)
	}
	if a.backend.engine.devices.all[0] != device || a.backend.engine.binds.all[0] != socket {
		t.Error("device or socket were opened again")
	}

	change := b.backend.overlay.Config
	change.Options = json.RawMessage(`{"port":9000}`)
	if err := b.backend.Change(change); err != nil {
		t.Fatal(err)
	}
	b.apply()
	if b.backend.listen.Port() != 9000 {
		t.Errorf("listens on %s", b.backend.listen)
	}
	a.state.Peers[0].Attributes = json.RawMessage(`{"port":9000}`)
	a.apply()
	ping(t, a.container, inner(b.n)[0])
	change.Options = json.RawMessage(`{"port":0}`)
	if err := b.backend.Change(change); err == nil || b.backend.opts.Port != 9000 {
		t.Errorf("port %d, %v", b.backend.opts.Port, err)
	}
}
