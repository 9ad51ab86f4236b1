package registry_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/internal/testkit/seed"
	"github.com/lenonet/leno/registry"
)

// smallNetwork returns a network with slots 1 to 7.
func smallNetwork(t testing.TB) registry.Network {
	return registry.Network{Name: "default", Plan: mustPlan(t, pool("10.7.0.0/21", 24))}
}

func addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }

// held returns a lease of host i (node host-i, id id-i, address 192.0.2.i, session session-i) on slot; lapsedFor
// returns the same lease lapsed.
func held(n registry.Network, slot uint64, i int) registry.Lease {
	return registry.Lease{Network: n.Name, Slot: slot, Subnets: n.Plan.Subnets(slot), Node: fmt.Sprintf("host-%d", i),
		NodeID: fmt.Sprintf("id-%d", i), PublicIPs: []netip.Addr{addr(i)}, MTU: 1450,
		Session: fmt.Sprintf("session-%d", i), CreateIndex: slot, ModifyIndex: slot}
}

func lapsedFor(n registry.Network, slot uint64, i int, d time.Duration) registry.Lease {
	l := held(n, slot, i)
	l.Session, l.Lapsed = "", d
	return l
}

func claimOf(i int) registry.Claim {
	return registry.Claim{Node: fmt.Sprintf("host-%d", i), NodeID: fmt.Sprintf("id-%d", i), PublicIPs: []netip.Addr{addr(i)}, Hold: time.Hour}
}

func reservation(n registry.Network, slot uint64, node, id string) registry.Reservation {
	return registry.Reservation{Network: n.Name, Slot: slot, Subnet: n.Plan.Subnets(slot)[0], Node: node, NodeID: id}
}

