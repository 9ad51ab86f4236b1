package switchover

import (
	"errors"

	"github.com/lenonet/leno/backend"
)

// Counting returns a counter and a meter of the traffic over all instances, by peer and in total. Each is nil if no
// instance has one. Both are valid until ChangeTo is called.
func (b *Backend) Counting() (counter backend.Counter, meter backend.Meter) {
	var all counters
	var totals meters
	for _, c := range b.instances() {
		if one, ok := c.backend.(backend.Counter); ok {
			all = append(all, one)
			counter = all
		}
		if one, ok := c.backend.(backend.Meter); ok {
			totals = append(totals, one)
			meter = totals
		}
	}
	return counter, meter
}

// Encrypted returns what was exchanged with the peers that are reached over a backend that encrypts, nil if there is no
// such backend. It must be called between two passes.
func (b *Backend) Encrypted() (out map[string]backend.Counters) {
	for _, c := range b.instances() {
		counter, ok := c.backend.(backend.Counter)
		if !ok || !b.types[c.Type].Encrypts {
			continue
		}
		if out == nil {
			out = map[string]backend.Counters{}
		}
		for node, n := range counter.Counters() {
			if b.next == nil || b.assigned[node] == c {
				out[node] = n
			}
		}
	}
	return out
}

// counters adds up what instances count.
type counters []backend.Counter

// Counters implements backend.Counter.
func (c counters) Counters() map[string]backend.Counters {
	out := map[string]backend.Counters{}
	for _, each := range c {
		for node, n := range each.Counters() {
			out[node] = out[node].Plus(n)
		}
	}
	return out
}

// meters adds up what instances measure.
type meters []backend.Meter

// Totals implements backend.Meter.
func (m meters) Totals() (out backend.Counters, err error) {
	for _, each := range m {
		n, failed := each.Totals()
		out, err = out.Plus(n), errors.Join(err, failed)
	}
	return out, err
}
