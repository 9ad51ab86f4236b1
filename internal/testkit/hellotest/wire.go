// Package hellotest replaces the sockets of package hello by a wire in memory.
package hellotest

import (
	"context"
	"net/netip"
	"sync"

	"github.com/lenonet/leno/agent/hello"
)

// A Wire carries messages between the sockets that its Listen has opened. The zero value is ready for use.
type Wire struct {
	// Lose reports whether a message is lost; nil if none is.
	Lose func(from, to netip.Addr) bool
	// Err is what Listen returns.
	Err error

	mu       sync.Mutex
	sockets  map[netip.Addr]*socket
	sent     map[netip.Addr]int
	recorded []Packet
}

// Packet is a message that was sent.
type Packet struct {
	From, To netip.Addr
	Message  []byte
}

// Listen implements hello.Listen.
func (w *Wire) Listen(_ context.Context, own netip.Addr, receive func(netip.Addr, []byte)) (hello.Socket, error) {
	if w.Err != nil {
		return nil, w.Err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &socket{w, own, receive}
	if w.sockets == nil {
		w.sockets, w.sent = map[netip.Addr]*socket{}, map[netip.Addr]int{}
	}
	w.sockets[own] = s
	return s, nil
}

// Inject delivers a message as if it came from an address.
func (w *Wire) Inject(p Packet) {
	w.mu.Lock()
	to := w.sockets[p.To]
	w.mu.Unlock()
	if to != nil {
		to.receive(p.From, p.Message)
	}
}

// Sent returns the bytes that an address has sent, with their headers.
func (w *Wire) Sent(from netip.Addr) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sent[from]
}

// Packets returns the messages since its last call, lost ones too.
func (w *Wire) Packets() []Packet {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.recorded
	w.recorded = nil
	return out
}

type socket struct {
	wire    *Wire
	own     netip.Addr
	receive func(netip.Addr, []byte)
}

func (s *socket) Accept([]string) {}

func (s *socket) Send(to netip.Addr, message []byte) error {
	w := s.wire
	header := 28
	if to.Is6() {
		header = 48
	}
	p := Packet{s.own, to, append([]byte(nil), message...)}
	w.mu.Lock()
	w.sent[s.own] += len(message) + header
	w.recorded = append(w.recorded, p)
	w.recorded = w.recorded[max(0, len(w.recorded)-100):]
	w.mu.Unlock()
	if w.Lose == nil || !w.Lose(s.own, to) {
		w.Inject(p)
	}
	return nil
}

func (s *socket) Close() error {
	s.wire.mu.Lock()
	defer s.wire.mu.Unlock()
	delete(s.wire.sockets, s.own)
	return nil
}
