// Package reconcile makes tables of keyed entries equal to the wanted ones: it lists the existing
// entries, adds or corrects those that are missing or different, and deletes those that are not
// wanted. It owns the order and the safety rules, and does not know what the entries are or where
// they are kept.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lenonet/leno/backend"
)

// A Table is a keyed set of entries, all of which the caller owns.
type Table[K, V comparable] interface {
	// List returns every entry. With an error the entries may be incomplete: nil when nothing is
	// known, otherwise those that were read. It may block.
	List(ctx context.Context) (map[K]V, error)

	// Write makes the changes in order and continues past single failures. It returns nil when all
	// succeeded, otherwise one error or nil per change. Deleting an entry that is already gone
	// succeeds; adding one that already exists fails.
	Write(ctx context.Context, changes []Change[K, V]) []error
}

// Change is an entry to add (Old is nil), to delete (New is nil) or to replace.
type Change[K, V comparable] struct {
	Key      K
	Old, New *V
}

// Count counts what was done to one table.
type Count struct {
	Name                    string
	Part                    backend.Part
	Added, Changed, Deleted int // successful writes

	// Writes not explained by a difference between the previous want and this one: another program
	// changed the table.
	Missing, Altered, Foreign Drift
}

// Drift counts the entries of a table that another program removed, changed or added.
type Drift struct {
	N     int
	First string // the first of them in key order, with the value it had
}

func (d *Drift) add(first string) {
	if d.N++; d.N == 1 {
		d.First = first
	}
}

func (d Drift) String() string {
	if d.N > 1 {
		return fmt.Sprintf("%s and %d more", d.First, d.N-1)
	}
	return d.First
}

// Writes returns the number of changes made.
func (c Count) Writes() int { return c.Added + c.Changed + c.Deleted }

// Result describes what one Apply did: one Count per step, in the order of the steps.
type Result []Count

// Writes returns the number of changes made to all tables.
func (r Result) Writes() int {
	n := 0
	for _, c := range r {
		n += c.Writes()
	}
	return n
}

// Repaired describes the repairs: "routes were missing", "10.5.2.0/24 and 2 more".
func (r Result) Repaired() []backend.Repair {
	var out []backend.Repair
	for _, c := range r {
		for _, part := range []struct {
			drift Drift
			fault string
		}{
			{c.Missing, plural(c.Name) + " were missing"},
			{c.Altered, plural(c.Name) + " were changed"},
			{c.Foreign, "foreign " + plural(c.Name) + " were there"},
		} {
			if part.drift.N > 0 {
				out = append(out, backend.Repair{Part: c.Part, Fault: part.fault, Detail: part.drift.String()})
			}
		}
	}
	return out
}

// Lost reports whether entries of a table were missing.
func (r Result) Lost(name string) bool {
	return slices.ContainsFunc(r, func(c Count) bool { return c.Name == name && c.Missing.N > 0 })
}

// Explain returns the result without the missing entries of the named tables, for when the loss of
// something else already explains them.
func (r Result) Explain(names ...string) Result {
	out := slices.Clone(r)
	for i := range out {
		if slices.Contains(names, out[i].Name) {
			out[i].Missing = Drift{}
		}
	}
	return out
}

// A Step is one table with the entries wanted in it.
type Step interface {
	list(ctx context.Context) error
	// if missing, adds only what is missing; otherwise also corrects what differs
	put(ctx context.Context, missing bool) error
	remove(ctx context.Context, missing bool) error // if missing, removes nothing
	putRefused(ctx context.Context) error           // repeats what put could not write
	remember()
	count() Count
	about(p backend.Part)
}

// Want returns a step. name is the singular name of an entry: "route". compare orders keys, so that
// equal input gives equal writes in equal order. last is what the table has had since the Apply
// before, a nil map if unknown; it only serves to tell repairs from changes and decides nothing.
// Apply replaces it, unless the listing fails. It may be nil.
func Want[K, V comparable](name string, t Table[K, V], compare func(a, b K) int, want map[K]V, last *map[K]V) Step {
	s := &step[K, V]{name: name, table: t, compare: compare, want: want, memory: last,
		done: Count{Name: name, Part: backend.Routes}}
	if last != nil {
		s.last = *last
	}
	return s
}

// OfDevice marks a step as part of the network's device. Steps not marked belong to Routes.
func OfDevice(s Step) Step {
	s.about(backend.Device)
	return s
}

// Apply lists all tables, then adds and corrects entries in the order of the steps, then deletes in
// the reverse order, so that entries others depend on come first and go last. Entries that could not
// be written are tried again after something was deleted, which may have forbidden them: Linux
// refuses a route through an address that this host has. Nothing is deleted from a table whose
// listing failed. Failures are joined and do not stop the other steps.
func Apply(ctx context.Context, steps ...Step) (Result, error) { return apply(ctx, false, steps) }

// Fill is like Apply, for wants that may be incomplete or out of date: it adds what is missing and
// neither changes nor deletes existing entries.
func Fill(ctx context.Context, steps ...Step) (Result, error) { return apply(ctx, true, steps) }

