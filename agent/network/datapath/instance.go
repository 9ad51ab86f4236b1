package datapath

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/transition"
)

// An Instance is a backend, the configuration it was built from, and the datapath that it was given. It can outlive its
// Reconciler: the next one takes it over, so that packets keep flowing through the process.
type Instance struct {
	backend backend.Backend
	kind    string
	config  backend.Config
	lent    *lent

	content atomic.Pointer[peers.View] // what the backend was given last, nil for nothing

	one sync.Mutex // held during calls of the backend's methods: one goroutine at a time
}

// Close closes the backend; its datapath in the kernel stays.
func (i *Instance) Close() error {
	defer i.lent.set(0)
	if err := i.backend.Close(); err != nil {
		return fmt.Errorf("close backend %s of network %s: %w", i.kind, i.config.Network, err)
	}
	return nil
}

func (i *Instance) advertise(u backend.Underlay) (backend.Advertisement, error) {
	i.one.Lock()
	defer i.one.Unlock()
	return i.backend.Advertise(u)
}

func (i *Instance) apply(ctx context.Context, s backend.State) (backend.Report, error) {
	i.one.Lock()
	defer i.one.Unlock()
	return i.backend.Apply(ctx, s)
}

// takes reports whether the backend has the given configuration, after changing it if necessary. err is why a backend
// that can change could not; nil if it cannot.
func (i *Instance) takes(kind backend.Type, c backend.Config) (taken bool, err error) {
	i.one.Lock()
	defer i.one.Unlock()
	if i.kind == kind.Name && string(i.config.Options) == string(c.Options) && slices.Equal(i.config.Pools, c.Pools) {
		return true, nil
	}
	switch b := i.backend.(type) {
	case *transition.Backend:
		if err := b.ChangeTo(kind.Name, c); err != nil {
			return false, err
		}
		i.lent.set(i.threads(kind))
	case backend.Changer:
		if i.kind != kind.Name {
			return false, nil
		}
		if err := b.Change(c); err != nil {
			return false, err
		}
	default:
		return false, nil
	}
	i.kind, i.config = kind.Name, c
	return true, nil
}

// threads returns how many threads the backend has; see backend.Type.
func (i *Instance) threads(kind backend.Type) int {
	if b, ok := i.backend.(*transition.Backend); ok {
		return b.Threads()
	}
	return kind.Threads
}

// counting returns what counts the traffic by peer and in total; nil for what the backend does not count.
func (i *Instance) counting() (backend.Counter, backend.Meter) {
	if b, ok := i.backend.(*transition.Backend); ok {
		return b.Counting()
	}
	counter, _ := i.backend.(backend.Counter)
	meter, _ := i.backend.(backend.Meter)
	return counter, meter
}

// encrypted returns a counter of the traffic with the peers that are reached over a backend that encrypts, or nil if there is
// no such backend.
func (i *Instance) encrypted(types map[string]backend.Type) backend.Counter {
	if b, ok := i.backend.(*transition.Backend); ok {
		return b.Encrypted()
	}
	if !types[i.kind].Encrypts {
		return nil
	}
	counter, _ := i.backend.(backend.Counter)
	return counter
}
