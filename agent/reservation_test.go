package agent

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/memory"
)

// TestReservation follows a host with a reservation, by name or by node id, through restarts of all kinds, to the end
// of the reservation.
func TestReservation(t *testing.T) {
	ctx := context.Background()
	for _, by := range []string{"name", "node id"} {
		subtest(t, by, func(t *testing.T) {
			store := memory.New()
			b := newHost(t, store, "b").start()
			b.ready()
			a := newHost(t, store, "a")
			kept := api.Reservation{Subnet: free(b), Node: "a"}
			if by == "node id" {
				kept.Node, kept.NodeID = "", "6f1c9d1e-0000-4000-8000-00000000000a"
				must(t, os.MkdirAll(a.config.DataDir, 0o755))
				must(t, os.WriteFile(filepath.Join(a.config.DataDir, "node-id"), []byte(kept.NodeID+"\n"), 0o600))
			}
			must(t, b.client.AddReservation(ctx, "n", kept, false))
			want := kept.Subnet.String() + " <- b@" + b.subnet().String()

			for _, restart := range []struct {
				name   string
				before func()
			}{
				{"first start", func() {}},
				{"restart", func() {}},
				{"away for long", func() {
					lease, _ := mustRunner(t, a).Lease()
					store.EndSession(lease.Session)
				}},
				{"revoked while stopped", func() { must(t, b.client.RevokeLease(ctx, "n", kept.Subnet)) }},
				{"state and subnet file lost", func() {
					must(t, os.Remove(filepath.Join(a.config.DataDir, "n.json")))
					must(t, os.Remove(a.config.Networks[0].SubnetFile))
				}},
				{"another disk and another name", func() {
					if by == "node id" {
						a.config.NodeName = "renamed"
						return
					}
					must(t, os.RemoveAll(a.config.DataDir))
				}},
			} {
				restart.before()
				a.start()
				a.ready()
				if got := a.subnet(); got != kept.Subnet {
					t.Fatalf("%s: subnet %s, want %s", restart.name, got, kept.Subnet)
				}
				a.applies(want)
				must(t, a.stop())
			}

			// Without the reservation, the host keeps its subnet, and its packets flow on.
			a.start()
			a.ready()
			before := a.recorder.all()
			must(t, b.client.RemoveReservation(ctx, "n", kept.Subnet))
			renewals, tries := a.registry.Count("own Renew"), len(a.recorder.tries())
			a.kick()
			a.more("renewals", renewals+1, func() int { return a.registry.Count("own Renew") })
			a.more("applies", tries, func() int { return len(a.recorder.tries()) })
			if got := a.subnet(); got != kept.Subnet || len(a.recorder.all()) != len(before) {
				t.Errorf("subnet %s; applied %q", got, a.recorder.all()[len(before):])
			}
			for _, state := range a.recorder.all() {
				if p := netip.MustParsePrefix(state[:len(kept.Subnet.String())]); p != kept.Subnet {
					t.Errorf("applied %q, which has another subnet", state)
				}
			}
		})
	}
}
