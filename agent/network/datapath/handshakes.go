package datapath

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

const (
	// sessionLife is how long a handshake lets two hosts exchange packets. WireGuard calls it REJECT_AFTER_TIME, and
	// renews a session before only while packets are sent.
	sessionLife = 180 * time.Second
	// handshakeTime is how long a handshake may take: it is repeated after 5 s if it got no answer.
	handshakeTime = 10 * time.Second
	// namedPeers is the number of peers that a reason names.
	namedPeers = 3
)

// handshakes finds the peers that packets are sent to although there is no session with them. An idle peer needs none.
type handshakes struct {
	peers map[string]*sender // without a session, by node name
}

// A sender is what is known of the packets to one peer while there is no session with it.
type sender struct {
	bytes uint64    // sent before the last look
	began time.Time // when the first of them were seen, zero for none
	last  time.Time // when the last ones were seen
	late  bool      // has been reported
}

// A lateHandshake names a peer without a session that packets are sent to.
type lateHandshake struct {
	node string
	last time.Time // when there was a handshake with it; zero for never
	new  bool      // the look before did not report it
}

func (l lateHandshake) String() string {
	if l.last.IsZero() {
		return l.node + " so far"
	}
	return fmt.Sprintf("%s since %s", l.node, l.last.UTC().Format("2006-01-02 15:04:05 UTC"))
}

// look compares the counters of peers with those of the look before, and returns the late handshakes, sorted by name.
// unproven names the peers with which there was no handshake so far, and away reports whether a peer's host is known to
// be down. next is how long it takes until another handshake can be late, 0 if none is waited for.
func (h *handshakes) look(now time.Time, counted map[string]backend.Counters, unproven []string,
	away func(node string) bool) (late []lateHandshake, next time.Duration) {
	before := h.peers
	h.peers = map[string]*sender{}
	for _, node := range slices.Sorted(maps.Keys(counted)) {
		c := counted[node]
		never := slices.Contains(unproven, node)
		if away(node) || !never && now.Sub(c.Handshake) <= sessionLife || !never && c.Handshake.IsZero() {
			continue
		}
		s := before[node]
		switch {
		case s != nil:
		case never:
			s = &sender{} // counts from zero with a new peer
		default:
			s = &sender{bytes: c.TxBytes} // which may have been sent in the session
		}
		h.peers[node] = s
		if c.TxBytes > s.bytes {
			s.last = now
			if s.began.IsZero() {
				s.began = now
			}
		} else if !never && now.Sub(s.last) > sessionLife {
			s.began = time.Time{} // idle
		}
		s.bytes = c.TxBytes
		if s.began.IsZero() {
			s.late = false
			continue
		}
		if wait := handshakeTime - now.Sub(s.began); wait > 0 {
			if next == 0 || wait < next {
				next = wait
			}
			continue
		}
		late = append(late, lateHandshake{node: node, last: c.Handshake, new: !s.late})
		s.late = true
	}
	return late, next
}

// errLate returns the error about late handshakes, nil if there are none: "no handshake with host-b so far".
func errLate(late []lateHandshake) error {
	if len(late) == 0 {
		return nil
	}
	text := registry.Join(late[:min(len(late), namedPeers)])
	if more := len(late) - namedPeers; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Errorf("%w with %s", backend.ErrNoHandshake, text)
}
