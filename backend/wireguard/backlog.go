package wireguard

import (
	"encoding/binary"
	"maps"
	"sync"
	"time"
	"unsafe"

	"golang.zx2c4.com/wireguard/conn"
	wg "golang.zx2c4.com/wireguard/device"
)

const (
	// maxPending is the number of packets that may be on their way in one direction before more are read. One read
	// returns up to 128.
	maxPending = 64

	// pendingTime is how long a packet counts as on its way, at least, and at most twice as long.
	pendingTime = 20 * time.Millisecond

	// stuckTime is how long packets to a destination do not count after none has left for pendingTime.
	stuckTime = time.Second
	maxStuck  = 4096
)

// A backlog is the packets of one direction that WireGuard has read and not yet written. The library has a buffer of 64
// KiB for each, and reads without a limit: with the windows of TCP streams on their way within the process, it had
// hundreds of MiB of buffers. A backlog makes it read only once packets have left. Others wait in the kernel.
//
// Packets to a peer without a session leave only when there is one, and must not hold up those to other peers: where no
// packet to a destination leaves, those to it do not count.
//
// A packet is known by the address of its buffer.
type backlog struct {
	mu           sync.Mutex
	newer, older map[uintptr]pendingPacket
	counted      int                       // of them
	left         map[destination]bool      // since newer was made
	stuck        map[destination]time.Time // since when
	began        time.Time                 // when newer was made; after pendingTime it becomes older
	moved        chan struct{}             // wakes a reader that waits; with a capacity of 1
}

// pendingPacket is a packet on its way.
type pendingPacket struct {
	to      destination
	isStuck bool // it does not count
}

// destination is the /24 or /64 to which a packet goes, 0 for none.
type destination uint64

// destinationOf returns the destination of an IP packet.
func destinationOf(packet []byte) destination {
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		return destination(binary.BigEndian.Uint32(packet[16:20])>>8 | 1<<31)
	case len(packet) >= 40 && packet[0]>>4 == 6:
		return destination(binary.BigEndian.Uint64(packet[24:32]) | 1<<63)
	}
	return 0
}

func newBacklog() *backlog {
	return &backlog{
		newer: map[uintptr]pendingPacket{},
		older: map[uintptr]pendingPacket{},
		left:  map[destination]bool{},
		stuck: map[destination]time.Time{},
		moved: make(chan struct{}, 1),
	}
}

// wait returns when packets may be read. returned is what the reader's last read has returned, as the library gives it
// to the next one: packets that it has dropped at once, and new buffers.
func (b *backlog) wait(returned [][]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(returned, false)
	for b.age(time.Now()); b.counted >= maxPending; b.age(time.Now()) {
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
	if now.Sub(b.began) < pendingTime {
		return
	}
	for _, p := range b.older {
		if !p.isStuck {
			b.counted--
		}
		if p.to != 0 && !b.left[p.to] && len(b.stuck) < maxStuck {
			b.stuck[p.to] = now
		}
	}
	maps.DeleteFunc(b.stuck, func(_ destination, since time.Time) bool { return now.Sub(since) > stuckTime })
	clear(b.older)
	clear(b.left)
	b.newer, b.older, b.began = b.older, b.newer, now
}

// read adds packets that were read. Each begins at an offset of its buffer; without one their destinations are not
// known.
func (b *backlog) read(packets [][]byte, offset int, sizes []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, buffer := range packets {
		var p pendingPacket
		if sizes != nil {
			p.to = destinationOf(buffer[offset:][:sizes[i]])
		}
		if _, p.isStuck = b.stuck[p.to]; !p.isStuck {
			b.counted++
		}
		b.forget(packets[i:i+1], false)
		b.newer[address(buffer)] = p
	}
}

// wrote removes packets that were written.
func (b *backlog) wrote(packets [][]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(packets, true)
	b.wake()
}

// forget removes packets, which have left or not.
func (b *backlog) forget(packets [][]byte, left bool) {
	for _, buffer := range packets {
		at := address(buffer)
		for _, all := range []map[uintptr]pendingPacket{b.newer, b.older} {
			p, found := all[at]
			if !found {
				continue
			}
			delete(all, at)
			if !p.isStuck {
				b.counted--
			}
			if left {
				b.left[p.to] = true
				delete(b.stuck, p.to)
			}
		}
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
					b.in.read(packets[i:i+1], 0, nil)
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
