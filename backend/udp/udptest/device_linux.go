// Package udptest is a wire and a kernel in memory: small real implementations
// of the two seams of package udp, for tests of what stands between them. It
// knows the seams by their methods only and does not import package udp, so
// that tests inside that package can use it.
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

// Device is a link without a kernel. What is injected is read by the
// forwarder; what the forwarder writes can be taken, super packets taken apart
// as a kernel would.
type Device struct {
	in, out *queue
	batch   int
	kinds   offload.Kinds
	refuse  func(pkt []byte) error
	mu      sync.Mutex // for what follows
	split   offload.Splitter
	frame   []byte
	pkt     []byte
	broken  error
	closed  bool
}

// NewDevice makes a device that brings up to batch frames a call and takes
// super packets of some kinds.
func NewDevice(batch int, kinds offload.Kinds) *Device {
	return &Device{in: newQueue(), out: newQueue(), batch: batch, kinds: kinds}
}

// Refuse makes Write fail for the packets, super packets whole, about which f
// returns an error. It must be called before the device is used.
func (d *Device) Refuse(f func(pkt []byte) error) { d.refuse = f }

// Inject routes a packet to the link, as the kernel would. It says whether
// there was room.
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

// Waiting says how many packets wait to be taken.
func (d *Device) Waiting() int {
	d.out.mu.Lock()
	defer d.out.mu.Unlock()
	return d.out.length
}

// Break makes reads fail with err from now on, as when the link is deleted.
func (d *Device) Break(err error) {
	d.mu.Lock()
	d.broken = err
	d.mu.Unlock()
	d.in.close()
}

// FD is the seam's FD.
func (d *Device) FD() int { return d.in.fd }

// Read is the seam's Read.
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

// Write is the seam's Write. A full line of packets loses the rest, as the
// kernel's backlog does. A super packet that lies, or of a kind that the device
// does not take, is EINVAL, as in the kernel.
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

// Takes is the seam's Takes.
func (d *Device) Takes() offload.Kinds { return d.kinds }

// Close is the seam's Close.
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
