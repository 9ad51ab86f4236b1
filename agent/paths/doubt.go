package paths

import (
	"slices"
	"time"

	"github.com/lenonet/leno/api"
)

const (
	// doubtPause is the shortest time from one early test of a peer to the next. A peer that says again and again that
	// packets are lost costs one small packet in that time.
	doubtPause = time.Minute

	// unansweredPasses is the number of passes in a row after which a peer that was sent packets, and sent none, is in
	// doubt. Packets that pass in one direction only are no fault.
	unansweredPasses = 2
)

// doubt is what is known of a path without a test. It never changes the state of the path, only when it is tested.
type doubt struct {
	isEarly    bool // the next test is due at once
	isDoubted  bool // something has said that packets are lost, and was taken into account
	since      time.Time
	unanswered int // passes in a row in which the peer was sent packets, and sent none
}

// follow takes over what is known of a peer now. The path is tested at once when Consul begins to report the host as
// failed, the peer begins to list this host, self, among those that it has lost, or it begins to answer no packet.
func (d *doubt) follow(now time.Time, before, peer api.Peer, said api.HostSummary, self string) {
	switch old, counters := before.Counters, peer.Counters; {
	case old == nil || counters == nil || counters.RxBytes != old.RxBytes || counters.TxBytes <= old.TxBytes:
		d.unanswered = 0
	default:
		d.unanswered++
	}
	isDoubted := peer.Member == api.MemberFailed || slices.Contains(said.Lost, self) || d.unanswered >= unansweredPasses
	switch {
	case !isDoubted:
		d.isDoubted = false
	case !d.isDoubted && (d.since.IsZero() || now.Sub(d.since) >= doubtPause):
		d.isDoubted, d.since, d.isEarly = true, now, true
	}
}
