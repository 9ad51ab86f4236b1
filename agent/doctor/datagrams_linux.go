package doctor

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/backend"
)

// datagramPatience is how long Datagrams waits for a peer's error. The peer has answered pings before.
const datagramPatience = 400 * time.Millisecond

// errorPause is the time after which a kernel that has reached its limit of errors sends the next one. A ping must
// not use up the error that a datagram would have received.
const errorPause = 2200 * time.Millisecond

// ProbeDatagrams reports whether UDP and TCP get through the overlay to a peer that answers pings. Checksum faults in
// tunnels do not affect pings: the kernel computes the checksum of a ping, but may leave those of UDP and TCP to the
// device.
//
// A packet with a hop limit of one to an address behind the peer returns as "time exceeded" from the peer's kernel,
// before any of its rules about containers or itself apply. When that error comes for a ping but not for UDP and TCP,
// the path is at fault. A packet that this host's rules do not let out proves nothing. The kernel does not report
// that for TCP, so UDP must have left. own is this host's address in the overlay, to the peer's subnet.
func ProbeDatagrams(ctx context.Context, own netip.Addr, to netip.Prefix) Answer {
	target := backend.AddrBehind(to)
	// The rules of raw and mangle apply before those about containers, so ports of more than one kind are tried.
	for _, try := range []struct {
		protocol string
		port     uint16
		after    time.Duration
	}{{"udp", 33434, 0}, {"udp", 53, 0}, {"icmp", 0, 0}, {"udp", 443, errorPause}, {"tcp", 443, 0}, {"icmp", 0, 0}} {
		if retry.Sleep(ctx, try.after) != nil {
			return Unknown
		}
		got := sendExpiring(ctx, try.protocol, own, netip.AddrPortFrom(target, try.port))
		switch control := try.protocol == "icmp"; {
		case got == Yes && !control:
			return Yes
		case got == Unknown, got == No && control:
			return Unknown
		}
	}
	return No
}

// sendExpiring sends one packet with a hop limit of one and reports whether an error came back; Unknown if the packet
// did not leave.
func sendExpiring(ctx context.Context, protocol string, own netip.Addr, to netip.AddrPort) Answer {
	deadline := time.Now().Add(datagramPatience)
	if until, ok := ctx.Deadline(); ctx.Err() != nil || ok && until.Before(deadline) {
		return Unknown // no time remains for an answer
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error { return setOneHop(c, to.Addr().Is6()) }}
	network, address, payload := "udp", to.String(), []byte("leno doctor")
	switch protocol {
	case "udp":
		d.LocalAddr = &net.UDPAddr{IP: own.AsSlice()}
	case "tcp":
		network, d.LocalAddr = "tcp", &net.TCPAddr{IP: own.AsSlice()}
	case "icmp":
		network, address = "ip4:icmp", to.Addr().String()
		ping := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: 0x1e70, Seq: 1, Data: []byte("leno")}}
		if to.Addr().Is6() {
			network, ping.Type = "ip6:ipv6-icmp", ipv6.ICMPTypeEchoRequest // the kernel computes its checksum
		}
		payload, _ = ping.Marshal(nil) // an Echo can always be encoded
		d.LocalAddr = &net.IPAddr{IP: own.AsSlice()}
	}
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return answerFromError(err) // TCP
	}
	defer conn.Close()
	if protocol == "tcp" {
		return Yes
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return Unknown
	}
	if _, err := conn.Write(payload); err != nil {
		return answerFromError(err)
	}
	buffer := make([]byte, 512)
	for {
		if _, err := conn.Read(buffer); err != nil {
			return answerFromError(err)
		}
		if protocol == "udp" {
			return Yes
		}
	}
}

// answerFromError interprets an error: a host on the path answered, none answered in time, or this host did not send.
// Its routes led to the peer before.
func answerFromError(err error) Answer {
	switch {
	case errors.Is(err, context.Canceled):
		return Unknown
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return No
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENETUNREACH),
		errors.Is(err, unix.EACCES):
		return Yes
	}
	return Unknown // EPERM: rules of this host
}

func setOneHop(c syscall.RawConn, v6 bool) error {
	var err error
	controlled := c.Control(func(fd uintptr) {
		if v6 {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 1),
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1))
			return
		}
		err = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, 1),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVERR, 1))
	})
	return errors.Join(controlled, err)
}
