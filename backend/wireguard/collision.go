package wireguard

import (
	"bytes"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	wg "golang.zx2c4.com/wireguard/device"
)

const (
	// collisionTime is the time after sending a handshake initiation within which one from the other side counts as
	// simultaneous. It is more than a round trip, and less than the 5 seconds until either side tries again.
	collisionTime = time.Second

	// holdTime is how long the smaller one of two initiations waits for the answer to the larger one.
	holdTime = 600 * time.Millisecond
)

// collisionBind lets only one of two simultaneous handshakes with a peer proceed. Otherwise, each side may give up its
// own handshake for the other's, and neither has a session for 5 seconds. The library can also mix up the two
// handshakes, because it handles an initiation and a response concurrently: for up to 15 seconds, it then reports a
// session in which the peer's packets are dropped. If hosts start to use a device at the same time, this affects about
// one in 15 handshakes.
//
// The library's own retries are no substitute, because they collide again: of 100 pairs of devices that started at the
// same moment, with a delay of 0.3 or 5 ms between them, 46 carried no packets for 4 to 14 seconds, 14 of these not
// even after 22. With a collisionBind, none of 20 pairs lost a packet.
//
// Both sides know both initiations, and prefer the same one: the one that is larger as a string of bytes. Either the
// sender or the receiver holds back the smaller one, and drops it when the larger one is answered. If the larger one is
// not answered, for example because its receiver does not know the sender yet, the smaller one follows.
type collisionBind struct {
	conn.Bind
	held chan heldMessage // what was held back on receipt

	mu     sync.Mutex
	closed chan struct{} // closed by Close; nil before the first Open
	sent   initiations   // the last one to each endpoint
	passed initiations   // the last one from each endpoint that was not held back
}

// An initiation is a message that starts a handshake.
type initiation struct {
	message  []byte
	at       time.Time
	answered bool
	others   int // how many of the other side's wait for its answer
}

// mostInitiations limits the number of initiations that are kept for one collisionTime. Anyone can send initiations:
// only the device checks them, later. Initiations beyond the limit are handled as without a collisionBind.
const mostInitiations = 4096

// mostHeld limits how many initiations from an endpoint wait for the answer to this host's own. The peer sends one;
// more are forged.
const mostHeld = 4

// initiations holds the initiations of the last collisionTime. The zero value is ready to use.
type initiations struct {
	began        time.Time // when newer was made; after collisionTime it becomes older
	newer, older map[netip.AddrPort]*initiation
}

func (m *initiations) add(message []byte, endpoint netip.AddrPort, now time.Time) *initiation {
	if now.Sub(m.began) > collisionTime {
		m.began, m.newer, m.older = now, map[netip.AddrPort]*initiation{}, m.newer
	}
	added := &initiation{message: bytes.Clone(message), at: now}
	if len(m.newer) < mostInitiations || m.newer[endpoint] != nil {
		m.newer[endpoint] = added
	}
	return added
}

// recent returns the initiation with an endpoint, nil if there is none.
func (m *initiations) recent(endpoint netip.AddrPort, now time.Time) *initiation {
	for _, all := range []map[netip.AddrPort]*initiation{m.newer, m.older} {
		if i := all[endpoint]; i != nil && now.Sub(i.at) <= collisionTime {
			return i
		}
	}
	return nil
}

// answer marks the initiation to which a response belongs. A response contains the index by which the sender of the
// initiation knows the handshake.
func (m *initiations) answer(response []byte, endpoint netip.AddrPort, now time.Time) {
	if i := m.recent(endpoint, now); i != nil && bytes.Equal(response[8:12], i.message[4:8]) {
		i.answered = true
	}
}

// A heldMessage is the other side's initiation.
type heldMessage struct {
	message []byte
	from    conn.Endpoint
}

func newCollisionBind(inner conn.Bind) *collisionBind {
	return &collisionBind{Bind: inner, held: make(chan heldMessage)}
}

