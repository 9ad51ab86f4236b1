package switchover

import (
	"errors"

	"github.com/lenonet/leno/backend"
)

// Abilities implements backend.Backend. It counts the traffic over all instances, by peer and in total. The result is
// valid until ChangeTo is called.
func (b *Backend) Abilities() (out backend.Abilities) {
	var all counters
	var totals meters
	for _, c := range b.instances() {
		can := c.backend.Abilities()
		if can.Counters != nil {
			all = append(all, can.Counters)
			out.Counters = all.sum
		}
		if can.Totals != nil {
			totals = append(totals, can.Totals)
			out.Totals = totals.sum
		}
	}
	return out
}

// Encrypted returns what was exchanged with the peers that are reached over a backend that encrypts, nil if there is no
// such backend. It must be called between two passes.
func (b *Backend) Encrypted() (out map[string]backend.Counters) {
	for _, c := range b.instances() {
		count := c.backend.Abilities().Counters
		if count == nil || !b.types[c.Type].Encrypts {
			continue
		}
		if out == nil {
			out = map[string]backend.Counters{}
		}
		for node, n := range count() {
			if b.next == nil || b.assigned[node] == c {
				out[node] = n
			}
		}
	}
	return out
}

// counters adds up what instances count.
type counters []func() map[string]backend.Counters

func (c counters) sum() map[string]backend.Counters {
	out := map[string]backend.Counters{}
	for _, each := range c {
		for node, n := range each() {
			out[node] = out[node].Plus(n)
		}
	}
	return out
}

// meters adds up what instances measure.
type meters []func() (backend.Counters, error)

func (m meters) sum() (out backend.Counters, err error) {
	for _, each := range m {
		n, failed := each()
		out, err = out.Plus(n), errors.Join(err, failed)
	}
	return out, err
}