func TestChoose(t *testing.T) {
	n := smallNetwork(t)
	subnet := func(slot uint64) netip.Prefix { return n.Plan.Subnets(slot)[0] }
	bad := func(prefix string) registry.BadSlot { return registry.BadSlot{Prefix: netip.MustParsePrefix(prefix)} }
	type leases = []registry.Lease
	everyone := func(but ...uint64) (out leases) { // holds every slot except these
		for slot := uint64(1); slot <= 7; slot++ {
			if !slices.Contains(but, slot) {
				out = append(out, held(n, slot, int(slot)+100))
			}
		}
		return out
	}
	for _, tt := range []struct {
		name  string
		give  registry.Situation
		claim func(*registry.Claim)
		rnd   uint64
		want  uint64
		takes int // the host whose record is replaced, 0 for none
		own   bool
	}{
		{name: "first free", want: 1},
		{name: "spread over the free slots", rnd: 4, want: 5},
		{name: "spread over what is left", give: registry.Situation{Leases: leases{held(n, 1, 1), held(n, 3, 3)}}, rnd: 2, want: 5},
		{name: "last free", give: registry.Situation{Leases: everyone(7)}, want: 7},
		{name: "records out of range take nothing", give: registry.Situation{Leases: leases{held(n, 0, 1)}}, rnd: 6, want: 7},

		{name: "own, held", give: registry.Situation{Leases: leases{held(n, 1, 1), held(n, 4, 9)}}, want: 4, takes: 9, own: true},
		{name: "own, lapsed", give: registry.Situation{Leases: leases{lapsedFor(n, 4, 9, 0)}}, want: 4, takes: 9, own: true},
		{name: "own, lapsed past hold", give: registry.Situation{Leases: leases{lapsedFor(n, 4, 9, 99*time.Hour)}}, want: 4, takes: 9, own: true},
		{name: "own, out of range", give: registry.Situation{Leases: leases{held(n, 0, 9)}}, want: 0, takes: 9, own: true},
		{name: "own before its reservation", give: registry.Situation{Leases: leases{held(n, 4, 9)},
			Reservations: []registry.Reservation{reservation(n, 5, "host-9", "")}}, want: 4, takes: 9, own: true},
		{name: "own before another's reservation", give: registry.Situation{Leases: leases{lapsedFor(n, 4, 9, 0)},
			Reservations: []registry.Reservation{reservation(n, 4, "host-1", "")}}, want: 4, takes: 9, own: true},
		{name: "own before what it prefers", give: registry.Situation{Leases: leases{held(n, 4, 9)}},
			claim: func(c *registry.Claim) { c.Prefer = subnet(2) }, want: 4, takes: 9, own: true},
		{name: "own by name when lapsed", give: registry.Situation{Leases: leases{lapsedFor(n, 4, 9, 0)}},
			claim: func(c *registry.Claim) { c.NodeID, c.PublicIPs = "new", []netip.Addr{addr(1)} }, want: 4, takes: 9, own: true},
		{name: "own by name and session", give: registry.Situation{Leases: leases{held(n, 4, 9)}},
			claim: func(c *registry.Claim) {
				c.NodeID, c.PublicIPs, c.Session = "new", []netip.Addr{addr(1)}, "session-9"
			}, want: 4, takes: 9, own: true},
		{name: "own by name and address", give: registry.Situation{Leases: leases{held(n, 4, 9)}},
			claim: func(c *registry.Claim) { c.NodeID = "new" }, want: 4, takes: 9, own: true},
		{name: "own under a new address, running", give: registry.Situation{Leases: leases{held(n, 4, 9)}},
			claim: func(c *registry.Claim) { c.PublicIPs, c.Running, c.Since = []netip.Addr{addr(1)}, true, 4 }, want: 4, takes: 9, own: true},
		{name: "own under a new address, older than what it remembers", give: registry.Situation{Leases: leases{held(n, 4, 9)}},
			claim: func(c *registry.Claim) { c.PublicIPs, c.Since = []netip.Addr{addr(1)}, 5 }, want: 4, takes: 9, own: true},
		{name: "own under a new address, lapsed", give: registry.Situation{Leases: leases{lapsedFor(n, 4, 9, 0)}},
			claim: func(c *registry.Claim) { c.PublicIPs = []netip.Addr{addr(1)} }, want: 4, takes: 9, own: true},
		{name: "own under one more address", give: registry.Situation{Leases: leases{held(n, 4, 9)}},
			claim: func(c *registry.Claim) { c.Node, c.PublicIPs = "renamed", []netip.Addr{addr(1), addr(9)} }, want: 4, takes: 9, own: true},
		{name: "own under a new name", give: registry.Situation{Leases: leases{held(n, 4, 9)}},
			claim: func(c *registry.Claim) { c.Node = "renamed" }, want: 4, takes: 9, own: true},
		{name: "own, held before lapsed", give: registry.Situation{Leases: leases{lapsedFor(n, 3, 9, 0), held(n, 4, 9)}},
			claim: func(c *registry.Claim) { c.Prefer = subnet(3) }, want: 4, takes: 9, own: true},
		{name: "own, node id before name", give: registry.Situation{Leases: leases{func() registry.Lease {
			l := lapsedFor(n, 3, 8, 0)
			l.Node = "host-9"
			return l
		}(), lapsedFor(n, 4, 9, 0)}}, want: 4, takes: 9, own: true},
		{name: "own, the preferred of two", give: registry.Situation{Leases: leases{lapsedFor(n, 3, 9, 0), lapsedFor(n, 4, 9, 0)}},
			claim: func(c *registry.Claim) { c.Prefer = subnet(4) }, want: 4, takes: 9, own: true},
		{name: "own beside a bad record that covers it", give: registry.Situation{Leases: leases{held(n, 4, 9)},
			Bad: []registry.BadSlot{bad("10.7.4.0/23")}}, want: 4, takes: 9, own: true},
		{name: "reserved by name", give: registry.Situation{Reservations: []registry.Reservation{reservation(n, 5, "host-9", "")}},
			claim: func(c *registry.Claim) { c.Prefer = subnet(2) }, want: 5},
		{name: "reserved by node id", give: registry.Situation{Reservations: []registry.Reservation{
			reservation(n, 5, "", "id-9"), reservation(n, 6, "id-9", "")}}, want: 5},
		{name: "reserved, out of range", give: registry.Situation{Reservations: []registry.Reservation{reservation(n, 0, "host-9", "")}}, want: 0},
		{name: "reserved, lapsed by another within hold", give: registry.Situation{Leases: leases{lapsedFor(n, 5, 1, 0)},
			Reservations: []registry.Reservation{reservation(n, 5, "host-9", "")}}, want: 5, takes: 1},
		{name: "reserved, held by another", give: registry.Situation{Leases: leases{held(n, 5, 1)},
			Reservations: []registry.Reservation{reservation(n, 5, "host-9", "")}}, want: 1},
		{name: "reserved, under a bad record", give: registry.Situation{Bad: []registry.BadSlot{bad("10.7.5.0/24")},
			Reservations: []registry.Reservation{reservation(n, 5, "host-9", "")}}, want: 1},
		{name: "the free one of two reserved", give: registry.Situation{Leases: leases{held(n, 5, 1)},
			Reservations: []registry.Reservation{reservation(n, 5, "host-9", ""), reservation(n, 6, "", "id-9")}}, want: 6},

		{name: "preferred", claim: func(c *registry.Claim) { c.Prefer = subnet(6) }, want: 6},
		{name: "preferred, held", give: registry.Situation{Leases: leases{held(n, 6, 1)}},
			claim: func(c *registry.Claim) { c.Prefer = subnet(6) }, want: 1},
		{name: "preferred, lapsed by another past hold", give: registry.Situation{Leases: leases{lapsedFor(n, 6, 1, 2*time.Hour)}},
			claim: func(c *registry.Claim) { c.Prefer = subnet(6) }, want: 1},
		{name: "preferred, reserved for another", give: registry.Situation{Reservations: []registry.Reservation{reservation(n, 6, "host-1", "")}},
			claim: func(c *registry.Claim) { c.Prefer = subnet(6) }, want: 1},
		{name: "preferred, under a bad record", give: registry.Situation{Bad: []registry.BadSlot{bad("10.7.6.0/25")}},
			claim: func(c *registry.Claim) { c.Prefer = subnet(6) }, want: 1},
		{name: "preferred, out of range", claim: func(c *registry.Claim) { c.Prefer = subnet(0) }, want: 1},
		{name: "preferred, of another network", claim: func(c *registry.Claim) { c.Prefer = netip.MustParsePrefix("10.9.2.0/24") }, want: 1},
		{name: "preferred, of another length", claim: func(c *registry.Claim) { c.Prefer = netip.MustParsePrefix("10.7.2.0/25") }, want: 1},

		{name: "free slots beside leases, reservations and bad records", give: registry.Situation{Leases: leases{held(n, 1, 1), lapsedFor(n, 2, 2, 2*time.Hour)},
			Reservations: []registry.Reservation{reservation(n, 3, "host-1", "")}, Bad: []registry.BadSlot{bad("10.7.4.0/23")}}, rnd: 1, want: 7},
		{name: "bad records of all sizes", give: registry.Situation{Bad: []registry.BadSlot{bad("10.7.0.0/22"), bad("10.7.1.0/24"),
			bad("10.7.4.9/32"), bad("10.7.4.0/25"), bad("10.9.0.0/16")}}, rnd: 2, want: 7},
		{name: "lapsed longest", give: registry.Situation{Leases: append(everyone(2, 3, 4), lapsedFor(n, 2, 2, 2*time.Hour),
			lapsedFor(n, 3, 3, 3*time.Hour), lapsedFor(n, 4, 4, time.Hour))}, want: 3, takes: 3},
		{name: "lapsed for exactly hold", give: registry.Situation{Leases: append(everyone(2), lapsedFor(n, 2, 2, time.Hour))}, want: 2, takes: 2},
		{name: "lapsed as long, the older record", give: registry.Situation{Leases: append(everyone(2, 3), lapsedFor(n, 3, 3, 2*time.Hour),
			lapsedFor(n, 2, 2, 2*time.Hour))}, want: 2, takes: 2},
		{name: "lapsed, but reserved, out of range or under a bad record", give: registry.Situation{
			Leases: append(everyone(2, 3, 4), lapsedFor(n, 0, 1, 9*time.Hour), lapsedFor(n, 2, 2, 9*time.Hour),
				lapsedFor(n, 3, 3, 9*time.Hour), lapsedFor(n, 4, 4, 2*time.Hour)),
			Reservations: []registry.Reservation{reservation(n, 2, "host-2", "")},
			Bad:          []registry.BadSlot{bad("10.7.3.128/25")}}, want: 4, takes: 4},

		{name: "running, back in a store that was set back", give: registry.Situation{Leases: leases{held(n, 2, 9)}},
			claim: func(c *registry.Claim) { c.Prefer, c.Running = subnet(5), true }, want: 5},
		{name: "the same, not running", give: registry.Situation{Leases: leases{held(n, 2, 9)}},
			claim: func(c *registry.Claim) { c.Prefer = subnet(5) }, want: 2, takes: 9, own: true},
		{name: "running, its slot taken by now", give: registry.Situation{Leases: leases{held(n, 5, 1), lapsedFor(n, 2, 9, time.Hour)}},
			claim: func(c *registry.Claim) { c.Prefer, c.Running = subnet(5), true }, want: 2, takes: 9, own: true},
		{name: "running, its record is there", give: registry.Situation{Leases: leases{lapsedFor(n, 5, 9, time.Hour)}},
			claim: func(c *registry.Claim) { c.Prefer, c.Running = subnet(5), true }, want: 5, takes: 9, own: true},
		{name: "running, but another slot is kept for it", give: registry.Situation{Reservations: []registry.Reservation{reservation(n, 4, "host-9", "")}},
			claim: func(c *registry.Claim) { c.Prefer, c.Running = subnet(5), true }, want: 4},
		{name: "running, its slot is kept for another", give: registry.Situation{Reservations: []registry.Reservation{reservation(n, 5, "host-1", "")}},
			claim: func(c *registry.Claim) { c.Prefer, c.Running = subnet(5), true }, want: 1},

		{name: "running, its slot is kept for it", give: registry.Situation{Leases: leases{held(n, 2, 9)},
			Reservations: []registry.Reservation{reservation(n, 5, "host-9", ""), reservation(n, 4, "", "id-9")}},
			claim: func(c *registry.Claim) { c.Prefer, c.Running = subnet(5), true }, want: 5},

		{name: "revoked, running", claim: func(c *registry.Claim) { c.Prefer, c.Running, c.Avoid = subnet(5), true, subnet(5) }, rnd: 4, want: 6},
		{name: "revoked, preferred", claim: func(c *registry.Claim) { c.Prefer, c.Avoid = subnet(1), subnet(1) }, want: 2},
		{name: "revoked, but another is preferred", claim: func(c *registry.Claim) { c.Prefer, c.Avoid = subnet(6), subnet(1) }, want: 6},
		{name: "revoked, its own record lapsed", give: registry.Situation{Leases: leases{lapsedFor(n, 5, 9, 0)}},
			claim: func(c *registry.Claim) { c.Prefer, c.Avoid = subnet(5), subnet(5) }, want: 1},
		{name: "revoked, its own record held", give: registry.Situation{Leases: leases{held(n, 5, 9)}},
			claim: func(c *registry.Claim) { c.Running, c.Prefer, c.Avoid = true, subnet(5), subnet(5) }, want: 1},
		{name: "revoked, another own record", give: registry.Situation{Leases: leases{held(n, 5, 9), lapsedFor(n, 6, 9, 0)}},
			claim: func(c *registry.Claim) { c.Avoid = subnet(5) }, want: 6, takes: 9, own: true},
		{name: "revoked, overwritten under its lock", give: registry.Situation{Bad: []registry.BadSlot{{Prefix: subnet(5), Session: "session-9", ModifyIndex: 77}}},
			claim: func(c *registry.Claim) { c.Session, c.Avoid = "session-9", subnet(5) }, want: 1},
		{name: "revoked, another's reservation", give: registry.Situation{Reservations: []registry.Reservation{reservation(n, 1, "host-9", "")}},
			claim: func(c *registry.Claim) { c.Avoid, c.Prefer = subnet(5), subnet(5) }, want: 1},
		{name: "revoked, but kept for it", give: registry.Situation{Reservations: []registry.Reservation{reservation(n, 5, "host-9", "")}},
			claim: func(c *registry.Claim) { c.Avoid = subnet(5) }, want: 5},
		{name: "revoked, but kept for it, its record lapsed", give: registry.Situation{Leases: leases{lapsedFor(n, 5, 9, 0)},
			Reservations: []registry.Reservation{reservation(n, 5, "host-9", "")}},
			claim: func(c *registry.Claim) { c.Avoid = subnet(5) }, want: 5, takes: 9, own: true},
		{name: "revoked, but kept for it, running", give: registry.Situation{Reservations: []registry.Reservation{reservation(n, 5, "", "id-9")}},
			claim: func(c *registry.Claim) { c.Running, c.Prefer, c.Avoid = true, subnet(5), subnet(5) }, want: 5},
		{name: "revoked, others lapsed past hold", give: registry.Situation{Leases: append(everyone(2, 5), lapsedFor(n, 2, 2, time.Hour))},
			claim: func(c *registry.Claim) { c.Avoid = subnet(5) }, want: 2, takes: 2},
		{name: "revoked, the only one lapsed past hold", give: registry.Situation{Leases: append(everyone(5), lapsedFor(n, 5, 2, time.Hour))},
			claim: func(c *registry.Claim) { c.Avoid = subnet(5) }, want: 5, takes: 2},
		{name: "revoked, nothing else free", give: registry.Situation{Leases: append(everyone(2, 5), lapsedFor(n, 2, 2, time.Hour-1))},
			claim: func(c *registry.Claim) { c.Avoid = subnet(5) }, want: 5},
		{name: "revoked, nothing else free, its own record", give: registry.Situation{Leases: append(everyone(5), held(n, 5, 9))},
			claim: func(c *registry.Claim) { c.Avoid = subnet(5) }, want: 5, takes: 9, own: true},
		{name: "revoked, of another plan", claim: func(c *registry.Claim) { c.Avoid = netip.MustParsePrefix("10.9.1.0/24") }, want: 1},
		{name: "running, its own lapsed record, an earlier one held", give: registry.Situation{Leases: leases{lapsedFor(n, 5, 9, 0), held(n, 2, 9)}},
			claim: func(c *registry.Claim) { c.Prefer, c.Running = subnet(5), true }, want: 5, takes: 9, own: true},
		{name: "running, an older record of another is back on its slot", give: registry.Situation{Leases: leases{lapsedFor(n, 5, 1, 0), held(n, 2, 9)}},
			claim: func(c *registry.Claim) { c.Prefer, c.Running, c.Since = subnet(5), true, 6 }, want: 5, takes: 1},
		{name: "the same, as old as its own", give: registry.Situation{Leases: leases{lapsedFor(n, 5, 1, 0), held(n, 2, 9)}},
			claim: func(c *registry.Claim) { c.Prefer, c.Running, c.Since = subnet(5), true, 5 }, want: 2, takes: 9, own: true},
		{name: "the same, held", give: registry.Situation{Leases: leases{held(n, 5, 1), held(n, 2, 9)}},
			claim: func(c *registry.Claim) { c.Prefer, c.Running, c.Since = subnet(5), true, 5 }, want: 2, takes: 9, own: true},
		{name: "the same, reserved", give: registry.Situation{Leases: leases{lapsedFor(n, 5, 1, 0), held(n, 2, 9)},
			Reservations: []registry.Reservation{reservation(n, 5, "host-1", "")}},
			claim: func(c *registry.Claim) { c.Prefer, c.Running, c.Since = subnet(5), true, 6 }, want: 2, takes: 9, own: true},
		{name: "stopped, its record is older than what it remembers", give: registry.Situation{Leases: leases{held(n, 2, 9)}},
			claim: func(c *registry.Claim) { c.Prefer, c.Since = subnet(5), 3 }, want: 5},
		{name: "stopped, its record is what it remembers", give: registry.Situation{Leases: leases{held(n, 2, 9)}},
			claim: func(c *registry.Claim) { c.Prefer, c.Since = subnet(5), 2 }, want: 2, takes: 9, own: true},
		{name: "stopped, an older record of another is back on its slot", give: registry.Situation{Leases: leases{lapsedFor(n, 5, 1, 0)}},
			claim: func(c *registry.Claim) { c.Prefer, c.Since = subnet(5), 6 }, want: 5, takes: 1},

		{name: "overwritten under its lock", give: registry.Situation{Bad: []registry.BadSlot{bad("10.7.2.0/24"),
			{Prefix: subnet(5), Session: "session-9", ModifyIndex: 77}}},
			claim: func(c *registry.Claim) { c.Session = "session-9" }, want: 5, takes: -1, own: true},
		{name: "overwritten under another's lock", give: registry.Situation{Bad: []registry.BadSlot{{Prefix: subnet(1), Session: "session-1"}}},
			claim: func(c *registry.Claim) { c.Session = "session-9" }, want: 2},
		{name: "no session is no match", give: registry.Situation{Bad: []registry.BadSlot{{Prefix: subnet(1)}}}, want: 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.give.Network = n
			c := claimOf(9)
			if tt.claim != nil {
				tt.claim(&c)
			}
			got, err := registry.Choose(tt.give, c, func(uint64) uint64 { return tt.rnd })
			if err != nil || got.Slot != tt.want || got.Own != tt.own {
				t.Fatalf("got slot %d, own %v, %v, want slot %d, own %v", got.Slot, got.Own, err, tt.want, tt.own)
			}
			switch {
			case tt.takes == -1:
				if got.Existing == nil || got.Existing.ModifyIndex != 77 || got.Existing.Session != "session-9" {
					t.Errorf("replaces %+v, want the record of index 77", got.Existing)
				}
			case (got.Existing != nil) != (tt.takes != 0) || got.Existing != nil && got.Existing.NodeID != fmt.Sprintf("id-%d", tt.takes):
				t.Errorf("replaces %+v, want that of host %d", got.Existing, tt.takes)
			}
		})
	}
}

