// Package udptest is a wire and a kernel in memory: small real implementations
// of the two seams of package udp, for tests of what stands between them. It
// knows the seams by their methods only and does not import package udp, so
// that tests inside that package can use it.
package udptest

import (
	"net/netip"
	"os"
	"sync"
)

// Device is a link without a kernel. What is injected is read by the
// forwarder; what the forwarder writes can be taken.
type Device struct {
	in, out *queue
	batch   int
	refuse  func(pkt []byte) error
	mu      sync.Mutex
	broken  error
	closed  bool
}

// NewDevice makes a device that reads and writes up to batch packets a call.
func NewDevice(batch int) *Device {
	return &Device{in: newQueue(), out: newQueue(), batch: batch}
}

// Refuse makes Write fail for the packets about which f returns an error. It
// must be called before the device is used.
func (d *Device) Refuse(f func(pkt []byte) error) { d.refuse = f }

// Inject routes a packet to the link, as the kernel would. It says whether
// there was room.
func (d *Device) Inject(pkt []byte) bool { return d.in.put(pkt, netip.AddrPort{}) }

// Take waits for the next packet written to the link and copies it into buf.
// ok is false after Close.
func (d *Device) Take(buf []byte) (n int, ok bool) {
	var sizes [1]int
	_, ok = d.out.take([][]byte{buf}, sizes[:], nil)
	return sizes[0], ok
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

// Read is the seam's Read.
func (d *Device) Read(bufs [][]byte, sizes []int) (int, error) {
	if n, ok := d.in.take(bufs, sizes, nil); ok {
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
// kernel's backlog does.
func (d *Device) Write(pkts [][]byte) (int, error) {
	for i, pkt := range pkts {
		d.mu.Lock()
		closed := d.closed
		d.mu.Unlock()
		if closed {
			return i, os.ErrClosed
		}
		if d.refuse != nil {
			if err := d.refuse(pkt); err != nil {
				return i, err
			}
		}
		d.out.put(pkt, netip.AddrPort{})
	}
	return len(pkts), nil
}

// BatchSize is the seam's BatchSize.
func (d *Device) BatchSize() int { return d.batch }

// Close is the seam's Close.
func (d *Device) Close() error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.in.close()
	d.out.close()
	return nil
}
