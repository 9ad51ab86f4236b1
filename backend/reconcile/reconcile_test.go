package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/seed"
)

// table is a small, real table in memory that keeps a journal of its writes.
type table struct {
	name    string
	entries map[string]int
	journal *[]string
	listErr error
	partial bool // what the failing listing still returns
	refuse  map[string]error
	forbids func(key string) bool // a table that has an entry may forbid one in another
}

func newTable(name string, journal *[]string, entries ...string) *table {
	t := &table{name: name, entries: map[string]int{}, journal: journal}
	for _, e := range entries {
		t.entries[e] = len(e)
	}
	return t
}

var _ Table[string, int] = (*table)(nil)

func (t *table) List(context.Context) (map[string]int, error) {
	if t.listErr != nil && !t.partial {
		return nil, t.listErr
	}
	return maps.Clone(t.entries), t.listErr
}

func (t *table) Write(_ context.Context, changes []Change[string, int]) []error {
	errs := make([]error, len(changes))
	for i, c := range changes {
		_, exists := t.entries[c.Key]
		switch {
		case t.refuse[c.Key] != nil:
			errs[i] = t.refuse[c.Key]
		case c.New != nil && t.forbids != nil && t.forbids(c.Key):
			errs[i] = errors.New("forbidden")
		case c.New == nil:
			delete(t.entries, c.Key)
			*t.journal = append(*t.journal, "-"+t.name+":"+c.Key)
		case c.Old == nil && exists:
			errs[i] = errors.New("exists")
		default:
			t.entries[c.Key] = *c.New
			*t.journal = append(*t.journal, "+"+t.name+":"+c.Key)
		}
	}
	return errs
}

func want(keys ...string) map[string]int {
	m := map[string]int{}
	for _, k := range keys {
		m[k] = len(k)
	}
	return m
}

func TestApplyPutsInOrderThenDeletesInReverse(t *testing.T) {
	var journal []string
	fdb := newTable("fdb", &journal, "old", "same")
	route := newTable("route", &journal, "old", "wrong")
	route.entries["wrong"] = 99
	result, err := Apply(t.Context(),
		Want("fdb entry", fdb, cmp.Compare[string], want("same", "b", "a"), nil),
		Want("route", route, cmp.Compare[string], want("wrong", "r"), nil))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(journal, " "), "+fdb:a +fdb:b +route:r +route:wrong -route:old -fdb:old"; got != want {
		t.Errorf("journal\n got %s\nwant %s", got, want)
	}
	for name, want := range map[string]string{"FDB entry": "FDB entries", "address": "addresses", "route": "routes"} {
		if got := plural(name); got != want {
			t.Errorf("plural of %s is %q", name, got)
		}
	}
	wantResult := Result{{Name: "fdb entry", Part: backend.Routes, Added: 2, Deleted: 1}, {Name: "route", Part: backend.Routes, Added: 1, Changed: 1, Deleted: 1}}
	if !slices.Equal(result, wantResult) {
		t.Errorf("result %+v, want %+v", result, wantResult)
	}
	if result.Writes() != 6 || result.Repaired() != nil {
		t.Errorf("writes %d, repaired %q", result.Writes(), result.Repaired())
	}
}

func TestApplySafety(t *testing.T) {
	broken := errors.New("broken")
	tests := []struct {
		name    string
		prepare func(t *table)
		dump    string
		journal string
		errs    []string
	}{
		{"failed listing touches nothing", func(t *table) { t.listErr = broken }, "old 3\nsame 4\n", "", []string{"list routes: broken"}},
		{"interrupted listing deletes nothing but still puts", func(t *table) { t.listErr, t.partial = broken, true },
			"new 3\nold 3\nsame 4\n", "+route:new", []string{"list routes: broken"}},
		{"a refused put does not stop the delete", func(t *table) { t.refuse = map[string]error{"new": broken} },
			"same 4\n", "-route:old", []string{"put route new: broken"}},
		{"a refused delete does not stop the put", func(t *table) { t.refuse = map[string]error{"old": broken} },
			"new 3\nold 3\nsame 4\n", "+route:new", []string{"delete route old: broken"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var journal, otherJournal []string
			bad := newTable("route", &journal, "old", "same")
			tt.prepare(bad)
			good := newTable("other", &otherJournal, "x")
			_, err := Apply(t.Context(),
				Want("route", bad, cmp.Compare[string], want("same", "new"), nil),
				Want("other", good, cmp.Compare[string], want("y"), nil))
			if err == nil {
				t.Fatal("no error")
			}
			for _, text := range tt.errs {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("error %q lacks %q", err, text)
				}
			}
			if !errors.Is(err, broken) {
				t.Errorf("%v does not wrap the cause", err)
			}
			if got := Dump(bad.entries, cmp.Compare[string]); got != tt.dump {
				t.Errorf("table\n%swant\n%s", got, tt.dump)
			}
			if got := strings.Join(journal, " "); got != tt.journal {
				t.Errorf("journal %q, want %q", got, tt.journal)
			}
			if got := strings.Join(otherJournal, " "); got != "+other:y -other:x" {
				t.Errorf("the other table did not go on: %q", got)
			}
		})
	}
}