func TestChooseErrors(t *testing.T) {
	n := smallNetwork(t)
	var all []registry.Lease
	for slot := uint64(1); slot <= 7; slot++ {
		all = append(all, held(n, slot, int(slot)))
	}
	type situation = registry.Situation
	one := situation{Leases: []registry.Lease{held(n, 4, 1)}}
	for _, tt := range []struct {
		name  string
		give  situation
		claim func(*registry.Claim)
		want  error
		texts []string
	}{
		{"full", situation{Leases: all}, nil, registry.ErrNetworkFull, []string{"default", "7 slots: 7 held, 0 lapsed"}},
		{"full of lapsed ones within hold", situation{Leases: append(slices.Clone(all[1:]), lapsedFor(n, 1, 1, time.Hour-1))}, nil,
			registry.ErrNetworkFull, []string{"6 held, 1 lapsed"}},
		{"full of reservations", situation{Leases: all[1:], Reservations: []registry.Reservation{reservation(n, 1, "host-1", "")}}, nil,
			registry.ErrNetworkFull, []string{"6 held", "1 reserved"}},
		{"full but for the revoked slot, which another host holds", situation{Leases: all}, func(c *registry.Claim) { c.Avoid = n.Plan.Subnets(3)[0] },
			registry.ErrNetworkFull, []string{"7 held"}},
		{"full but for what was revoked, which is kept for another", situation{Leases: all[1:],
			Reservations: []registry.Reservation{reservation(n, 1, "host-1", "")}}, func(c *registry.Claim) { c.Avoid = n.Plan.Subnets(1)[0] },
			registry.ErrNetworkFull, []string{"6 held", "1 reserved"}},
		{"full of bad records", situation{Bad: []registry.BadSlot{{Prefix: netip.MustParsePrefix("10.0.0.0/8")}}}, nil,
			registry.ErrNetworkFull, []string{"1 under records that are unusable or may be lost"}},
		{"our name", one, func(c *registry.Claim) { c.Node = "host-1" }, registry.ErrDuplicateNode,
			[]string{`"host-1" (192.0.2.1, node id id-1) holds 10.7.4.0/24`, `"host-1" (192.0.2.9, node id id-9)`}},
		{"our node id", one, func(c *registry.Claim) { c.NodeID = "id-1" }, registry.ErrDuplicateNode,
			[]string{"copied", `"host-1"`, `"host-9"`}},
		{"our node id and name, under another address", one, func(c *registry.Claim) { c.Node, c.NodeID, c.Since = "host-1", "id-1", 4 }, registry.ErrDuplicateNode,
			[]string{"copied", "192.0.2.1", "192.0.2.9"}},
		{"our slot, under an older record", one, func(c *registry.Claim) { c.Prefer, c.Running, c.Since = n.Plan.Subnets(4)[0], true, 5 }, registry.ErrSetBack,
			[]string{"10.7.4.0/24", `"host-1" (192.0.2.1, node id id-1)`}},
		{"the same, stopped", one, func(c *registry.Claim) { c.Prefer, c.Since = n.Plan.Subnets(4)[0], 5 }, registry.ErrSetBack, nil},
		{"our node id and session", one, func(c *registry.Claim) { c.NodeID, c.Session = "id-1", "session-1" }, registry.ErrDuplicateNode,
			[]string{"copied", `"host-1"`, `"host-9"`}},
		{"our node id, under a record older than ours", situation{Leases: []registry.Lease{held(n, 4, 1), held(n, 3, 2)}},
			func(c *registry.Claim) { c.NodeID, c.Since, c.PublicIPs = "id-1", 5, []netip.Addr{addr(2)} }, registry.ErrDuplicateAddress,
			[]string{`"host-2"`, `"host-9"`}},
		{"our address", one, func(c *registry.Claim) { c.PublicIPs = append(c.PublicIPs, addr(1)) }, registry.ErrDuplicateAddress,
			[]string{`"host-1" (192.0.2.1, node id id-1)`, `"host-9" (192.0.2.9, 192.0.2.1, node id id-9)`}},
		{"our address and port", situation{Leases: []registry.Lease{behind(held(n, 4, 1), `{"listen_port":51820}`)}}, func(c *registry.Claim) {
			*c = claimBehind(*c, addr(1), `{"listen_port":7,"public_port":51820}`)
		}, registry.ErrDuplicateAddress, nil},
		{"our address, and its port is not known", one, func(c *registry.Claim) { *c = claimBehind(*c, addr(1), `{"listen_port":7}`) }, registry.ErrDuplicateAddress, nil},
		{"our node id, behind the same NAT", situation{Leases: []registry.Lease{behind(held(n, 4, 1), `{"local_ips":["192.0.2.41"]}`)}}, func(c *registry.Claim) {
			*c = claimBehind(*c, addr(1), `{"local_ips":["192.0.2.42"]}`)
			c.NodeID = "id-1"
		}, registry.ErrDuplicateNode, []string{"copied"}},
		{"our address, though we hold a lease", situation{Leases: []registry.Lease{held(n, 3, 9), held(n, 4, 1)}},
			func(c *registry.Claim) { c.PublicIPs, c.Session = []netip.Addr{addr(1)}, "session-9" }, registry.ErrDuplicateAddress, []string{"10.7.4.0/24"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.give.Network = n
			c := claimOf(9)
			if tt.claim != nil {
				tt.claim(&c)
			}
			got, err := registry.Choose(tt.give, c, seed.Rand(t).Uint64N)
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %+v, %v, want %v", got, err, tt.want)
			}
			var rival *registry.RivalError
			if errors.As(err, &rival) != (tt.want != registry.ErrNetworkFull) || rival != nil && !rival.Lease.Held() {
				t.Errorf("rival %+v", rival)
			}
			for _, text := range tt.texts {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("error %q does not say %q", err, text)
				}
			}
		})
	}
}

