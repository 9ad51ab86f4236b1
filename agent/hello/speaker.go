// Package hello is the agents' own protocol. Two agents tell each other which messages of the other one they have
// received, so that each of them knows in which direction packets are lost, and how their hosts are.
//
// Messages are UDP packets between the hosts' addresses in the overlay: they are routed as the packets of containers
// are, and go through the tunnel. They pass INPUT and OUTPUT instead of FORWARD, and no bridge. A message that asks is
// answered at once by one that does not ask and is not longer.
//
// A message counts only if it comes from the address of a peer, by a device of the network. An answer must also repeat
// the nonce of the process that has asked. What a peer says affects only what is shown of this peer.
package hello

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/lenonet/leno/api"
)

// Port is the UDP port of the messages, on both sides.
const Port = 5367

// headers is the size of the headers before a message, bytes, in the longer family.
const headers = 48

// MessageLen is the size of the packet of a message without a summary, bytes.
const MessageLen = headers + headerLen

// firstSummaries is for how many seconds bytes for summaries may be saved up, and are at the start.
const firstSummaries = 30

// A Socket sends and receives messages on one address of this host. It is safe for concurrent use.
type Socket interface {
	// Accept makes the socket ignore packets that arrive by other devices than these. Before, it ignores all.
	Accept(links []string)
	// Send does not block.
	Send(to netip.Addr, message []byte) error
	// Close blocks until receive is not called any more.
	Close() error
}

// Listen opens a socket on an address of this host, in the calling thread's network namespace. The socket calls
// receive, from one goroutine, for what arrives from Port of another host.
type Listen func(ctx context.Context, own netip.Addr, receive func(from netip.Addr, message []byte)) (Socket, error)

// State is what a Speaker needs to know of this host and its network.
type State struct {
	Own     []netip.Addr  // this host's addresses, one of each family at most
	Links   []string      // devices by which packets of peers arrive
	Peers   []netip.Addr  // their addresses
	Pause   time.Duration // within which each peer is asked again
	Summary api.HostSummary
}

// Speaker speaks with the peers of one network. It is safe for concurrent use.
type Speaker struct {
	listen      Listen
	bytesPerSec float64 // for summaries
	nonce       uint64

	mu       sync.Mutex
	sockets  map[netip.Addr]Socket
	peers    map[netip.Addr]*peer
	pause    time.Duration
	summary  []byte
	number   int     // of summary, 0 for none
	spare    float64 // bytes that may be sent for summaries now
	refilled time.Time
	answered limits
}

// NewSpeaker returns a Speaker that uses at most so many bytes a second for summaries, except for the first ones.
func NewSpeaker(listen Listen, bytesPerSec int) *Speaker {
	return &Speaker{
		listen:      listen,
		bytesPerSec: float64(bytesPerSec),
		spare:       float64(firstSummaries * bytesPerSec),
		nonce:       rand.Uint64() | 1,
		sockets:     map[netip.Addr]Socket{},
		peers:       map[netip.Addr]*peer{},
	}
}

