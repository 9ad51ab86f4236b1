package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/backend"
)

// engine carries packets between the queues of one device and the sockets of one port, as directed
// by a table. The table can be replaced while packets flow. To exchange queues or sockets the lanes
// pause, and in the meantime packets wait in the kernel.
//
// The set methods, start, the alive methods and close must be called by one goroutine at a time.
// counters may be called by any goroutine.
type engine struct {
	log       hclog.Logger
	table     atomic.Pointer[table]
	unmatched counters // packets that belong to no peer

	devices ends[Device]
	binds   ends[Bind]
	lanes   []*lane // kept together with their buffers
	pausing atomic.Bool
	running sync.WaitGroup
	wake    *wakeup // wakes the running lanes, nil when there are none

	newWakeup func() (*wakeup, error) // newWakeup, except in tests
}

// ends holds the ends of one side of the engine. They change only while no lane runs.
type ends[T interface{ Close() error }] struct {
	all    []T
	broken atomic.Bool // one end can no longer be read
}

func newEngine(log hclog.Logger) *engine {
	e := &engine{log: log, newWakeup: newWakeup}
	e.table.Store(newTable(nil, nil, nil))
	return e
}

// setTable makes all further packets use another table.
func (e *engine) setTable(own []netip.Prefix, peers []peerPlan) {
	e.table.Store(newTable(own, peers, e.table.Load()))
}

// setDevices closes the queues in use and continues with others, which the engine then owns and
// closes. Without any, there is no device.
func (e *engine) setDevices(devices ...Device) error {
	e.pause()
	return errors.Join(e.devices.replace(devices), e.resume())
}

// setBinds closes the sockets in use and continues with others, which the engine then owns and
// closes. Without any, there is no path to the wire.
func (e *engine) setBinds(binds ...Bind) error {
	e.pause()
	return errors.Join(e.binds.replace(binds), e.resume())
}

// start replaces both sides in one step, so that packets waiting in the kernel on one side find the
// other side ready. An empty list leaves that side as it is. With two empty lists it only starts
// lanes that could not be started before.
func (e *engine) start(devices []Device, binds []Bind) error {
	if len(devices) == 0 && len(binds) == 0 && e.started() {
		return nil
	}
	e.pause()
	var errs []error
	if len(devices) > 0 {
		errs = append(errs, e.devices.replace(devices))
	}
	if len(binds) > 0 {
		errs = append(errs, e.binds.replace(binds))
	}
	return errors.Join(append(errs, e.resume())...)
}

// close stops the lanes and closes everything.
func (e *engine) close() error {
	e.pause()
	return errors.Join(e.binds.replace(nil), e.devices.replace(nil))
}

// pause stops the lanes and waits for them.
func (e *engine) pause() {
	if e.wake == nil {
		return
	}
	e.pausing.Store(true)
	e.wake.ring()
	e.running.Wait()
	e.wake.close()
	e.wake = nil
	e.pausing.Store(false)
}

// started reports whether lanes carry packets.
func (e *engine) started() bool { return e.wake != nil }

// resume runs a lane for each queue and each socket; lane i serves the i-th of both. If it fails,
// no lane runs, and the next call of start tries again.
func (e *engine) resume() error {
	n := max(len(e.devices.all), len(e.binds.all))
	if n == 0 {
		return nil
	}
	wake, err := e.newWakeup()
	if err != nil {
		return fmt.Errorf("start the forwarder: %w", err)
	}
	e.wake = wake
	for len(e.lanes) < n {
		e.lanes = append(e.lanes, newLane(e))
	}
	for i, l := range e.lanes[:n] {
		l.take(i)
		e.running.Go(l.run)
	}
	return nil
}

// lost records that an end can no longer be read and logs it. Apply opens the end again.
func (e *engine) lost(end string, broken *atomic.Bool, err error) {
	broken.Store(true)
	level := hclog.Warn
	if deleted(err) {
		level = hclog.Debug // Apply reports it
	}
	e.log.Log(level, "forwarder stopped reading", "end", end, "error", err)
}

// counters returns the counters by peer; packets that belong to no peer are counted under "".
func (e *engine) counters() map[string]backend.Counters {
	out := map[string]backend.Counters{"": e.unmatched.snapshot()}
	for _, p := range e.table.Load().peers {
		out[p.node] = p.count.snapshot()
	}
	return out
}

// counts returns a peer's counters; for nil, those of packets without a peer.
func (e *engine) counts(p *peer) *counters {
	if p == nil {
		return &e.unmatched
	}
	return p.count
}

func (s *ends[T]) replace(all []T) error {
	var errs []error
	for _, end := range s.all {
		errs = append(errs, end.Close())
	}
	s.all = all
	s.broken.Store(false)
	return errors.Join(errs...)
}

// at returns the i-th end, and wraps around when the other side has more. ok is false when there is
// none.
func (s *ends[T]) at(i int) (end T, ok bool) {
	if len(s.all) == 0 {
		return end, false
	}
	return s.all[i%len(s.all)], true
}

// alive reports whether there are any ends and all of them can still be read.
func (s *ends[T]) alive() bool { return len(s.all) > 0 && !s.broken.Load() }
