package httpapi

import (
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
)

// TestListBesideADeletion: a network that was deleted is not listed while this host still leaves it. A deletion that
// came back with an earlier state of the store hides no network that is in use.
func TestListBesideADeletion(t *testing.T) {
	h := newHost(t, nil)
	n := h.n.status.Definition
	used := time.Now()
	h.n.set(func() { h.n.used = used })
	for _, tt := range []struct {
		name     string
		deletion registry.Deletion
		listed   bool
	}{
		{"deleted", registry.Deletion{Time: used.Add(time.Minute), ModifyIndex: n.ModifyIndex + 1}, false},
		{"set back to an earlier deletion", registry.Deletion{Time: used.Add(-time.Minute), ModifyIndex: n.ModifyIndex - 1}, true},
	} {
		tt.deletion.Network, tt.deletion.CreateIndex = n.Name, n.CreateIndex
		known := Networks{NetworkSet: registry.NetworkSet{Deleted: []registry.Deletion{tt.deletion}}, Index: n.ModifyIndex + 5, Read: true}
		all := directory{agent: h.agent}.knownNetworks(known)
		if listed := len(all) == 1 && all[0].Name == n.Name; listed != tt.listed {
			t.Errorf("%s: listed %t, want %t: %+v", tt.name, listed, tt.listed, all)
		}
	}
}
