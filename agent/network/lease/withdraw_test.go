package lease

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

func TestIsAnothers(t *testing.T) {
	here, there := []netip.Addr{netip.MustParseAddr("192.0.2.97")}, []netip.Addr{netip.MustParseAddr("192.0.2.98")}
	for _, tt := range []struct {
		name   string
		change func(record *registry.Lease, c *registry.Claim)
		want   bool
	}{
		{"held by another host", func(*registry.Lease, *registry.Claim) {}, true},
		{"remembered only", func(_ *registry.Lease, c *registry.Claim) {
			c.Running, c.RecentUse, c.Since = false, true, 0
		}, true},
		{"in a network that was created again", func(_ *registry.Lease, c *registry.Claim) { c.Since = 0 }, true},
		{"lapsed", func(l *registry.Lease, _ *registry.Claim) { l.Session = "" }, false},
		{"under this host's session", func(l *registry.Lease, _ *registry.Claim) { l.Session = "sa" }, false},
		{"with this host's node id", func(l *registry.Lease, _ *registry.Claim) { l.NodeID = "id-a" }, false},
		{"from this host's address", func(l *registry.Lease, _ *registry.Claim) { l.PublicIPs = here }, false},
		{"older than this host's record", func(l *registry.Lease, _ *registry.Claim) { l.ModifyIndex = 6 }, false},
		{"wanted, never had", func(_ *registry.Lease, c *registry.Claim) { c.Running, c.Since = false, 0 }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			record := registry.Lease{
				Node: "b", NodeID: "id-b", PublicIPs: there, Session: "sb", ModifyIndex: 8, Backend: vxlan(),
			}
			claim := registry.Claim{
				Node: "a", NodeID: "id-a", PublicIPs: here, Session: "sa", Since: 7, Running: true, Backend: vxlan(),
			}
			tt.change(&record, &claim)
			if got := isAnothers(record, claim); got != tt.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

// TestSupersededAfterARestore: a record that came back with the store does not supersede a running host until its host
// had the time to give it up. Then it does, although no other subnet is free.
func TestSupersededAfterARestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		b := a.rival("b", netip.MustParsePrefix("10.5.1.0/24"))
		a.rival("c", netip.MustParsePrefix("10.5.2.0/24"))
		a.rival("d", netip.MustParsePrefix("10.5.3.0/24"))
		backup := a.store.Backup()
		a.store.Delete(leaseKey(b.Subnet()))
		a.start().held()
		subnet := a.subnet()
		a.store.Restore(backup)
		a.check(health.Lease, api.Warning, `"b"`, "waiting until")
		if s := a.keeper.Status(); s.State != Lost || s.Lease.Subnet() != subnet {
			t.Errorf("%+v", s)
		}
		began := time.Now()
		a.check(health.Lease, api.Critical, subnet.String(), `"b"`, "network is full")
		if took, patience := time.Since(began), a.options.Settings.TTL*5/2; took < patience-time.Second {
			t.Errorf("withdrawn after %s, want %s", took, patience)
		}
		if s := a.keeper.Status(); s.State != Withdrawn || s.Lease.Subnet().IsValid() {
			t.Errorf("%+v", s)
		}
		want := "taken " + subnet.String() + " lost " + subnet.String() + " superseded " + subnet.String()
		if got := strings.Join(a.changes(), " "); got != want {
			t.Errorf("events %q", got)
		}
		a.store.EndSession(b.Session)
		must(t, a.store.Client().Revoke(t.Context(), "n", subnet))
		a.held()
		if s := a.keeper.Status(); s.State != Held || s.Lease.Subnet() != subnet {
			t.Errorf("%+v", s)
		}
	})
}

// TestSupersededByAnOlderRecord: a store that assigns subnets refuses this host's to it. The record of the host that
// has the subnet counts, although it is older than this host's own.
func TestSupersededByAnOlderRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		b := a.rival("b", netip.MustParsePrefix("10.5.1.0/24"))
		a.rival("c", netip.MustParsePrefix("10.5.2.0/24")) // no other subnet is free for a
		a.rival("d", netip.MustParsePrefix("10.5.3.0/24"))
		backup := a.store.Backup()
		a.store.Delete(leaseKey(b.Subnet()))
		a.start().held()
		subnet := a.subnet()
		a.registry.SetOne("Acquire", registry.ErrHeld)
		a.store.Restore(backup)
		a.check(health.Lease, api.Critical, subnet.String(), `"b"`, "withdrawn", registry.ErrHeld.Error())
		if s := a.keeper.Status(); s.State != Withdrawn || s.Lease.Subnet().IsValid() {
			t.Errorf("%+v", s)
		}
	})
}