// TestChooseBesideTheReplaced: in a store that was set back, a host that was replaced seems to be alive, under the
// address of the host that replaced it.
func TestChooseBesideTheReplaced(t *testing.T) {
	n := smallNetwork(t)
	c := claimOf(9)
	c.PublicIPs, c.Prefer, c.Running, c.Since = []netip.Addr{addr(1)}, n.Plan.Subnets(6)[0], true, 50
	for _, tt := range []struct {
		name   string
		change func(s *registry.Situation, c *registry.Claim)
		want   error
	}{
		{"our record is lost", func(*registry.Situation, *registry.Claim) {}, nil},
		{"an older one of ours is back", func(s *registry.Situation, _ *registry.Claim) { s.Leases = append(s.Leases, held(n, 5, 9)) }, nil},
		{"our record is there", func(s *registry.Situation, _ *registry.Claim) {
			own := held(n, 6, 9)
			own.ModifyIndex = 50
			s.Leases = append(s.Leases, own)
		}, registry.ErrDuplicateAddress},
		{"the other's is newer", func(s *registry.Situation, _ *registry.Claim) { s.Leases[0].ModifyIndex = 51 }, registry.ErrDuplicateAddress},
		{"not at work", func(_ *registry.Situation, c *registry.Claim) { c.Running = false }, registry.ErrDuplicateAddress},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, c := registry.Situation{Network: n, Leases: []registry.Lease{held(n, 4, 1)}}, c
			tt.change(&s, &c)
			got, err := registry.Choose(s, c, seed.Rand(t).Uint64N)
			if !errors.Is(err, tt.want) || err == nil && got.Slot != 6 {
				t.Errorf("got %+v, %v, want %v", got, err, tt.want)
			}
		})
	}
}

