package lab

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// Echoes sends pings at a rate that ping(8) does not sustain. Each ping is sent when it is due, and
// its answers are counted by its number, whatever order they arrive in.
type Echoes struct {
	conn   net.PacketConn
	to     netip.Addr
	every  time.Duration
	cookie uint64
	cancel context.CancelFunc

	sending, receiving sync.WaitGroup

	mu      sync.Mutex
	sent    []time.Time // by number, from 0
	answers []uint16    // by number
	done    EchoResult  // what is counted as answers arrive
	last    time.Time   // of the last first answer
	highest uint64
	err     error
}

// EchoResult is the outcome of a stream of pings.
type EchoResult struct {
	To             netip.Addr // that was pinged
	Sent, Answered int
	Duplicates     int           // further answers to a number that was already answered
	Reordered      int           // answers that came after the answer to a later number
	Missing        []int         // numbers without an answer, counted from 0
	MissingAt      []time.Time   // when they were sent
	Gap            time.Duration // longest time between two answers
	Pause          time.Duration // longest time between two pings sent: no gap can be shorter
	Rate           float64       // pings sent per second, over the whole time
}

// Lost returns how many pings had no answer.
func (r EchoResult) Lost() int { return r.Sent - r.Answered }

// Losses returns which pings were lost and when they were sent, for the message of a test.
func (r EchoResult) Losses() string {
	out := fmt.Sprintf("%d of %d pings to %s lost", r.Lost(), r.Sent, r.To)
	for i, number := range r.Missing {
		out += fmt.Sprintf(", %d at %s", number, r.MissingAt[i].UTC().Format("15:04:05.000"))
	}
	return out
}

const (
	// echoPatience is how long Stop waits for the last answers on a busy machine.
	echoPatience = 5 * time.Second
	// echoBehind is how far behind schedule the sender may be and still catch up after it got no
	// CPU time. Sending more at once might overflow queues and lose pings for no other reason.
	echoBehind = 50 * time.Millisecond
	reachEvery = 20 * time.Millisecond
	echoBuffer = 4 << 20 // receive buffer in bytes: holds a thousand answers a second for seconds
	echoBytes  = 16      // a cookie and a number
)

// StartEchoes blocks until the address has answered a ping, and then sends one per interval until Stop is called.
func (n *Namespace) StartEchoes(ctx context.Context, to netip.Addr, every time.Duration) (*Echoes, error) {
	if err := n.Reach(ctx, to); err != nil {
		return nil, err
	}
	return n.SendEchoes(to, every)
}

// SendEchoes sends one ping per interval until Stop is called, also to an address that does not answer yet.
func (n *Namespace) SendEchoes(to netip.Addr, every time.Duration) (*Echoes, error) {
	e := &Echoes{to: to, every: every}
	var random [8]byte
	rand.Read(random[:]) // never fails
	e.cookie = binary.BigEndian.Uint64(random[:])
	network := "ip4:icmp"
	if to.Is6() {
		network = "ip6:ipv6-icmp"
	}
	err := n.Do(func() (err error) {
		e.conn, err = net.ListenPacket(network, "")
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := forceBuffer(e.conn.(*net.IPConn), echoBuffer); err != nil {
		return nil, errors.Join(err, e.conn.Close())
	}
	var ctx context.Context
	ctx, e.cancel = context.WithCancel(context.Background())
	e.sending.Go(func() { e.fail(e.send(ctx)) })
	e.receiving.Go(func() { e.fail(e.receive()) })
	return e, nil
}

// forceBuffer sets the receive buffer of a socket, beyond the system's limit.
func forceBuffer(conn *net.IPConn, size int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size) })
	return errors.Join(err, set)
}

func (e *Echoes) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = errors.Join(e.err, err)
}

func (e *Echoes) send(ctx context.Context) error {
	message := icmp.Message{Type: ipv4.ICMPTypeEcho}
	if e.to.Is6() {
		message.Type = ipv6.ICMPTypeEchoRequest // the kernel computes the checksum (RFC 3542, 3.1)
	}
	to := &net.IPAddr{IP: e.to.AsSlice()}
	due := time.Now()
	for number := uint64(0); ; number++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(due)):
		}
		data := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, e.cookie), number)
		message.Body = &icmp.Echo{ID: int(uint16(e.cookie)), Seq: int(uint16(number)), Data: data}
		packet, err := message.Marshal(nil)
		if err != nil {
			return err
		}
		now := time.Now()
		e.mu.Lock()
		if last := len(e.sent) - 1; last >= 0 {
			e.done.Pause = max(e.done.Pause, now.Sub(e.sent[last]))
		}
		e.sent, e.answers = append(e.sent, now), append(e.answers, 0)
		e.mu.Unlock()
		// A packet that the host refuses to send, for lack of a route or because of a firewall
		// rule, counts as lost, like one lost in the network.
		if _, err := e.conn.WriteTo(packet, to); errors.Is(err, net.ErrClosed) {
			return err
		}
		if due = due.Add(e.every); time.Since(due) > echoBehind {
			due = time.Now()
		}
	}
}

