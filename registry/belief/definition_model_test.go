package belief

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/internal/testkit/seed"
	"github.com/lenonet/leno/registry"
)

// A definitions is a store with the record of one network, and hosts that use the network. The store is emptied and set
// back, and operators change, delete and define the network.
type definitions struct {
	t   *testing.T
	rnd *rand.Rand

	stored    defined
	snapshots []defined
	hosts     [3]*Definition       // as they know the network
	written   map[string]time.Time // by revision
}

// defined is what a store says of the network.
type defined struct {
	network  registry.Network
	deletion *registry.Deletion // instead of the network, nil for none
	index    uint64
}

// first returns the first revision of a network, which all its changes have in common.
func first(n registry.Network) string {
	if len(n.Earlier) > 0 {
		return n.Earlier[0]
	}
	return n.Revision
}

// read returns the store's answer.
func (w *definitions) read() (registry.Network, error) {
	switch s := w.stored; {
	case s.deletion != nil:
		return registry.Network{}, &registry.DeletedError{Deletion: *s.deletion}
	case s.network.Name == "":
		return registry.Network{}, registry.ErrNetworkNotFound
	}
	return w.stored.network, nil
}

// write stores a definition, or a deletion, in the record of the network.
func (w *definitions) write(n registry.Network, d *registry.Deletion) {
	s := &w.stored
	s.index++
	created := max(s.network.CreateIndex, s.index)
	if s.network.CreateIndex != 0 {
		created = s.network.CreateIndex
	}
	n.CreateIndex, n.ModifyIndex = created, s.index
	if w.written[n.Revision].IsZero() {
		w.written[n.Revision] = time.Now()
	}
	if s.network, s.deletion = n, nil; d != nil {
		copied := *d
		copied.CreateIndex, copied.ModifyIndex = created, s.index
		s.deletion = &copied
	}
	w.t.Logf("at %d: revision %q, generation %d, deleted %t", s.index, n.Revision, n.Generation, d != nil)
}

// look lets a host compare what it knows with the store, and do what hosts do.
func (w *definitions) look(i int) {
	n, err := w.read()
	known := w.hosts[i]
	switch verdict := known.Judge(n, err); verdict {
	case InForce:
		w.hosts[i], _ = known.Confirm(n, time.Now())
		if known != nil && first(n) == first(known.Network) && n.Generation < known.Network.Generation {
			w.t.Fatalf("host %d goes back to generation %d from %d", i, n.Generation, known.Network.Generation)
		}
	case Lost:
		n := known.Network.Restoring(0)
		n.Restored = n.Restored.Add(time.Duration(i-1) * 40 * 24 * time.Hour) // by the clock of the host
		w.write(n, nil)
	case Ended:
		deleted := &registry.DeletedError{}
		if known != nil && errors.As(err, &deleted) && !slices.Contains(deleted.Earlier, first(known.Network)) &&
			deleted.Revision != first(known.Network) && deleted.Time.Before(w.written[known.Network.Revision]) {
			w.t.Fatalf("host %d ends %+v, which was written later: %+v", i, known.Network, deleted)
		}
		w.hosts[i] = nil
	case NoAnswer:
		if known != nil {
			w.t.Fatalf("host %d no longer knows %+v", i, known.Network)
		}
	default:
		w.t.Fatalf("host %d: verdict %d of %+v, %v", i, verdict, n, err)
	}
}

// step lets something happen.
func (w *definitions) step() {
	time.Sleep(time.Duration(w.rnd.IntN(5)) * time.Second)
	i := w.rnd.IntN(len(w.hosts))
	n, err := w.read()
	switch w.rnd.IntN(12) {
	case 0, 1: // an operator changes the network by way of a host, which says what is in force
		if w.hosts[i].Judge(n, err) == Lost {
			n, err = w.hosts[i].Network, nil
		}
		if err == nil {
			w.write(n.Replacing(n), nil)
		}
	case 2:
		if err == nil && w.rnd.IntN(3) == 0 {
			d := registry.NewDeletion(n.Name, n)
			w.write(n, &d)
		}
	case 3:
		if deleted := (&registry.DeletedError{}); errors.As(err, &deleted) {
			w.write(registry.Network{Name: "n"}.Replacing(registry.Network{Lineage: deleted.Lineage}), nil)
		} else if err != nil && w.hosts[i] == nil { // the host knows of no earlier one
			w.write(registry.Network{Name: "n"}.Replacing(registry.Network{}), nil)
		}
	case 4:
		w.snapshots = append(w.snapshots, w.stored)
	case 5:
		if len(w.snapshots) > 0 {
			index := w.stored.index
			w.stored = w.snapshots[w.rnd.IntN(len(w.snapshots))]
			if w.rnd.IntN(2) == 0 {
				w.stored.index = index + 1
			}
			w.t.Logf("set back to revision %q at %d", w.stored.network.Revision, w.stored.index)
		}
	case 6:
		w.stored = defined{index: w.stored.index}
		w.t.Log("emptied")
	case 7: // the host's agent starts again
		if known := w.hosts[i]; known != nil {
			w.hosts[i] = &Definition{Network: known.Network, Used: known.Used}
		}
	default:
		w.look(i)
	}
}

// settleDown lets a quiet time pass, after which all hosts must have in force what the store has.
func (w *definitions) settleDown() {
	for range 8 {
		for i := range w.hosts {
			time.Sleep(2 * time.Second)
			w.look(i)
		}
	}
	n, err := w.read()
	for i, known := range w.hosts {
		if err != nil && known != nil || err == nil && (known == nil || known.Network.Revision != n.Revision) {
			w.t.Fatalf("host %d knows %+v, the store has %+v, %v", i, known, n, err)
		}
	}
}

// TestDefinitionModel drives hosts with random histories of a definition: no network ends without a deletion, no change
// that a host has seen is lost, and all hosts agree with the store after a quiet time.
func TestDefinitionModel(t *testing.T) {
	for i := range 300 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			rnd := seed.Rand(t)
			synctest.Test(t, func(t *testing.T) {
				w := &definitions{t: t, rnd: rnd, written: map[string]time.Time{}}
				w.write(registry.Network{Name: "n"}.Replacing(registry.Network{}), nil)
				for i := range w.hosts {
					w.look(i)
				}
				for range 60 {
					w.step()
				}
				w.settleDown()
			})
		})
	}
}
