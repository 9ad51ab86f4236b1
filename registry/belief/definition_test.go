package belief

import (
	"fmt"
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
)

// TestDeletionEnds: revisions decide before indexes, and clocks decide only where there are no revisions.
func TestDeletionEnds(t *testing.T) {
	t.Parallel()
	used := time.Date(2026, 11, 22, 21, 40, 0, 0, time.UTC)
	const ahead, behind = 2 * time.Hour, -2 * time.Hour
	n := registry.Network{Name: "n", Lineage: registry.Lineage{Revision: "C", Earlier: []string{"A", "B"}, Generation: 3},
		CreateIndex: 10, ModifyIndex: 30}
	for _, tt := range []struct {
		name     string
		revision string
		earlier  []string
		gen      uint64
		create   uint64
		modify   uint64
		clock    time.Duration
		want     bool
	}{
		{"of this definition", "C", nil, 3, 10, 40, 0, true},
		{"of this definition, by a clock that is behind, put back elsewhere", "C", nil, 3, 70, 71, behind, true},
		{"of a later definition", "D", []string{"B", "C"}, 4, 70, 71, behind, true},
		{"of a definition many changes later", "Z", []string{"A", "Y"}, 99, 70, 71, behind, true},
		{"of a change made independently", "E", []string{"A", "B"}, 3, 70, 71, ahead, false},
		{"of another network of that name", "Z", []string{"Y"}, 99, 70, 71, ahead, false},
		{"of an earlier definition, by a clock that is ahead, after a restore", "B", []string{"A"}, 2, 10, 25, ahead, false},
		{"of an earlier definition, put back elsewhere", "B", []string{"A"}, 2, 70, 71, ahead, false},
		{"of another network, at a later index of a record created at the same one", "Z", []string{"Y"}, 2, 10, 40, ahead, false},
		{"of a network that was defined after its deletion", "Z", []string{"A", "C", "Y"}, 5, 70, 71, behind, true},
		{"no revision, later in the same store", "", nil, 0, 10, 40, behind, true},
		{"no revision, earlier", "", nil, 0, 10, 25, behind, false},
		{"no revision, put back elsewhere", "", nil, 0, 70, 71, ahead, true},
	} {
		d := registry.Deletion{Network: "n", Time: used.Add(tt.clock), CreateIndex: tt.create, ModifyIndex: tt.modify,
			Lineage: registry.Lineage{Revision: tt.revision, Earlier: tt.earlier, Generation: tt.gen}}
		if got := (&Definition{Network: n, Used: used}).IsEndedBy(d); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}

// TestSupersedes covers which of two versions of a definition is the later one.
func TestSupersedes(t *testing.T) {
	version := func(colour string, created, modified uint64) registry.Network {
		object := fmt.Appendf(nil, `{"type":"recorder","colour":%q}`, colour)
		return registry.Network{Name: "n", Backend: registry.Backend{Type: "recorder", Object: object},
			CreateIndex: created, ModifyIndex: modified}
	}
	none := registry.Network{}
	first := version("first", 10, 20).Replacing(none)
	second := version("second", 10, 30).Replacing(first)
	again := version("first", 10, 40).Replacing(second)
	branch := version("branch", 10, 25).Replacing(first)
	other := version("other", 50, 50).Replacing(none)
	byHand, after := version("by hand", 10, 20), version("after", 10, 30)
	after = after.Replacing(byHand)
	elsewhere := func(n registry.Network, created, modified uint64) registry.Network {
		n.CreateIndex, n.ModifyIndex = created, modified
		return n
	}
	restored := branch
	for range 100 {
		restored = restored.Replacing(restored)
	}
	block := other
	block.FromBlock = true
	restoredBlock := block
	restoredBlock.Restored = time.Now()
	restoredByHand := elsewhere(byHand, 50, 50)
	restoredByHand.Revision = byHand.RevisionOrVersion()
	for _, tt := range []struct {
		name       string
		known, n   registry.Network
		confirmed  bool // with the known one read by this process
		remembered bool // with the known one from a file
	}{
		{"itself", second, second, false, false},
		{"itself, restored", second, elsewhere(second, 50, 50), false, false},
		{"the one before", second, first, true, true},
		{"the one before, restored in an emptied store", second, elsewhere(first, 50, 50), true, true},
		{"an older one that says the same", again, first, true, true},
		{"the one after", first, second, false, false},
		{"the one after, with a lower index", elsewhere(first, 10, 90), second, false, false},
		{"a change in a store that was set back", second, branch, false, false},
		{"one of a lower generation", restored, second, true, true},
		{"one of a higher generation, with a lower index", elsewhere(second, 10, 90), restored, false, false},
		{"one that is 100 changes older", restored, elsewhere(first.Replacing(first), 50, 50), true, true},
		{"an unrelated one in a new record", second, other, false, false},
		{"an unrelated one in the same record", elsewhere(other, 10, 90), second, true, false},
		{"one without a revision, before", elsewhere(other, 10, 90), byHand, true, false},
		{"one without a revision, since", first, elsewhere(byHand, 10, 90), false, false},
		{"a change of one without a revision", byHand, after, false, false},
		{"one without a revision, before its change", after, byHand, true, true},
		{"the same, restored in an emptied store", after, restoredByHand, true, true},
		{"of a new host's configuration", second, block, true, false},
		{"of a new host's configuration, in the same record", second, elsewhere(block, 10, 90), false, false},
		{"of the configuration of the host that defined the network", block, block, false, false},
		{"of a host's configuration, restored", second, restoredBlock, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := &Definition{Network: tt.known, Used: time.Now(), Confirmed: true}
			if got := k.supersedes(tt.n); got != tt.confirmed {
				t.Errorf("with a definition that was read: %t", got)
			}
			k.Confirmed = false
			if got := k.supersedes(tt.n); got != tt.remembered {
				t.Errorf("with one that is remembered: %t", got)
			}
			k.Used = time.Now().Add(-registry.DeletionKept - time.Hour)
			if k.supersedes(tt.n) {
				t.Error("with one that was not used for long")
			}
		})
	}
	known := second
	known.Restored = time.Now()
	k, _ := (&Definition{Network: branch, Confirmed: true}).Confirm(known, time.Now())
	if !k.supersedes(branch) {
		t.Error("an abandoned one: not")
	}
	for _, clock := range []time.Duration{-40 * 24 * time.Hour, 40 * 24 * time.Hour} {
		again := branch
		again.Restored = time.Now().Add(clock)
		if k.supersedes(again) {
			t.Errorf("an abandoned one that another host has restored, by a clock that is %s ahead", clock)
		}
	}
	var nothing *Definition
	if nothing.supersedes(first) {
		t.Error("without any")
	}
}