// TestApplyRepeatsWhatAnObsoleteEntryForbade checks that two hosts can exchange their subnets: Linux refuses a route through
// an address that this host still has.
func TestApplyRepeatsWhatAnObsoleteEntryForbade(t *testing.T) {
	var journal []string
	address, route := newTable("address", &journal, "old"), newTable("route", &journal, "via new")
	route.forbids = func(key string) bool {
		_, ours := address.entries[strings.TrimPrefix(key, "via ")]
		return ours
	}
	steps := func() []Step {
		return []Step{
			Want("address", address, cmp.Compare[string], want("new"), nil),
			Want("route", route, cmp.Compare[string], want("via old", "via other"), nil),
		}
	}
	result, err := Apply(t.Context(), steps()...)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(journal, " "), "+address:new +route:via other -route:via new -address:old +route:via old"; got != want {
		t.Errorf("journal\n got %s\nwant %s", got, want)
	}
	if result.Writes() != 5 || result[1].Added != 2 {
		t.Errorf("result %+v", result)
	}
	if again, err := Apply(t.Context(), steps()...); err != nil || again.Writes() != 0 {
		t.Errorf("second apply: %+v, %v", again, err)
	}
	// Fill deletes nothing, so it cannot help.
	delete(route.entries, "via old")
	address.entries["old"] = 3
	if _, err := Fill(t.Context(), steps()...); err == nil || err.Error() != "put route via old: forbidden" {
		t.Errorf("fill: %v", err)
	}
}

func TestApplyStopsWritingWhenCancelled(t *testing.T) {
	var journal []string
	tab := newTable("route", &journal, "old")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Apply(ctx, Want("route", tab, cmp.Compare[string], want("new"), nil))
	if !errors.Is(err, context.Canceled) || len(journal) != 0 {
		t.Errorf("error %v, journal %q", err, journal)
	}
}

func TestRepaired(t *testing.T) {
	tests := []struct {
		name     string
		have     []string
		last     map[string]int
		want     map[string]int
		repaired []string
	}{
		{"first apply explains nothing", []string{"left"}, nil, want("a"), nil},
		{"the wanted changed", []string{"a"}, want("a"), want("bb"), nil},
		{"one lost", []string{"a"}, want("a", "b"), want("a", "b"), []string{"routes were missing: b"}},
		{"one changed", []string{"aa"}, map[string]int{"aa": 7}, map[string]int{"aa": 7}, []string{"routes were changed: aa 2"}},
		{"two lost and one new", nil, want("a", "b"), want("a", "b", "c"), []string{"routes were missing: a and 1 more"}},
		{"a stranger", []string{"a", "x"}, want("a"), want("a"), []string{"foreign routes were there: x 1"}},
		{"a stranger and a removed one", []string{"a", "b", "x"}, want("a", "b"), want("a"), []string{"foreign routes were there: x 1"}},
		{"lost and no longer wanted", nil, want("a"), want(), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var journal []string
			tab := newTable("route", &journal, tt.have...)
			result, err := Apply(t.Context(), Want("route", tab, cmp.Compare[string], tt.want, &tt.last))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range result.Repaired() {
				got = append(got, r.String())
			}
			if !slices.Equal(got, tt.repaired) {
				t.Errorf("repaired %q, want %q", got, tt.repaired)
			}
		})
	}
}

// TestFill checks that Fill adds what is missing and leaves the rest alone.
func TestFill(t *testing.T) {
	var journal []string
	tab, last := newTable("route", &journal, "aa", "x"), map[string]int{"b": 1}
	result, err := Fill(t.Context(), Want("route", tab, cmp.Compare[string], map[string]int{"aa": 7, "b": 1}, &last))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := Dump(tab.entries, cmp.Compare[string]), "aa 2\nb 1\nx 1\n"; got != want {
		t.Errorf("table %q, want %q", got, want)
	}
	if got := fmt.Sprint(result.Repaired()); got != "[routes were missing: b]" || result.Writes() != 1 {
		t.Errorf("repaired %s, %d writes", got, result.Writes())
	}
}

