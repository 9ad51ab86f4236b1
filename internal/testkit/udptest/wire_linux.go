package udptest

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/lenonet/leno/backend/udp/offload"
)

// Wire is an underlay in memory. It drops datagrams to addresses without a bind.
type Wire struct {
	mu    sync.Mutex
	binds map[netip.AddrPort]*Bind
	mtu   int
}

// NewWire returns a wire that rejects payloads longer than mtu bytes.
func NewWire(mtu int) *Wire {
	return &Wire{binds: map[netip.AddrPort]*Bind{}, mtu: mtu}
}

// Listen opens a bind on an unused address. A call of Receive returns up to batch messages, each of
// up to batch datagrams.
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

	mu  sync.Mutex // for pkt
	pkt []byte
}

// FD implements udp.Bind.
func (b *Bind) FD() int { return b.in.fd }

// Receive implements udp.Bind. It joins what the kernel would: consecutive datagrams of one sender
// and one size, the last of which may be shorter.
func (b *Bind) Receive(in []offload.Inbound) (n int, err error) {
	last := 0 // length of the newest datagram in in[n-1]
	ok := b.in.take(func(pkt []byte, from netip.AddrPort) bool {
		if n > 0 {
			m := &in[n-1]
			full := m.Size/max(m.Segment, 1) >= b.batch || m.Size+len(pkt) > len(m.Buf)
			if !full && m.From == from && last == m.Segment && len(pkt) <= m.Segment && len(pkt) > 0 {
				m.Size += copy(m.Buf[m.Size:], pkt)
				last = len(pkt)
				return true
			}
		}
		if n == min(b.batch, len(in)) {
			return false
		}
		m := &in[n]
		m.Size, m.Segment, m.From, m.Lost = copy(m.Buf, pkt), len(pkt), from, 0
		last = len(pkt)
		n++
		return true
	})
	if !ok {
		return 0, net.ErrClosed
	}
	return n, nil
}

// Send implements udp.Bind.
func (b *Bind) Send(out []offload.Outbound) (int, error) {
	b.wire.mu.Lock()
	mine := b.wire.binds[b.at]
	b.wire.mu.Unlock()
	if mine != b {
		return 0, net.ErrClosed
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range out {
		if err := b.send(&out[i]); err != nil {
			return i, err
		}
	}
	return len(out), nil
}

func (b *Bind) send(o *offload.Outbound) error {
	b.wire.mu.Lock()
	other := b.wire.binds[o.To]
	b.wire.mu.Unlock()
	for o.Sent = 0; o.Sent < len(o.Segments); o.Sent++ {
		s := o.Segments[o.Sent]
		b.pkt = append(append(b.pkt[:0], s.Head...), s.Body...)
		last := o.Sent == len(o.Segments)-1
		if len(b.pkt) > b.wire.mtu {
			return syscall.EMSGSIZE
		}
		if len(b.pkt) > o.Size || len(b.pkt) < o.Size && !last || len(o.Segments) > offload.MaxSegments {
			return fmt.Errorf("segment %d of %d bytes in a message of %d with %d: %w", o.Sent, len(b.pkt), len(o.Segments), o.Size, syscall.EINVAL)
		}
		if other != nil {
			other.in.put(b.pkt, b.at)
		}
	}
	return nil
}

// Close implements udp.Bind.
func (b *Bind) Close() error {
	b.wire.mu.Lock()
	defer b.wire.mu.Unlock()
	if b.wire.binds[b.at] == b {
		delete(b.wire.binds, b.at)
	}
	b.in.close()
	b.in.free()
	return nil
}
