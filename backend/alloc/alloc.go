// Package alloc implements the backend without a datapath: hosts lease subnets, and something else
// carries the packets (a cloud's route table, a routing daemon). It owns nothing in the kernel and
// never touches it.
package alloc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lenonet/leno/backend"
)

// Name is the type's name in a network's record.
const Name = "alloc"

// Type describes the backend. It has no options.
func Type() backend.Type {
	return backend.Type{Name: Name, Normalize: normalize, New: newBackend}
}

var normalize = backend.Normalizer(func(raw json.RawMessage) (struct{}, error) {
	return struct{}{}, errors.Join(backend.DecodeOptions(Name, raw, nil)...)
})

type alloc struct{}

var _ backend.Backend = alloc{}

func newBackend(backend.Config) (backend.Backend, error) { return alloc{}, nil }

// Advertise publishes the underlay's MTU, because nothing is added to packets.
func (alloc) Advertise(u backend.Underlay) (backend.Advertisement, error) {
	return backend.Advertisement{MTU: u.MTU, Attributes: json.RawMessage(`{}`)}, nil
}

// Apply counts the peers that also run alloc and lists the others as skipped.
func (alloc) Apply(_ context.Context, s backend.State) (backend.Report, error) {
	var report backend.Report
	if s.Zero() {
		return report, nil
	}
	for _, p := range s.Peers {
		if p.Backend != Name {
			report.Skipped = append(report.Skipped, backend.Skip{Node: p.Node, Reason: fmt.Sprintf("runs backend %q",
				p.Backend)})
			continue
		}
		report.Peers++
	}
	return report, nil
}

func (alloc) Abilities() backend.Abilities { return backend.Abilities{} }

func (alloc) Close() error { return nil }