func apply(ctx context.Context, missing bool, steps []Step) (Result, error) {
	var errs []error
	for _, s := range steps {
		errs = append(errs, backend.About(s.count().Part, s.list(ctx)))
	}
	puts := make([]error, len(steps))
	for i, s := range steps {
		puts[i] = s.put(ctx, missing)
	}
	deleted := 0
	for _, s := range slices.Backward(steps) {
		errs = append(errs, backend.About(s.count().Part, s.remove(ctx, missing)))
		deleted += s.count().Deleted
	}
	result := make(Result, 0, len(steps))
	for i, s := range steps {
		if puts[i] != nil && deleted > 0 {
			puts[i] = s.putRefused(ctx)
		}
		s.remember()
		errs = append(errs, backend.About(s.count().Part, puts[i]))
		result = append(result, s.count())
	}
	return result, errors.Join(errs...)
}

type step[K, V comparable] struct {
	name       string
	table      Table[K, V]
	compare    func(a, b K) int
	want, last map[K]V
	memory     *map[K]V // where last comes from

	have     map[K]V
	complete bool
	refused  []Change[K, V] // what put could not write
	left     []Change[K, V] // what was not to be corrected, or was not deleted
	done     Count
}

func (s *step[K, V]) count() Count { return s.done }

func (s *step[K, V]) about(p backend.Part) { s.done.Part = p }

func (s *step[K, V]) list(ctx context.Context) error {
	have, err := s.table.List(ctx)
	s.have, s.complete = have, err == nil
	if err != nil {
		return fmt.Errorf("list %s: %w", plural(s.name), err)
	}
	return nil
}

func (s *step[K, V]) put(ctx context.Context, missing bool) error {
	if s.have == nil && !s.complete {
		return nil
	}
	var changes []Change[K, V]
	for k, v := range s.want {
		old, ok := s.have[k]
		switch {
		case !ok:
			changes = append(changes, Change[K, V]{Key: k, New: &v})
		case old != v && missing:
			s.left = append(s.left, Change[K, V]{Key: k, Old: &old, New: &v})
		case old != v:
			changes = append(changes, Change[K, V]{Key: k, Old: &old, New: &v})
		}
	}
	var err error
	s.refused, err = s.write(ctx, "put", changes)
	return err
}

func (s *step[K, V]) putRefused(ctx context.Context) (err error) {
	s.refused, err = s.write(ctx, "put", s.refused)
	return err
}

func (s *step[K, V]) remove(ctx context.Context, missing bool) error {
	if !s.complete {
		return nil
	}
	var changes []Change[K, V]
	for k, v := range s.have {
		if _, ok := s.want[k]; !ok {
			changes = append(changes, Change[K, V]{Key: k, Old: &v})
		}
	}
	if missing {
		s.left = append(s.left, changes...)
		return nil
	}
	refused, err := s.write(ctx, "delete", changes)
	s.left = append(s.left, refused...)
	return err
}

// remember replaces last by what the table has now: what is wanted, except for what was not written. What is there
// as other programs have made it counts as it was before that.
func (s *step[K, V]) remember() {
	if s.memory == nil || !s.complete {
		return
	}
	has := s.want
	if unwritten := append(s.left, s.refused...); len(unwritten) > 0 {
		has = make(map[K]V, len(s.want))
		maps.Copy(has, s.want)
		for _, c := range unwritten {
			switch before, known := s.last[c.Key]; {
			case c.Old != nil && known:
				has[c.Key] = before
			case c.Old != nil && s.last == nil:
				has[c.Key] = *c.Old
			default:
				delete(has, c.Key)
			}
		}
	}
	*s.memory = has
}

// write makes the changes, and returns those that were not made.
func (s *step[K, V]) write(ctx context.Context, verb string, changes []Change[K,
	V]) (refused []Change[K, V], err error) {
	if len(changes) == 0 {
		return nil, nil
	}
	if err := ctx.Err(); err != nil {
		return changes, fmt.Errorf("%s %s: %w", verb, plural(s.name), err)
	}
	slices.SortFunc(changes, func(a, b Change[K, V]) int { return s.compare(a.Key, b.Key) })
	results := s.table.Write(ctx, changes)
	var errs []error
	for i, c := range changes {
		if results != nil && results[i] != nil {
			refused = append(refused, c)
			errs = append(errs, fmt.Errorf("%s %s %v: %w", verb, s.name, c.Key, results[i]))
			continue
		}
		s.tally(c)
	}
	return refused, errors.Join(errs...)
}

// tally counts one successful write, and also counts it as a repair if a change of the want does
// not explain it.
func (s *step[K, V]) tally(c Change[K, V]) {
	before, known := s.last[c.Key]
	unchanged := known && c.New != nil && before == *c.New
	switch {
	case c.New == nil:
		s.done.Deleted++
		if s.last != nil && !known {
			s.done.Foreign.add(entry(c.Key, *c.Old))
		}
	case c.Old == nil:
		s.done.Added++
		if unchanged {
			s.done.Missing.add(fmt.Sprint(c.Key))
		}
	default:
		s.done.Changed++
		if unchanged {
			s.done.Altered.add(entry(c.Key, *c.Old))
		}
	}
}

// entry returns the key with the value it had.
func entry(key, value any) string { return strings.TrimSpace(fmt.Sprintf("%v %v", key, value)) }

func plural(name string) string {
	if stem, ok := strings.CutSuffix(name, "entry"); ok {
		return stem + "entries"
	}
	if strings.HasSuffix(name, "s") {
		return name + "es"
	}
	return name + "s"
}

// Dump returns a table's entries as text, one per line in key order, for tests and for people.
func Dump[K, V comparable](entries map[K]V, compare func(a, b K) int) string {
	var out []byte
	for _, k := range slices.SortedFunc(maps.Keys(entries), compare) {
		out = fmt.Appendf(out, "%v %v\n", k, entries[k])
	}
	return string(out)
}