// TestLast checks what counts as a repair after an Apply that could not write everything, or a Fill.
func TestLast(t *testing.T) {
	broken := errors.New("broken")
	tests := []struct {
		name     string
		first    func(t *table)
		apply    func(context.Context, ...Step) (Result, error)
		last     string // after the first
		second   func(t *table)
		repaired string
	}{
		{"an entry could not be added", func(t *table) { t.refuse = map[string]error{"b": broken} }, Apply,
			"a 1\nccc 3\n", func(t *table) { delete(t.entries, "a") }, "[routes were missing: a]"},
		{"a changed one could not be corrected", func(t *table) { t.refuse, t.entries["a"] = map[string]error{"a": broken}, 7 }, Apply,
			"a 1\nb 1\nccc 3\n", func(*table) {}, "[routes were changed: a 7]"},
		{"a foreign one could not be deleted", func(t *table) { t.refuse, t.entries["x"] = map[string]error{"x": broken}, 7 }, Apply,
			"a 1\nb 1\nccc 3\n", func(*table) {}, "[foreign routes were there: x 7]"},
		{"the listing was interrupted", func(t *table) { t.listErr, t.partial = broken, true }, Apply,
			"a 1\nccc 2\n", func(t *table) { delete(t.entries, "a") }, "[routes were missing: a]"},
		{"the listing failed", func(t *table) { t.listErr = broken }, Apply,
			"a 1\nccc 2\n", func(t *table) { delete(t.entries, "a") }, "[routes were missing: a]"},
		{"only what was missing was added", func(t *table) { t.entries["a"] = 7 }, Fill,
			"a 1\nb 1\nccc 2\n", func(*table) {}, "[routes were changed: a 7]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var journal []string
			tab, last := newTable("route", &journal, "a"), map[string]int{"a": 1, "ccc": 2}
			tab.entries["ccc"] = 2
			tt.first(tab)
			step := func() Step { return Want("route", tab, cmp.Compare[string], want("a", "b", "ccc"), &last) }
			if _, err := tt.apply(t.Context(), step()); err != nil && !errors.Is(err, broken) {
				t.Fatal(err)
			}
			if got := Dump(last, cmp.Compare[string]); got != tt.last {
				t.Errorf("last\n%swant\n%s", got, tt.last)
			}
			tab.refuse, tab.listErr = nil, nil
			tt.second(tab)
			result, err := Apply(t.Context(), step())
			if got := fmt.Sprint(result.Repaired()); got != tt.repaired || err != nil {
				t.Errorf("repaired %s, want %s, error %v", got, tt.repaired, err)
			}
		})
	}
}

func TestExplain(t *testing.T) {
	r := Result{{Name: "address", Missing: Drift{N: 1, First: "a"}}, {Name: "route", Missing: Drift{N: 2, First: "b"}, Foreign: Drift{N: 1, First: "c"}}}
	if !r.Lost("address") || r.Lost("neighbour") {
		t.Error("lost what was not, or the reverse")
	}
	got := fmt.Sprint(r.Explain("route", "neighbour").Repaired())
	if want := "[addresses were missing: a foreign routes were there: c]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if r[1].Missing.N != 2 {
		t.Error("the result itself was changed")
	}
}

// TestApplyStatesInAnyOrder checks that in any sequence each state leaves the same tables as it
// does on a new machine, and a second Apply writes nothing.
func TestApplyStatesInAnyOrder(t *testing.T) {
	states := []map[string]int{{}, want("a"), want("a", "bb", "ccc"), {"a": 7, "bb": 8}, want("ccc", "dddd"), {"dddd": 1}}
	rnd := seed.Rand(t)
	var journal []string
	tab := newTable("route", &journal)
	var last map[string]int
	for range 500 {
		state := states[rnd.IntN(len(states))]
		if rnd.IntN(4) == 0 {
			tab.entries[fmt.Sprint("stray", rnd.IntN(3))] = 1
		}
		if _, err := Apply(t.Context(), Want("route", tab, cmp.Compare[string], state, &last)); err != nil {
			t.Fatal(err)
		}
		if got, want := Dump(tab.entries, cmp.Compare[string]), Dump(state, cmp.Compare[string]); got != want {
			t.Fatalf("table\n%swant\n%s", got, want)
		}
		again, err := Apply(t.Context(), Want("route", tab, cmp.Compare[string], state, &last))
		if err != nil || again.Writes() != 0 {
			t.Fatalf("second apply: %+v, %v", again, err)
		}
	}
}
