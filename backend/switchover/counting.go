package switchover

import (
	"errors"

	"github.com/lenonet/leno/backend"
)

// Counting returns a counter and a meter of the traffic over all instances, by peer and in total. Each is nil if no
// instance has one.
func (b *Backend) Counting() (backend.Counter, backend.Meter) {
	var counter backend.Counter
	var meter backend.Meter
	for _, c := range *b.counting.Load() {
		if _, ok := c.(backend.Counter); ok {
			counter = counting{b}
		}
		if _, ok := c.(backend.Meter); ok {
			meter = counting{b}
		}
	}
	return counter, meter
}

// Encrypted returns a counter of the traffic with the peers that are reached over a backend that encrypts, or nil if there is
// no such backend. It must be called between two passes.
func (b *Backend) Encrypted() backend.Counter {
	out := encrypted{}
	for _, c := range b.instances() {
		counter, ok := c.backend.(backend.Counter)
		switch {
		case !ok || !b.types[c.Type].Encrypts:
		case b.next == nil:
			return counter
		default:
			out = append(out, share{counter, func(node string) bool { return b.assigned[node] == c }})
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// encrypted counts with the instances that encrypt.
type encrypted []share

// A share is what one instance counts for its peers.
type share struct {
	backend.Counter
	has func(node string) bool
}

// Counters implements backend.Counter.
func (e encrypted) Counters() map[string]backend.Counters {
	out := map[string]backend.Counters{}
	for _, s := range e {
		for node, n := range s.Counters() {
			if s.has(node) {
				out[node] = n
			}
		}
	}
	return out
}

// counting adds up what the instances count.
type counting struct{ of *Backend }

// Counters implements backend.Counter.
func (c counting) Counters() map[string]backend.Counters {
	out := map[string]backend.Counters{}
	for _, each := range *c.of.counting.Load() {
		if counter, ok := each.(backend.Counter); ok {
			for node, n := range counter.Counters() {
				out[node] = out[node].Plus(n)
			}
		}
	}
	return out
}

// Totals implements backend.Meter.
func (c counting) Totals() (backend.Counters, error) {
	var out backend.Counters
	var errs []error
	for _, each := range *c.of.counting.Load() {
		if meter, ok := each.(backend.Meter); ok {
			n, err := meter.Totals()
			out, errs = out.Plus(n), append(errs, err)
		}
	}
	return out, errors.Join(errs...)
}
