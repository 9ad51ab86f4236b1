package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Talk is one TCP connection on which 64 bytes, and 4 KiB every 10th time, are sent every 20 ms and echoed. TCP retransmits
// what is lost, so an outage shows as a pause; the connection ends only if something resets it.
type Talk struct {
	cancel  context.CancelFunc
	running sync.WaitGroup
	ends    [2]net.Conn

	mu     sync.Mutex
	echoes int
	last   time.Time
	pause  time.Duration
	err    error
}

// LargeEcho is a number of echoes of which one is large.
const LargeEcho = 10

const (
	talkEvery = 20 * time.Millisecond
	talkBytes = 64
	talkLarge = 4096 // some packets of the full size
)

// StartTalk connects to the address, which must be one of peer's. Stop ends the connection.
func (n *Namespace) StartTalk(ctx context.Context, peer *Namespace, to netip.Addr) (_ *Talk, err error) {
	var listener net.Listener
	err = peer.Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(to, 0).String())
		return err
	})
	if err != nil {
		return nil, err
	}
	dialled, err := n.DialContext(ctx, "tcp", listener.Addr().String())
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	accepted, err := listener.Accept()
	if err := errors.Join(err, listener.Close()); err != nil {
		return nil, errors.Join(err, dialled.Close())
	}
	running, cancel := context.WithCancel(context.Background())
	t := &Talk{cancel: cancel, ends: [2]net.Conn{dialled, accepted}, last: time.Now()}
	t.running.Go(func() { // until Stop closes its connection
		_, err := io.Copy(accepted, accepted)
		t.end(running, err)
	})
	t.running.Go(func() { t.end(running, t.say(running, dialled)) })
	t.running.Go(func() { t.end(running, t.hear(dialled)) })
	t.running.Go(func() {
		<-running.Done()
		_ = dialled.Close() // the other loops report any error
		_ = accepted.Close()
	})
	return t, nil
}

// end records the first error that Stop did not cause.
func (t *Talk) end(running context.Context, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil && running.Err() == nil {
		if t.err = err; err == nil {
			t.err = io.EOF
		}
	}
}

// talkSize returns the size of what is sent the i-th time, in bytes.
func talkSize(i uint64) int {
	if i%LargeEcho == LargeEcho-1 {
		return talkLarge
	}
	return talkBytes
}

func (t *Talk) say(ctx context.Context, conn net.Conn) error {
	tick := time.NewTicker(talkEvery)
	defer tick.Stop()
	var all [talkLarge]byte
	for i := uint64(0); ; i++ {
		said := all[:talkSize(i)]
		binary.BigEndian.PutUint64(said, i)
		if _, err := conn.Write(said); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (t *Talk) hear(conn net.Conn) error {
	var all [talkLarge]byte
	for i := uint64(0); ; i++ {
		heard := all[:talkSize(i)]
		if _, err := io.ReadFull(conn, heard); err != nil {
			return err
		}
		if got := binary.BigEndian.Uint64(heard); got != i {
			return fmt.Errorf("echo %d came in the place of %d", got, i)
		}
		t.mu.Lock()
		now := time.Now()
		t.echoes++
		t.pause = max(t.pause, now.Sub(t.last))
		t.last = now
		t.mu.Unlock()
	}
}

// WaitEchoes blocks until n more echoes have arrived.
func (t *Talk) WaitEchoes(ctx context.Context, n int) error {
	t.mu.Lock()
	want := t.echoes + n
	t.mu.Unlock()
	return WaitFor(ctx, "echoes on a connection", func(context.Context) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		if missing := want - t.echoes; missing > 0 {
			return errors.Join(fmt.Errorf("%d of %d are missing", missing, n), t.err)
		}
		return nil
	})
}

// Pause returns the longest time without an echo since the last call.
func (t *Talk) Pause() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	pause := t.pause
	t.pause = 0
	return pause
}

// Resent returns how many segments both ends have retransmitted because they or their
// acknowledgements were lost or late. It must not be called after Stop.
func (t *Talk) Resent() (segments int, err error) {
	for _, conn := range t.ends {
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			return 0, err
		}
		var info *unix.TCPInfo
		var asked error
		if err := raw.Control(func(fd uintptr) { info, asked = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); err != nil {
			return 0, err
		}
		if asked != nil {
			return 0, asked
		}
		segments += int(info.Total_retrans)
	}
	return segments, nil
}

// Stop ends the connection and returns the number of echoes. It returns an error if the connection
// had broken before. It may be called again.
func (t *Talk) Stop() (echoes int, err error) {
	t.cancel()
	t.running.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.echoes, t.err
}
