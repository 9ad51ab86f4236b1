package datapath

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/switchover"
)

// An Instance is a network's backends, what they were built from, and the datapath that they were given. It can outlive
// its Reconciler: the next one takes it over, so that packets keep flowing through the process.
type Instance struct {
	backend    *switchover.Backend
	definition switchover.Definition
	config     backend.Config
	lent       *lent

	content atomic.Pointer[peers.View] // what the backends were given last, nil for nothing

	one sync.Mutex // held during calls of the backend's methods: one goroutine at a time
}

// kind returns the type of the network's backend.
func (i *Instance) kind() string { return i.definition.Current.Type }

// Close closes the backend; its datapath in the kernel stays.
func (i *Instance) Close() error {
	defer i.lent.set(0)
	if err := i.backend.Close(); err != nil {
		return fmt.Errorf("close backend %s of network %s: %w", i.kind(), i.config.Network, err)
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

// takes makes the backends those of a definition and a configuration with the same effective options, if that is
// possible without an interruption. If not, the error says why.
func (i *Instance) takes(d switchover.Definition, c backend.Config) error {
	i.one.Lock()
	defer i.one.Unlock()
	if reflect.DeepEqual(i.definition, d) && slices.Equal(i.config.Pools, c.Pools) {
		return nil
	}
	if err := i.backend.ChangeTo(d, c); err != nil {
		return err
	}
	i.lent.set(i.backend.Threads())
	i.definition, i.config = d, c
	return nil
}