// Open implements conn.Bind.
func (b *collisionBind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	receivers, actual, err := b.Bind.Open(port)
	if err != nil {
		return receivers, actual, err
	}
	closed := make(chan struct{})
	b.mu.Lock()
	b.closed = closed
	b.mu.Unlock()
	for i, receive := range receivers {
		receivers[i] = func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
			n, err := receive(packets, sizes, from)
			for i := range n {
				if !b.passes(packets[i][:sizes[i]], from[i], time.Now()) {
					sizes[i] = 0 // which the caller ignores
				}
			}
			return n, err
		}
	}
	deliver := func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
		select {
		case m := <-b.held:
			sizes[0], from[0] = copy(packets[0], m.message), m.from
			return 1, nil
		case <-closed:
			return 0, net.ErrClosed
		}
	}
	return append(receivers, deliver), actual, nil
}

// Close implements conn.Bind.
func (b *collisionBind) Close() error {
	b.mu.Lock()
	if b.closed != nil {
		close(b.closed)
		b.closed = nil
	}
	b.mu.Unlock()
	return b.Bind.Close()
}

// Send implements conn.Bind.
func (b *collisionBind) Send(packets [][]byte, to conn.Endpoint) error {
	// Handshake messages are sent alone.
	if len(packets) == 1 && !b.mayLeave(packets[0], to, time.Now()) {
		return nil
	}
	return b.Bind.Send(packets, to)
}

func isInitiation(packet []byte) bool {
	return len(packet) == wg.MessageInitiationSize && packet[0] == wg.MessageInitiationType
}

func isResponse(packet []byte) bool {
	return len(packet) == wg.MessageResponseSize && packet[0] == wg.MessageResponseType
}

// mayLeave reports whether to send a packet now. An initiation that is held back may follow later.
func (b *collisionBind) mayLeave(packet []byte, to conn.Endpoint, now time.Time) bool {
	if !isInitiation(packet) && !isResponse(packet) {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	endpoint := addrPort(to)
	if isResponse(packet) {
		b.passed.answer(packet, endpoint, now)
		return true
	}
	own, theirs := b.sent.add(packet, endpoint, now), b.passed.recent(endpoint, now)
	if theirs == nil || bytes.Compare(packet, theirs.message) < 0 { // the other side holds back the smaller one
		return true
	}
	b.hold(theirs, func(<-chan struct{}) { _ = b.Bind.Send([][]byte{own.message}, to) })
	return false
}

// passes reports whether to handle a received packet now. An initiation that is held back may follow later.
func (b *collisionBind) passes(packet []byte, from conn.Endpoint, now time.Time) bool {
	if !isInitiation(packet) && !isResponse(packet) {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	endpoint := addrPort(from)
	if isResponse(packet) {
		b.sent.answer(packet, endpoint, now)
		return true
	}
	own := b.sent.recent(endpoint, now)
	if own == nil || own.others == mostHeld || bytes.Compare(packet, own.message) > 0 {
		b.passed.add(packet, endpoint, now)
		return true
	}
	own.others++
	m := heldMessage{bytes.Clone(packet), from}
	b.hold(own, func(closed <-chan struct{}) {
		select {
		case b.held <- m:
		case <-closed:
		}
	})
	return false
}

// hold calls follow later, unless the initiation is answered before then. The caller holds the lock.
func (b *collisionBind) hold(until *initiation, follow func(closed <-chan struct{})) {
	closed := b.closed
	if until.answered || closed == nil {
		return
	}
	time.AfterFunc(holdTime, func() {
		b.mu.Lock()
		due := !until.answered && b.closed == closed
		b.mu.Unlock()
		if due {
			follow(closed)
		}
	})
}

// addrPort returns an endpoint's address, the zero AddrPort if it has none.
func addrPort(e conn.Endpoint) netip.AddrPort {
	out, _ := netip.ParseAddrPort(e.DstToString())
	return netip.AddrPortFrom(out.Addr().Unmap(), out.Port())
}