// TestChooseBesideForgedRecords: a stranger who writes a record with the node id of a host does not keep it from its own lease
// when it has moved to another address.
func TestChooseBesideForgedRecords(t *testing.T) {
	n := smallNetwork(t)
	own := held(n, 6, 9)
	c := claimOf(9)
	c.Session, c.Prefer, c.Since, c.Running = own.Session, own.Subnet(), own.ModifyIndex, true
	c.PublicIPs = []netip.Addr{addr(99)}
	for name, session := range map[string]string{"under a session of its own": "session-8", "under the host's session": own.Session} {
		t.Run(name, func(t *testing.T) {
			forged := held(n, 7, 9) // written later
			forged.Session = session
			got, err := registry.Choose(registry.Situation{Network: n, Leases: []registry.Lease{forged, own}}, c, seed.Rand(t).Uint64N)
			if err != nil || got.Slot != own.Slot || !got.Own {
				t.Errorf("got %+v, %v", got, err)
			}
			own := own
			own.ModifyIndex = 50 // the copy of this host has written it
			_, err = registry.Choose(registry.Situation{Network: n, Leases: []registry.Lease{forged, own}}, c, seed.Rand(t).Uint64N)
			if !errors.Is(err, registry.ErrDuplicateNode) {
				t.Errorf("beside a copy: %v", err)
			}
		})
	}
}

