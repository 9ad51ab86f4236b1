package agent

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/memory"
)

// TestReservation: a host with a reservation by name keeps its subnet with another disk, and one with a reservation by
// node id keeps it under another name.
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
			for range 2 {
				a.start().ready()
				if got := a.subnet(); got != kept.Subnet {
					t.Fatalf("subnet %s, want %s", got, kept.Subnet)
				}
				a.applies(kept.Subnet.String() + " <- b@" + b.subnet().String())
				must(t, a.stop())
				if by == "node id" {
					a.config.NodeName = "renamed"
				} else {
					must(t, os.RemoveAll(a.config.DataDir))
				}
			}
			must(t, b.client.RemoveReservation(ctx, "n", kept.Subnet))
		})
	}
}
