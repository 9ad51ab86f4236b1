package registry_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
)

// TestRevisions: revisions tell which of two versions of a definition is the later one, however often it was changed in
// between, unless the two were changed independently of each other.
func TestRevisions(t *testing.T) {
	var none registry.Network
	first := dualNetwork(t).Replacing(none)
	second := first.Replacing(first)
	third := second.Replacing(second)
	branch := first.Replacing(first)
	later := branch.Replacing(branch)
	byHand, other := dualNetwork(t), dualNetwork(t).Replacing(none)
	stored := byHand
	stored.CreateIndex, stored.ModifyIndex = 10, 20
	for _, tt := range []struct {
		name     string
		n, old   registry.Network
		replaced bool
		diverged bool
	}{
		{"the next", second, first, true, false},
		{"the one after", third, first, true, false},
		{"the one before", first, second, false, false},
		{"itself", second, second, false, false},
		{"two changes of one revision", second, branch, false, true},
		{"two changes, and one more", third, later, false, true},
		{"another network of this name", third, other, false, false},
		{"written by hand", byHand, second, false, false},
		{"written by hand before", second, byHand, false, false},
		{"both written by hand", byHand, byHand, false, false},
		{"a change of one that was not stored", byHand.Replacing(byHand), byHand, false, false},
		{"a change of one that was written by hand", second.Replacing(stored), stored, true, false},
		{"two changes of one that was written by hand", second.Replacing(stored), third.Replacing(stored), false, true},
	} {
		if got := tt.n.Replaced(tt.old); got != tt.replaced {
			t.Errorf("%s: replaced %t", tt.name, got)
		}
		if got := tt.n.Diverged(tt.old); got != tt.diverged {
			t.Errorf("%s: diverged %t", tt.name, got)
		}
		if got := tt.old.Diverged(tt.n); got != tt.diverged {
			t.Errorf("%s, the other way round: diverged %t", tt.name, got)
		}
	}
}

// TestReplacing: each revision has its own name, and the definition stays one that can be stored.
func TestReplacing(t *testing.T) {
	n := dualNetwork(t)
	n.Restored = time.Date(2026, 11, 22, 21, 40, 0, 0, time.UTC)
	n.FromBlock = true
	var seen []string
	for range registry.MaxEarlier + 10 {
		before := slices.Clone(n.Earlier)
		next := n.Replacing(n)
		if slices.Contains(seen, next.Revision) || !slices.Equal(n.Earlier, before) {
			t.Fatalf("revision %q after %q", next.Revision, seen)
		}
		if want := seen[max(0, len(seen)-registry.MaxEarlier):]; !slices.Equal(next.Earlier, want) {
			t.Fatalf("earlier %q, want %q", next.Earlier, want)
		}
		n, seen = next, append(seen, next.Revision)
	}
	value, err := registry.FormatNetwork(n)
	if err != nil {
		t.Fatal(err)
	}
	got, err := registry.ParseNetwork(n.Name, value)
	if err != nil || fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", n) {
		t.Errorf("%+v, %v; want %+v", got, err, n)
	}
}

// TestReplacingKeepsTheLoss: a change says when the definition was restored, unless a clock was ahead.
func TestReplacingKeepsTheLoss(t *testing.T) {
	old, past := dualNetwork(t), time.Now().Add(-time.Hour).UTC()
	for restored, want := range map[time.Time]time.Time{{}: {}, past: past, time.Now().Add(time.Hour): {}} {
		old.Restored = restored
		if got := dualNetwork(t).Replacing(old); !got.Restored.Equal(want) || got.FromBlock {
			t.Errorf("restored at %s: the change says %s, from a block %t", restored, got.Restored, got.FromBlock)
		}
	}
}
