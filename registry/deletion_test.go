package registry

import (
	"testing"
	"time"
)

// TestDeletionEnds: revisions decide before indexes, and clocks decide only where there are no revisions.
func TestDeletionEnds(t *testing.T) {
	t.Parallel()
	used := time.Date(2026, 11, 22, 21, 40, 0, 0, time.UTC)
	const ahead, behind = 2 * time.Hour, -2 * time.Hour
	n := Network{Name: "n", Lineage: Lineage{"C", []string{"A", "B"}, 3}, CreateIndex: 10, ModifyIndex: 30}
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
		{"of a definition that was forgotten, later in the same store", "Z", []string{"Y"}, 2, 10, 40, behind, true},
		{"no revision, later in the same store", "", nil, 0, 10, 40, behind, true},
		{"no revision, earlier", "", nil, 0, 10, 25, behind, false},
		{"no revision, put back elsewhere", "", nil, 0, 70, 71, ahead, true},
	} {
		d := Deletion{Network: "n", Time: used.Add(tt.clock), Lineage: Lineage{tt.revision, tt.earlier, tt.gen},
			CreateIndex: tt.create, ModifyIndex: tt.modify}
		if got := d.Ends(n, used); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}
