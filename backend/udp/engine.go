package udp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/backend"
)

// engine carries packets between the queues of one device and the sockets of
// one port by a table. Each of the three can be replaced while packets flow. A
// goroutine reads from each queue and each socket and writes by itself what it
// read, so that packets of one flow, which the kernel keeps to one queue or
// socket, stay in order.
//
// The set methods, the alive methods and close are called by one goroutine at a
// time; counters by any.
type engine struct {
	log     hclog.Logger
	table   atomic.Pointer[table]
	devices ends[Device]
	binds   ends[Bind]
	nobody  counters // packets that are no peer's
}

func newEngine(log hclog.Logger) *engine {
	e := &engine{log: log}
	e.table.Store(newTable(nil, nil, nil))
	return e
}

// setTable makes the packets that follow go by another table.
func (e *engine) setTable(own []netip.Prefix, peers []peerPlan) {
	e.table.Store(newTable(own, peers, e.table.Load()))
}

// setDevices closes the queues in use and goes on with others, which the engine
// closes in their turn; without any there is no device.
func (e *engine) setDevices(devices ...Device) error {
	err := e.devices.stop()
	e.start(devices, nil)
	return err
}

// setBinds closes the sockets in use and goes on with others, which the engine
// closes in their turn; without any there is no way to the wire.
func (e *engine) setBinds(binds ...Bind) error {
	err := e.binds.stop()
	e.start(nil, binds)
	return err
}

// start puts ends in places that are empty, and only then reads from them: what
// waits in the kernel at one side must find the other. None leaves a place as
// it is.
func (e *engine) start(devices []Device, binds []Bind) {
	e.devices.put(devices)
	e.binds.put(binds)
	e.devices.read(devices, func(i int, d Device) { e.report("device", e.fromDevice(i, d)) })
	e.binds.read(binds, func(i int, b Bind) { e.report("socket", e.fromWire(i, b)) })
}

// close ends all readers and waits for them. The sockets go first: one may be
// what a device's reader is blocked on.
func (e *engine) close() error { return errors.Join(e.setBinds(), e.setDevices()) }

// counters are by peer; what belongs to no peer stands under "".
func (e *engine) counters() map[string]backend.Counters {
	out := map[string]backend.Counters{"": e.nobody.snapshot()}
	for _, p := range e.table.Load().peers {
		out[p.node] = p.count.snapshot()
	}
	return out
}

// counts are a peer's counters, or those of no peer.
func (e *engine) counts(p *peer) *counters {
	if p == nil {
		return &e.nobody
	}
	return p.count
}

// report tells of a reader that ended by itself, once: Apply starts it anew.
func (e *engine) report(end string, err error) {
	if !errors.Is(err, os.ErrClosed) && !errors.Is(err, net.ErrClosed) {
		e.log.Warn("forwarder stopped reading", "end", end, "error", err)
	}
}

// ends are one side of the engine: its queues or its sockets, and the
// goroutines that read from them.
type ends[T interface{ Close() error }] struct {
	current atomic.Pointer[[]T] // nil while there are none
	readers sync.WaitGroup
	broken  atomic.Bool // a reader has ended
}

// writer is the end that the i-th reader of the other side writes to. ok is
// false when there is none.
func (s *ends[T]) writer(i int) (end T, ok bool) {
	all := s.current.Load()
	if all == nil {
		return end, false
	}
	return (*all)[i%len(*all)], true
}

func (s *ends[T]) put(all []T) {
	if len(all) > 0 {
		s.broken.Store(false)
		s.current.Store(&all)
	}
}

// read starts a reader of each.
func (s *ends[T]) read(all []T, read func(i int, end T)) {
	for i, end := range all {
		s.readers.Go(func() {
			read(i, end)
			s.broken.Store(true)
		})
	}
}

func (s *ends[T]) stop() error {
	all := s.current.Swap(nil)
	if all == nil {
		return nil
	}
	var errs []error
	for _, end := range *all {
		errs = append(errs, end.Close())
	}
	s.readers.Wait()
	return errors.Join(errs...)
}

// alive says whether there are any and all of them can still be read.
func (s *ends[T]) alive() bool { return s.current.Load() != nil && !s.broken.Load() }
