package udptest

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
)

// Wire is an underlay in memory. It loses datagrams to addresses on which
// nobody listens.
type Wire struct {
	mu    sync.Mutex
	binds map[netip.AddrPort]*Bind
	mtu   int
}

// NewWire makes a wire that refuses payloads longer than mtu bytes.
func NewWire(mtu int) *Wire {
	return &Wire{binds: map[netip.AddrPort]*Bind{}, mtu: mtu}
}

// Listen opens a bind on an address nobody has.
func (w *Wire) Listen(at netip.AddrPort, batch int) (*Bind, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.binds[at] != nil {
		return nil, fmt.Errorf("listen on %s: %w", at, syscall.EADDRINUSE)
	}
	b := &Bind{wire: w, at: at, in: newQueue(), batch: batch}
	w.binds[at] = b
	return b, nil
}

// Bind is one socket on a wire.
type Bind struct {
	wire  *Wire
	at    netip.AddrPort
	in    *queue
	batch int
}

// Receive is the seam's Receive.
func (b *Bind) Receive(bufs [][]byte, sizes []int, from []netip.AddrPort) (int, error) {
	if n, ok := b.in.take(bufs, sizes, from); ok {
		return n, nil
	}
	return 0, net.ErrClosed
}

// Send is the seam's Send.
func (b *Bind) Send(pkts [][]byte, to netip.AddrPort) (int, error) {
	b.wire.mu.Lock()
	mine, other := b.wire.binds[b.at], b.wire.binds[to]
	b.wire.mu.Unlock()
	if mine != b {
		return 0, net.ErrClosed
	}
	for i, pkt := range pkts {
		if len(pkt) > b.wire.mtu {
			return i, syscall.EMSGSIZE
		}
		if other != nil {
			other.in.put(pkt, b.at)
		}
	}
	return len(pkts), nil
}

// BatchSize is the seam's BatchSize.
func (b *Bind) BatchSize() int { return b.batch }

// Close is the seam's Close.
func (b *Bind) Close() error {
	b.wire.mu.Lock()
	defer b.wire.mu.Unlock()
	if b.wire.binds[b.at] == b {
		delete(b.wire.binds, b.at)
	}
	b.in.close()
	return nil
}
