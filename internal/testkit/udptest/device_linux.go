// Package udptest provides a wire and a kernel in memory: small, real implementations of the two
// interfaces of package udp, for tests of the code between them. It knows the interfaces only by
// their methods and does not import package udp, so that tests inside that package can use it.
package udptest

import (
	"net/netip"
	"os"
	"sync"
	"syscall"

	"github.com/lenonet/leno/backend/udp/offload"
)

// maxFrame is a vnet header and the longest IP packet.
const maxFrame = offload.HeaderLen + 65535

// Device is a link without a kernel. The forwarder reads the packets that are injected. The packets
// it writes can be taken; super packets are split as a kernel would.
type Device struct {
	in, out *queue
	batch   int
	kinds   offload.Kinds
	refuse  func(pkt []byte) error
	mu      sync.Mutex // guards the fields below
	split   offload.Splitter
	frame   []byte
	pkt     []byte
	broken  error
	closed  bool
}

// NewDevice returns a device that delivers up to batch frames per call and accepts the given kinds
// of super packets.
func NewDevice(batch int, kinds offload.Kinds) *Device {
	return &Device{in: newQueue(), out: newQueue(), batch: batch, kinds: kinds}
}

// Refuse makes Write fail for packets for which f returns an error; super packets are passed to f
// whole. It must be called before the device is used.
func (d *Device) Refuse(f func(pkt []byte) error) { d.refuse = f }

// Inject routes a packet to the link, as the kernel would. It reports whether there was room.
func (d *Device) Inject(pkt []byte) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.frame = append(d.frame[:0], make([]byte, offload.HeaderLen)...)
	d.frame = append(d.frame, pkt...)
	return d.in.put(d.frame, netip.AddrPort{})
}

// Take waits for the next packet written to the link and copies it into buf.
// ok is false after Close.
func (d *Device) Take(buf []byte) (n int, ok bool) {
	taken := false
	if !d.out.wait() {
		return 0, false
	}
	ok = d.out.take(func(pkt []byte, _ netip.AddrPort) bool {
		if taken {
			return false
		}
		taken, n = true, copy(buf, pkt)
		return true
	})
	return n, ok
}

// Waiting returns the number of packets that wait to be taken.
func (d *Device) Waiting() int {
	d.out.mu.Lock()
	defer d.out.mu.Unlock()
	return d.out.length
}

// Break makes all further reads fail with err, as when the link is deleted.
func (d *Device) Break(err error) {
	d.mu.Lock()
	d.broken = err
	d.mu.Unlock()
	d.in.close()
}

// FD implements udp.Device.
func (d *Device) FD() int { return d.in.fd }

// Read implements udp.Device.
func (d *Device) Read(buf []byte, frames [][]byte) (n int, err error) {
	ok := d.in.take(func(frame []byte, _ netip.AddrPort) bool {
		if n == min(d.batch, len(frames)) || len(buf) < maxFrame {
			return false
		}
		size := copy(buf, frame)
		frames[n], buf = buf[:size:size], buf[size:]
		n++
		return true
	})
	if ok {
		return n, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.broken != nil && !d.closed {
		return 0, d.broken
	}
	return 0, os.ErrClosed
}

// Write implements udp.Device. When the queue is full, further packets are lost, as in the kernel's
// backlog. A super packet that is inconsistent, or of a kind that the device does not accept, fails
// with EINVAL, as in the kernel.
func (d *Device) Write(frames []offload.Frame) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range frames {
		if d.closed {
			return i, os.ErrClosed
		}
		d.frame = append(d.frame[:0], frames[i].Header[:]...)
		for _, part := range frames[i].Parts {
			d.frame = append(d.frame, part...)
		}
		if d.refuse != nil {
			if err := d.refuse(d.frame[offload.HeaderLen:]); err != nil {
				return i, err
			}
		}
		if err := d.deliver(d.frame); err != nil {
			return i, err
		}
	}
	return len(frames), nil
}

func (d *Device) deliver(frame []byte) error {
	defer d.split.Reset()
	var h offload.Header
	h.Decode(frame)
	kind := h.Type &^ offload.TypeECN
	if kind == offload.TypeUDP && !d.kinds.UDP || (kind == offload.TypeTCP4 || kind == offload.TypeTCP6) && !d.kinds.TCP {
		return syscall.EINVAL
	}
	segments, err := d.split.Split(frame)
	if err != nil {
		return syscall.EINVAL
	}
	for _, s := range segments {
		d.pkt = append(append(d.pkt[:0], s.Head...), s.Body...)
		d.out.put(d.pkt, netip.AddrPort{})
	}
	return nil
}

// Takes implements udp.Device.
func (d *Device) Takes() offload.Kinds { return d.kinds }

// Close implements udp.Device.
func (d *Device) Close() error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.in.close()
	d.out.close()
	d.in.free()
	d.out.free()
	return nil
}