// The key of a slot's other family is not the slot's key, and must not pass for our own record.
func TestChooseOverwrittenDual(t *testing.T) {
	n := registry.Network{Name: "dual", Plan: mustPlan(t, pool("10.7.0.0/21", 24), pool("fd00:5::/48", 64))}
	c := claimOf(9)
	c.Session = "session-9"
	got, err := registry.Choose(registry.Situation{Network: n, Bad: []registry.BadSlot{{Prefix: n.Plan.Subnets(1)[1], Session: c.Session}}},
		c, func(uint64) uint64 { return 0 })
	if err != nil || got.Slot != 2 || got.Own {
		t.Errorf("got %+v, %v, want slot 2", got, err)
	}
}

// The largest plan costs no more than the records in it.
func TestChooseNeverWalks(t *testing.T) {
	n := registry.Network{Name: "big", Plan: mustPlan(t, pool("fd00:5::/32", 64))}
	got, err := registry.Choose(registry.Situation{Network: n, Leases: []registry.Lease{held(n, 1, 1), held(n, 1<<32-1, 2)}}, claimOf(9),
		func(free uint64) uint64 {
			if free != 1<<32-3 {
				t.Errorf("%d free slots, want 2^32-3", free)
			}
			return free - 1
		})
	if err != nil || got.Slot != 1<<32-2 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestChooseExactly: a claim on behalf of a host gets the preferred slot or an error, and never a held record.
func TestChooseExactly(t *testing.T) {
	n := smallNetwork(t)
	type situation = registry.Situation
	for _, tt := range []struct {
		name   string
		give   situation
		prefer string // 10.7.5.0/24 if empty
		want   error
		takes  bool // the record on the slot
	}{
		{name: "free"},
		{name: "own, lapsed", give: situation{Leases: []registry.Lease{lapsedFor(n, 5, 9, 0)}}, takes: true},
		{name: "own, lapsed elsewhere", give: situation{Leases: []registry.Lease{lapsedFor(n, 3, 9, 0)}}},
		{name: "own, lapsed, reserved for another", give: situation{Leases: []registry.Lease{lapsedFor(n, 5, 9, 0)},
			Reservations: []registry.Reservation{reservation(n, 5, "host-1", "")}}, takes: true},
		{name: "another slot is reserved for the host", give: situation{
			Reservations: []registry.Reservation{reservation(n, 3, "host-9", "")}}},
		{name: "reserved for the host", give: situation{Reservations: []registry.Reservation{reservation(n, 5, "", "id-9")}}},
		{name: "out of the plan", prefer: "10.7.8.0/24", want: registry.ErrInvalid},
		{name: "out of range", prefer: "10.7.0.0/24", want: registry.ErrInvalid},
		{name: "own, held", give: situation{Leases: []registry.Lease{held(n, 5, 9)}}, want: registry.ErrHeld},
		{name: "own, held elsewhere", give: situation{Leases: []registry.Lease{held(n, 3, 9)}}, want: registry.ErrHeld},
		{name: "another's, held", give: situation{Leases: []registry.Lease{held(n, 5, 1)}}, want: registry.ErrHeld},
		{name: "another's, lapsed long ago", give: situation{Leases: []registry.Lease{lapsedFor(n, 5, 1, 99*time.Hour)}},
			want: registry.ErrHeld},
		{name: "reserved for another", give: situation{
			Reservations: []registry.Reservation{reservation(n, 5, "host-1", "")}}, want: registry.ErrReserved},
		{name: "unusable record", give: situation{Bad: []registry.BadSlot{{Prefix: n.Plan.Subnets(5)[0]}}},
			want: registry.ErrHeld},
		{name: "our name is taken", give: situation{Leases: []registry.Lease{func() registry.Lease {
			l := held(n, 3, 1)
			l.Node = "host-9"
			return l
		}()}}, want: registry.ErrDuplicateNode},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.give.Network = n
			c := claimOf(9)
			c.OnlySlot, c.Running, c.Prefer = true, true, netip.MustParsePrefix(cmp.Or(tt.prefer, "10.7.5.0/24"))
			got, err := registry.Choose(tt.give, c, nil)
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %+v, %v, want %v", got, err, tt.want)
			}
			if err == nil && (got.Slot != 5 || (got.Existing != nil) != tt.takes || got.Own != tt.takes) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// behind gives a lease other attributes.
func behind(l registry.Lease, attributes string) registry.Lease {
	l.Backend, _ = registry.NewBackend("wireguard", json.RawMessage(attributes))
	return l
}

// claimBehind gives a claim an address and attributes.
func claimBehind(c registry.Claim, public netip.Addr, attributes string) registry.Claim {
	c.PublicIPs = []netip.Addr{public}
	c.Backend = behind(registry.Lease{}, attributes).Backend
	return c
}

func TestSameEndpoint(t *testing.T) {
	at := func(address, attributes string) registry.Lease {
		return behind(registry.Lease{PublicIPs: []netip.Addr{netip.MustParseAddr(address)}}, attributes)
	}
	for name, tt := range map[string]struct {
		a, b              registry.Lease
		endpoint, machine bool
	}{
		"another address":       {at("192.0.2.1", `{"listen_port":1}`), at("192.0.2.2", `{"listen_port":1}`), false, false},
		"the same":              {at("192.0.2.1", `{"listen_port":1}`), at("192.0.2.1", `{"listen_port":1}`), true, true},
		"no ports":              {at("192.0.2.1", `{}`), at("192.0.2.1", `{}`), true, true},
		"one port":              {at("192.0.2.1", `{"listen_port":1}`), at("192.0.2.1", `{}`), true, true},
		"other ports":           {at("192.0.2.1", `{"listen_port":1}`), at("192.0.2.1", `{"listen_port":1,"public_port":2}`), false, true},
		"mapped to the other's": {at("192.0.2.1", `{"listen_port":2}`), at("192.0.2.1", `{"listen_port":1,"public_port":2}`), true, true},
		"NAT":                   {at("192.0.2.1", `{"listen_port":1,"local_ips":["10.9.0.1"]}`), at("192.0.2.1", `{"listen_port":2,"local_ips":["10.9.0.2"]}`), false, false},
		"the NAT itself":        {at("192.0.2.1", `{"listen_port":1}`), at("192.0.2.1", `{"listen_port":2,"local_ips":["10.9.0.2"]}`), false, true},
		"another NAT":           {at("192.0.2.1", `{"local_ips":["10.9.0.1"]}`), at("192.0.2.2", `{"local_ips":["10.9.0.1"]}`), false, false},
		"the same next port":    {at("192.0.2.1", `{"listen_port":1,"next":{"listen_port":2}}`), at("192.0.2.1", `{"listen_port":3,"next":{"listen_port":2}}`), false, true},
		"no address":            {registry.Lease{}, at("192.0.2.1", `{"listen_port":1}`), false, false},
		"not ports":             {at("192.0.2.1", `{"listen_port":"x"}`), at("192.0.2.1", `{"listen_port":2}`), true, true},
	} {
		if got := registry.SameEndpoint(tt.a, tt.b); got != tt.endpoint || registry.SameEndpoint(tt.b, tt.a) != got {
			t.Errorf("%s: same endpoint %t", name, got)
		}
		if got := registry.SameMachine(tt.a, tt.b); got != tt.machine || registry.SameMachine(tt.b, tt.a) != got {
			t.Errorf("%s: same machine %t", name, got)
		}
	}
}
