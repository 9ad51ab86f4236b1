package probe

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestDeliver checks that a message that does not answer a pending packet is dropped.
func TestDeliver(t *testing.T) {
	good := message{reply: true, echo: true, id: 7, seq: 9, cookie: ours}
	told := message{reason: timeExceeded, echo: true, id: 7, seq: 9, to: peer4}
	router := netip.MustParseAddr("192.0.2.254")
	with := func(m message, change func(*message)) message {
		change(&m)
		return m
	}
	for _, tt := range []struct {
		name string
		m    message
		from netip.Addr
		want outcome
	}{
		{"reply", good, peer4, gotReply},
		{"error", told, router, gotError},
		{"another id", with(good, func(m *message) { m.id++ }), peer4, noAnswer},
		{"another number", with(good, func(m *message) { m.seq++ }), peer4, noAnswer},
		{"another cookie", with(good, func(m *message) { m.cookie[0]++ }), peer4, noAnswer},
		{"another sender", good, router, noAnswer},
		{"the other family", good, peer6, noAnswer},
		{"an error about another packet", with(told, func(m *message) { m.to = router }), router, noAnswer},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &pending{to: peer4, sent: time.Now(), answer: make(chan answer, 1)}
			s := &sockets{id: 7, cookie: ours, pending: map[pendingKey]*pending{{false, 9}: p}}
			for range 2 { // a repeated one counts once
				s.deliver(tt.m, tt.from)
			}
			got := answer{}
			select {
			case got = <-p.answer:
			default:
			}
			if got.outcome != tt.want || len(p.answer) > 0 || (len(s.pending) == 0) != (tt.want != noAnswer) {
				t.Errorf("%+v, %d more, %d pending", got, len(p.answer), len(s.pending))
			}
		})
	}
}

// TestPace checks that packets of many peers leave one after the other, and none after ctx has ended.
func TestPace(t *testing.T) {
	const packets = 400
	s := &sockets{}
	started := time.Now()
	var wg sync.WaitGroup
	for range packets {
		wg.Go(func() {
			if !s.waitForTurn(context.Background()) {
				t.Error("no turn")
			}
		})
	}
	wg.Wait()
	if took := time.Since(started); took < packets*pace*9/10 {
		t.Errorf("%d packets in %s", packets, took)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 10 {
		if s.waitForTurn(ctx) {
			t.Error("a turn though ctx has ended")
		}
	}
}

// TestTunnelErrorsOfStrangers checks that errors from strangers about others, or repeatedly about a peer, neither use
// up memory nor displace the errors of the peer's host.
func TestTunnelErrorsOfStrangers(t *testing.T) {
	peer, stranger := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("198.51.100.1")
	s := &sockets{errorsByPort: map[netip.AddrPort][]answer{}}
	s.recordErrors(peer, 8472)
	for port := range 5000 {
		s.deliver(message{reason: portUnreachable, to: stranger, port: port}, stranger)
		s.deliver(message{reason: portUnreachable, to: peer, port: 8472}, stranger)
	}
	s.deliver(message{reason: portUnreachable, to: peer, port: 8472}, peer)
	said := s.tunnelErrors(peer, 8472)
	if len(s.errorsByPort) != 1 || len(said) > 100 || said[len(said)-1].from != peer {
		t.Errorf("%d are kept of %d, the last of %s", len(said), len(s.errorsByPort), said[len(said)-1].from)
	}
}

// TestSendErrorText checks the reasons given for packets that the kernel did not send.
func TestSendErrorText(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{unix.EMSGSIZE, exceedsMTU},
		{unix.EPERM, "a firewall of this host drops it"},
		{unix.EINVAL, "a blackhole route refuses it, or this host does not have the address to send it from"},
		{unix.EADDRNOTAVAIL, "this host does not have the address to send it from"},
		{unix.ENETUNREACH, "network is unreachable"},
	} {
		err := fmt.Errorf("write: %w", os.NewSyscallError("sendmsg", tt.err))
		if got := sendErrorText(err); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.err, got, tt.want)
		}
	}
}