func (e *Echoes) receive() error {
	protocol, reply := ipv4.ICMPTypeEchoReply.Protocol(), icmp.Type(ipv4.ICMPTypeEchoReply)
	if e.to.Is6() {
		protocol, reply = ipv6.ICMPTypeEchoReply.Protocol(), ipv6.ICMPTypeEchoReply
	}
	var buffer [1500]byte
	for {
		n, _, err := e.conn.ReadFrom(buffer[:])
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return err
		}
		message, err := icmp.ParseMessage(protocol, buffer[:n])
		if err != nil || message.Type != reply {
			continue // for another socket: a raw socket receives all of them
		}
		echo, ok := message.Body.(*icmp.Echo)
		if !ok || len(echo.Data) != echoBytes || binary.BigEndian.Uint64(echo.Data) != e.cookie {
			continue
		}
		e.answered(binary.BigEndian.Uint64(echo.Data[8:]), time.Now())
	}
}

func (e *Echoes) answered(number uint64, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if number >= uint64(len(e.answers)) {
		return
	}
	if e.answers[number]++; e.answers[number] > 1 {
		e.done.Duplicates++
		return
	}
	if number < e.highest {
		e.done.Reordered++
	}
	e.highest = max(e.highest, number)
	if !e.last.IsZero() {
		e.done.Gap = max(e.done.Gap, now.Sub(e.last))
	}
	e.last = now
	e.done.Answered++
}

// complete reports whether every ping sent so far was answered.
func (e *Echoes) complete() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.done.Answered == len(e.sent)
}

// Mark returns the number of the next ping.
func (e *Echoes) Mark() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.sent)
}

// AnsweredSince returns the time of the last answer and reports whether it came after the given
// moment.
func (e *Echoes) AnsweredSince(moment time.Time) (at time.Time, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last, e.last.After(moment)
}

// Answered blocks until there is an answer after the given moment and returns its time. The result
// may be late by at most the interval of WaitFor: 20 ms, or a twentieth of the time waited.
func (e *Echoes) Answered(ctx context.Context, moment time.Time) (at time.Time, err error) {
	err = WaitFor(ctx, "an answer", func(context.Context) (err error) {
		var ok bool
		if at, ok = e.AnsweredSince(moment); !ok {
			err = errors.New("none yet")
		}
		return err
	})
	return at, err
}

// WaitAnswers blocks until n more pings have been sent and the last of them, or a later one, was
// answered.
func (e *Echoes) WaitAnswers(ctx context.Context, n int) error {
	want := e.Mark() + n
	return WaitFor(ctx, "answers to pings", func(context.Context) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if int(e.highest) < want {
			return errors.Join(fmt.Errorf("the last answer is to number %d, not %d", e.highest, want), e.err)
		}
		return nil
	})
}

// Reach blocks until an address has answered a ping. Until then, neighbours on the path may not be known, IPv6 addresses
// not be usable, and new devices may drop everything.
func (n *Namespace) Reach(ctx context.Context, to netip.Addr) error {
	e, err := n.SendEchoes(to, reachEvery)
	if err != nil {
		return err
	}
	_, err = e.Answered(ctx, time.Time{})
	_, stopped := e.stop(0)
	if err = errors.Join(err, stopped); err != nil {
		err = fmt.Errorf("ping from %s to %s: %w", n.Name, to, err)
	}
	return err
}

// Stop ends the stream once all pings are answered or the last one has had time to be. It must be
// called once only.
func (e *Echoes) Stop() (EchoResult, error) { return e.stop(echoPatience) }

func (e *Echoes) stop(patience time.Duration) (EchoResult, error) {
	e.cancel()
	e.sending.Wait()
	for end := time.Now().Add(patience); time.Now().Before(end) && !e.complete(); {
		time.Sleep(time.Millisecond)
	}
	// Setting the deadline cannot fail on an open socket, and it ends the receiver.
	deadline := e.conn.SetReadDeadline(time.Now())
	e.receiving.Wait()
	err := errors.Join(e.err, deadline, e.conn.Close())
	r := e.done
	r.To, r.Sent = e.to, len(e.sent)
	for number, n := range e.answers {
		if n == 0 {
			r.Missing, r.MissingAt = append(r.Missing, number), append(r.MissingAt, e.sent[number])
		}
	}
	if r.Sent > 1 {
		r.Rate = float64(r.Sent-1) / e.sent[r.Sent-1].Sub(e.sent[0]).Seconds()
	}
	return r, err
}
