package registry_test

import (
	"fmt"
	"math/rand/v2"
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
	changed := func(n registry.Network, times int) registry.Network {
		for range times {
			n = n.Replacing(n)
		}
		return n
	}
	without := func(n registry.Network) registry.Network { n.Generation = 0; return n }
	highest := third
	highest.Generation = registry.MaxGeneration
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
		{"a higher generation", third, branch, true, false},
		{"a lower generation", branch, third, false, false},
		{"100 changes after the other one", changed(branch, 100), second, true, false},
		{"100 changes each", changed(branch, 100), changed(second, 100), false, true},
		{"one of them without a generation", third, without(branch), false, true},
		{"the other one without a generation", without(third), branch, false, true},
		{"the highest generation, and one more", highest.Replacing(highest), highest, true, false},
		{"a change of another network of this name", changed(other, 100), third, false, false},
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
		want := seen
		if len(seen) > registry.MaxEarlier { // the first one, and the latest
			want = append(seen[:1:1], seen[len(seen)-registry.MaxEarlier+1:]...)
		}
		if !slices.Equal(next.Earlier, want) {
			t.Fatalf("earlier %q, want %q", next.Earlier, want)
		}
		n, seen = next, append(seen, next.Revision)
		if n.Generation != uint64(len(seen)) {
			t.Fatalf("generation %d after %d changes", n.Generation, len(seen))
		}
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

// TestReplacingKeepsTheLoss: a change says when the definition was restored, by whatever clock, and how many leases there
// were.
func TestReplacingKeepsTheLoss(t *testing.T) {
	for _, ago := range []time.Duration{time.Hour, -time.Hour} {
		old := dualNetwork(t)
		old.Restored, old.RestoredLeases = time.Now().Add(-ago), 3
		if got := dualNetwork(t).Replacing(old); got.Restored != old.Restored || got.RestoredLeases != 3 || got.FromBlock {
			t.Errorf("restored at %s: the change is %+v", old.Restored, got)
		}
	}
	n := dualNetwork(t)
	if known, unknown := n.Restoring(3), n.Restoring(0); known.RestoredLeases != 3 ||
		unknown.RestoredLeases != int(n.Plan.Capacity()) {
		t.Errorf("restored with %d and %d leases", known.RestoredLeases, unknown.RestoredLeases)
	}
}

// TestHistories: in any history of changes, losses and restorations, all hosts agree on the later one of two definitions
// unless both have been changed as often since one that they share, and then no host takes either for the later one.
func TestHistories(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 0))
		versions := []registry.Network{dualNetwork(t).Replacing(registry.Network{})}
		changes := map[string]int{versions[0].Revision: 0}
		for range 150 {
			n := versions[max(0, len(versions)-1-random.IntN(60))] // of a store that was set back to it, or in a later one
			if random.IntN(4) == 0 {
				n = versions[len(versions)-1].Restoring(0)
			}
			next := n.Replacing(n)
			changes[next.Revision] = changes[n.Revision] + 1
			versions = append(versions, next)
		}
		for _, a := range versions {
			for _, b := range versions {
				ca, cb := changes[a.Revision], changes[b.Revision]
				if got := a.Replaced(b); got != (ca > cb) {
					t.Fatalf("seed %d: change %d replaced change %d: %t", seed, ca, cb, got)
				}
				if got := a.Diverged(b); got != (ca == cb && a.Revision != b.Revision) {
					t.Fatalf("seed %d: change %d diverged from change %d: %t", seed, ca, cb, got)
				}
			}
		}
	}
}
