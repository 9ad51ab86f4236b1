package udp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/backend"
)

// engine carries packets between one device and one bind by a table. Each of
// the three can be replaced while packets flow. The set methods, the alive
// methods and close are called by one goroutine at a time; counters by any.
type engine struct {
	log    hclog.Logger
	table  atomic.Pointer[table]
	device port[Device]
	bind   port[Bind]
	nobody counters // packets that are no peer's
}

// port is one end of the engine and the goroutine that reads from it.
type port[T interface{ Close() error }] struct {
	current atomic.Pointer[T] // nil while there is none
	done    chan struct{}     // closed when the reader has ended
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

// setDevice closes the device in use and goes on with another; nil is none.
// The engine closes what it was given.
func (e *engine) setDevice(d Device) error {
	err := e.device.stop()
	if d != nil {
		e.device.start(d, func() { e.report("device", e.fromDevice(d)) })
	}
	return err
}

// setBind closes the bind in use and goes on with another; nil is none.
// The engine closes what it was given.
func (e *engine) setBind(b Bind) error {
	err := e.bind.stop()
	if b != nil {
		e.bind.start(b, func() { e.report("socket", e.fromWire(b)) })
	}
	return err
}

// deviceAlive says whether there is a device and it can still be read.
func (e *engine) deviceAlive() bool { return e.device.alive() }

// bindAlive says whether there is a bind and it can still be read.
func (e *engine) bindAlive() bool { return e.bind.alive() }

// close ends both readers and waits for them. The bind goes first: it may be
// what the device's reader is blocked on.
func (e *engine) close() error { return errors.Join(e.setBind(nil), e.setDevice(nil)) }

// counters are by peer; what belongs to no peer stands under "".
func (e *engine) counters() map[string]backend.Counters {
	out := map[string]backend.Counters{"": e.nobody.snapshot()}
	for _, p := range e.table.Load().peers {
		out[p.node] = p.count.snapshot()
	}
	return out
}

// report tells of a reader that ended by itself, once: Apply starts it anew.
func (e *engine) report(end string, err error) {
	if !errors.Is(err, os.ErrClosed) && !errors.Is(err, net.ErrClosed) {
		e.log.Warn("forwarder stopped reading", "end", end, "error", err)
	}
}

func (p *port[T]) start(end T, read func()) {
	done := make(chan struct{})
	p.done = done
	p.current.Store(&end)
	go func() {
		defer close(done)
		read()
	}()
}

func (p *port[T]) stop() error {
	end := p.current.Swap(nil)
	if end == nil {
		return nil
	}
	err := (*end).Close()
	<-p.done
	return err
}

func (p *port[T]) alive() bool {
	if p.current.Load() == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// batch is the memory one reader needs, allocated once.
type batch struct {
	bufs  [][]byte
	sizes []int
	from  []netip.AddrPort
	run   [][]byte // packets that passed, to be written in one call
	peers []*peer  // whose they are
}

func newBatch(size int) *batch {
	b := &batch{
		bufs:  make([][]byte, size),
		sizes: make([]int, size),
		from:  make([]netip.AddrPort, size),
		run:   make([][]byte, 0, size),
		peers: make([]*peer, 0, size),
	}
	for i := range b.bufs {
		b.bufs[i] = make([]byte, maxPacket)
	}
	return b
}

// fromDevice reads until the device is at its end and returns why.
func (e *engine) fromDevice(d Device) error {
	b := newBatch(d.BatchSize())
	for {
		n, err := d.Read(b.bufs, b.sizes)
		if err != nil {
			return err
		}
		e.toWire(b, n)
	}
}

// toWire sends the first n packets of a batch. Neighbours with one destination
// leave in one call, which is what a bind can batch.
func (e *engine) toWire(b *batch, n int) {
	t := e.table.Load()
	limit := 0
	bind := e.bind.current.Load()
	if bind != nil {
		limit = (*bind).BatchSize()
	}
	for i := range n {
		pkt := b.bufs[i][:b.sizes[i]]
		p, why := t.egress(pkt)
		if why == passed && bind == nil {
			why = detached
		}
		if why != passed {
			e.counts(p).tx.drop(why)
			continue
		}
		if len(b.run) > 0 && (b.peers[0] != p || len(b.run) == limit) {
			e.send(*bind, b)
		}
		b.run, b.peers = append(b.run, pkt), append(b.peers, p)
	}
	if len(b.run) > 0 {
		e.send(*bind, b)
	}
}

// send empties the run, which has one destination.
func (e *engine) send(bind Bind, b *batch) {
	to := b.peers[0]
	for rest := b.run; len(rest) > 0; {
		n, err := bind.Send(rest, to.sources[0])
		for _, pkt := range rest[:n] {
			to.count.tx.pass(len(pkt))
		}
		if rest = rest[n:]; err == nil || len(rest) == 0 {
			break
		}
		if errors.Is(err, syscall.EMSGSIZE) {
			to.count.tx.drop(tooBig)
		} else {
			to.count.tx.drop(notWritten)
		}
		rest = rest[1:]
	}
	b.run, b.peers = b.run[:0], b.peers[:0]
}

// fromWire reads until the bind is at its end and returns why.
func (e *engine) fromWire(bind Bind) error {
	b := newBatch(bind.BatchSize())
	for {
		n, err := bind.Receive(b.bufs, b.sizes, b.from)
		if err != nil {
			return err
		}
		e.toDevice(b, n)
	}
}

// toDevice hands the first n datagrams of a batch to the kernel.
func (e *engine) toDevice(b *batch, n int) {
	t := e.table.Load()
	limit := 0
	device := e.device.current.Load()
	if device != nil {
		limit = (*device).BatchSize()
	}
	for i := range n {
		pkt := b.bufs[i][:b.sizes[i]]
		p, why := t.ingress(pkt, b.from[i])
		if why == passed && device == nil {
			why = detached
		}
		if why != passed {
			e.counts(p).rx.drop(why)
			continue
		}
		if len(b.run) == limit {
			e.write(*device, b)
		}
		b.run, b.peers = append(b.run, pkt), append(b.peers, p)
	}
	if len(b.run) > 0 {
		e.write(*device, b)
	}
}

// write empties the run, whose packets may come from several peers.
func (e *engine) write(device Device, b *batch) {
	rest, peers := b.run, b.peers
	for len(rest) > 0 {
		n, err := device.Write(rest)
		for i, pkt := range rest[:n] {
			peers[i].count.rx.pass(len(pkt))
		}
		if rest, peers = rest[n:], peers[n:]; err == nil || len(rest) == 0 {
			break
		}
		peers[0].count.rx.drop(notWritten)
		rest, peers = rest[1:], peers[1:]
	}
	b.run, b.peers = b.run[:0], b.peers[:0]
}

// counts are a peer's counters, or those of no peer.
func (e *engine) counts(p *peer) *counters {
	if p == nil {
		return &e.nobody
	}
	return p.count
}