// Follow takes over a state: it opens and closes sockets, forgets the peers that are not in it, and answers the others.
// It continues after errors and joins them. The zero State ends everything. Calls must not overlap.
func (s *Speaker) Follow(ctx context.Context, now State) error {
	errs := s.follow(ctx, now)
	for _, socket := range s.sockets {
		socket.Accept(now.Links)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.peers
	s.peers = map[netip.Addr]*peer{}
	for _, addr := range now.Peers {
		if s.peers[addr] = known[addr]; s.peers[addr] == nil {
			s.peers[addr] = &peer{}
		}
	}
	s.pause = now.Pause
	if summary := marshalSummary(now.Summary); s.number == 0 || !bytes.Equal(summary, s.summary) {
		s.summary = summary
		s.number++
	}
	return errors.Join(errs...)
}

// follow opens and closes sockets.
func (s *Speaker) follow(ctx context.Context, now State) (errs []error) {
	wanted := map[netip.Addr]Socket{}
	for _, own := range now.Own {
		socket := s.sockets[own]
		if socket == nil {
			var err error
			if socket, err = s.listen(ctx, own, s.receive); err != nil {
				errs = append(errs, fmt.Errorf("listen on UDP port %d of %s: %w", Port, own, err))
				continue
			}
		}
		wanted[own] = socket
	}
	s.mu.Lock()
	before := s.sockets
	s.sockets = wanted
	s.mu.Unlock()
	for own, socket := range before {
		if wanted[own] == nil {
			errs = append(errs, socket.Close())
		}
	}
	return errs
}

// Ask sends a message that asks to a peer, nothing if there is no socket of its family.
func (s *Speaker) Ask(to netip.Addr) {
	s.mu.Lock()
	socket, p, now := s.socket(to), s.peers[to], time.Now()
	if socket == nil || p == nil {
		s.mu.Unlock()
		return
	}
	m := p.next(now, s.nonce)
	m.asks = true
	s.tell(p, &m, maxSummary, now)
	s.mu.Unlock()
	_ = socket.Send(to, m.marshal()) // a message that could not be sent is lost
}

// Forget makes the messages so far to and from a peer count no more.
func (s *Speaker) Forget(peer netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.peers[peer]; p != nil {
		p.forget()
	}
}

// Of returns what is known of a peer.
func (s *Speaker) Of(peer netip.Addr) View {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.peers[peer]; p != nil {
		return p.view(time.Now())
	}
	return View{}
}

// socket returns the socket of an address's family, nil if there is none. The caller holds mu.
func (s *Speaker) socket(to netip.Addr) Socket {
	for own, socket := range s.sockets {
		if own.Is4() == to.Is4() {
			return socket
		}
	}
	return nil
}

// tell adds to a message what it says of this host, with the summary if the peer has been heard and does not have it,
// and it fits into room. The caller holds mu.
func (s *Speaker) tell(p *peer, m *message, room int, now time.Time) {
	m.pause = s.pause
	m.current = p.told == s.number
	if s.refilled.IsZero() {
		s.refilled = now
	}
	s.spare = min(s.spare+now.Sub(s.refilled).Seconds()*s.bytesPerSec, firstSummaries*s.bytesPerSec)
	s.refilled = now
	if m.echo == 0 || m.current || len(s.summary) > room || float64(len(s.summary)) > s.spare ||
		p.telling == s.number && now.Sub(p.toldAt) < summaryPause {
		return
	}
	s.spare -= float64(len(s.summary))
	m.summary, m.current = s.summary, true
	p.telling, p.tellingSeq, p.toldAt = s.number, m.seq, now
}

// receive counts a message and answers it if it asks.
func (s *Speaker) receive(from netip.Addr, b []byte) {
	now := time.Now()
	m, err := parse(b)
	if err != nil {
		return
	}
	isProven := m.echo == s.nonce
	s.mu.Lock()
	p := s.peers[from]
	if p == nil || !p.admits(now, isProven) || !p.receive(m, s.nonce, now) {
		s.mu.Unlock()
		return
	}
	if m.nonce == p.nonce {
		p.hear(m, now)
	}
	socket := s.socket(from)
	if !m.asks || socket == nil || !s.answers(now, isProven) {
		s.mu.Unlock()
		return
	}
	var answer message
	if m.nonce == p.nonce {
		answer = p.next(now, s.nonce)
		s.tell(p, &answer, len(m.summary), now)
	} else {
		answer = p.answerOther(m, s.nonce)
		answer.pause = s.pause
	}
	s.mu.Unlock()
	_ = socket.Send(from, answer.marshal())
}

// answers reports whether one more question may be answered now. The caller holds mu.
func (s *Speaker) answers(now time.Time, isProven bool) bool {
	if isProven {
		return s.answered.proven.admits(now, mostAnswersPerSec, mostAnswersAtOnce)
	}
	return s.answered.others.admits(now, mostOtherAnswersPerSec, mostOtherAnswersAtOnce)
}
