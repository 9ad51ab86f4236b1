package trace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/probe"
)

// packets is how many packets are sent. Of so many, one is answered on a path that loses some.
const packets = 5

// send sends packets from the source, in the namespace at a path, or from this host if it is "". mtu is the size of
// full packets.
func (r reader) send(ctx context.Context, path string, mtu int) (out Sending) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine, since it is not unlocked
		if err := enter(path); err != nil {
			out = Sending{Reason: err.Error()}
			return
		}
		switch r.Protocol {
		case "icmp":
			out = r.sendEchoes(ctx, mtu)
		default:
			out = r.connect(ctx)
		}
	}()
	<-done
	return out
}

// enter moves the calling thread into the namespace at a path.
func enter(path string) error {
	if path == "" {
		return nil
	}
	ns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter %s: %w", path, err)
	}
	return nil
}

func (r reader) sendEchoes(ctx context.Context, mtu int) Sending {
	const size = 64
	out := Sending{What: fmt.Sprintf("%d ICMP echo requests of %d bytes", packets, size)}
	small, err := probe.Ping(ctx, r.Source.Address, r.Destination.Address, size, packets, answerTime)
	if err != nil {
		return Sending{Reason: err.Error()}
	}
	out.Sent, out.Answered, out.Reason = small.Sent, small.Answered, small.Reason
	if mtu = min(mtu, r.Network.Local.MTU); out.Answered > 0 && mtu > size {
		full, err := probe.Ping(ctx, r.Source.Address, r.Destination.Address, mtu, 2, answerTime)
		if err == nil {
			out.Full, out.FullAnswered = mtu, full.Answered > 0
			out.Reason = full.Reason
		}
	}
	return out
}

// connect opens a connection, or sends a datagram. A refusal is no answer: rules refuse packets as hosts do.
func (r reader) connect(ctx context.Context) Sending {
	to := netip.AddrPortFrom(r.Destination.Address, uint16(r.Port))
	out := Sending{What: fmt.Sprintf("a connection to TCP port %d", r.Port), Sent: 1}
	d := net.Dialer{Timeout: 2 * answerTime, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(r.Source.Address, 0))}
	if r.Protocol == "udp" {
		out.What = fmt.Sprintf("a datagram to UDP port %d", r.Port)
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(r.Source.Address, 0))
	}
	conn, err := d.DialContext(ctx, r.Protocol, to.String())
	if err == nil {
		defer conn.Close()
		if r.Protocol == "udp" {
			err = exchange(conn)
		}
	}
	switch {
	case err == nil:
		out.Answered = 1
	case errors.Is(err, unix.ECONNREFUSED):
		out.IsRefused = true
	case os.IsTimeout(err):
	default:
		var call *os.SyscallError
		if errors.As(err, &call) {
			err = call.Err
		}
		out.Reason = err.Error()
	}
	return out
}

// exchange sends a datagram and waits for an answer.
func exchange(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("leno trace")); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 1))
	return err
}
