package wireguard

import (
	"sync"
	"time"
	"unsafe"

	"golang.zx2c4.com/wireguard/conn"
	wg "golang.zx2c4.com/wireguard/device"
)

const (
	// mostPending is the number of packets that may be on their way in one direction before more are read. One read
	// returns up to 128.
	mostPending = 256

	// pendingTime is how long a packet counts as on its way, at least, and at most twice as long. Packets that wait for
	// a handshake, or that are dropped, never leave. They must not keep others from being read: a container may send
	// many to a peer without a session, and a stranger may send many that are forged.
	pendingTime = 2 * time.Millisecond
)

// A backlog is the packets of one direction that WireGuard has read and not yet written. The library has a buffer of 64
// KiB for each, and reads without a limit: with the windows of TCP streams on their way within the process, it had
// hundreds of MiB of buffers. A backlog makes it read only once packets have left. Others wait in the kernel.
//
// A packet is known by the address of its buffer.
type backlog struct {
	mu           sync.Mutex
	newer, older map[uintptr]struct{}
	began        time.Time     // when newer was made; after pendingTime it becomes older
	moved        chan struct{} // wakes a reader that waits; with a capacity of 1
}

func newBacklog() *backlog {
	return &backlog{newer: map[uintptr]struct{}{}, older: map[uintptr]struct{}{}, moved: make(chan struct{}, 1)}
}

// wait returns when packets may be read. returned is what the reader's last read has returned, as the library gives it
// to the next one: packets that it has dropped at once, and new buffers.
func (b *backlog) wait(returned [][]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(returned)
	for b.age(time.Now()); len(b.newer)+len(b.older) >= mostPending; b.age(time.Now()) {
		next := time.Until(b.began.Add(pendingTime))
		b.mu.Unlock()
		select {
		case <-b.moved:
		case <-time.After(next):
		}
		b.mu.Lock()
	}
	b.wake() // another reader may be waiting
}

func (b *backlog) age(now time.Time) {
	if now.Sub(b.began) >= pendingTime {
		clear(b.older)
		b.newer, b.older, b.began = b.older, b.newer, now
	}
}

// read adds packets that were read.
func (b *backlog) read(packets [][]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range packets {
		b.newer[address(p)] = struct{}{}
	}
}

// wrote removes packets that were written.
func (b *backlog) wrote(packets [][]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(packets)
	b.wake()
}

func (b *backlog) forget(packets [][]byte) {
	for _, p := range packets {
		delete(b.newer, address(p))
		delete(b.older, address(p))
	}
}

func (b *backlog) wake() {
	select {
	case b.moved <- struct{}{}:
	default:
	}
}

// address identifies a buffer without keeping it from being collected as garbage.
func address(buffer []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(buffer))) }

// A boundedBind limits the packets that come in, and lets packets out.
type boundedBind struct {
	conn.Bind
	in, out *backlog
}

// Open implements conn.Bind.
func (b *boundedBind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	receivers, actual, err := b.Bind.Open(port)
	for i, receive := range receivers {
		last := 0
		receivers[i] = func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
			b.in.wait(packets[:last])
			n, err := receive(packets, sizes, from)
			for i := range n {
				// Others are of a handshake, and never reach the device.
				if sizes[i] > 0 && packets[i][0] == wg.MessageTransportType {
					b.in.read(packets[i : i+1])
				}
			}
			last = n
			return n, err
		}
	}
	return receivers, actual, err
}

// Send implements conn.Bind.
func (b *boundedBind) Send(packets [][]byte, to conn.Endpoint) error {
	defer b.out.wrote(packets)
	return b.Bind.Send(packets, to)
}
