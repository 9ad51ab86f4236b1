package paths

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/hello"
	"github.com/lenonet/leno/agent/probe"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/api"
)

// Messages to a peer on a suspicious path in one pass, and the time between them.
const (
	messages       = 3
	betweenMessage = 200 * time.Millisecond
)

// speak takes over what the Speaker of a network needs to know. An error is logged once.
func (n *network) speak(ctx context.Context, host probe.Host, interval time.Duration) {
	state := hello.State{Links: host.Links(), Pause: n.every(interval, hello.MessageLen, helloPerSec) + longestPause,
		Summary: n.summary()}
	for _, subnet := range host.Subnets {
		if a := host.OverlayAddress(subnet); a.IsValid() {
			state.Own = append(state.Own, a)
		}
	}
	var fresh []*peer
	for _, p := range n.peers {
		if p.addrs == nil {
			p.addrs, fresh = []netip.Addr{}, append(fresh, p)
		}
		p.addrs = p.addrs[:0]
		for _, subnet := range p.Subnets {
			a := host.OverlayAddress(subnet)
			isOurs := slices.ContainsFunc(state.Own, func(own netip.Addr) bool { return own.Is4() == a.Is4() })
			if a.IsValid() && isOurs {
				p.addrs = append(p.addrs, a)
			}
		}
		state.Peers = append(state.Peers, p.addrs...)
	}
	err := n.speaker.Follow(ctx, state)
	if err != nil && (n.speakErr == nil || n.speakErr.Error() != err.Error()) {
		n.m.o.Log.Warn("the directions of paths to other hosts cannot be tested", "network", n.Name, "error", err)
	}
	n.speakErr = err
	for _, p := range fresh {
		n.forget(p) // the messages before took another way
	}
}

// summary returns what this host says of itself.
func (n *network) summary() api.HostSummary {
	out := n.m.o.Summary(n.Name)
	hello.CountPaths(&out, func(yield func(string, string) bool) {
		for _, p := range n.peers {
			if p.Held && !yield(p.Node, p.shown.State) {
				return
			}
		}
	})
	return out
}

// ask asks the peers that are due, and those on suspicious paths several times. One that has asked this host in the
// meantime is not due: its next message says what has arrived of the answer. A peer that may answer no echo request is
// asked whenever it is probed, so that the probe finds it lost only if its agent does not answer either.
func (n *network) ask(ctx context.Context, interval time.Duration, c chosen) {
	now, every := time.Now(), n.every(interval, hello.MessageLen, helloPerSec)
	suspicious := slices.Clone(c.suspicious)
	var due []*peer
	for _, p := range slices.Concat(c.plain, c.full, c.search) {
		if p.isFiltered || p.isSuspicious() {
			due = append(due, p)
		}
	}
	for _, p := range n.peers {
		isLossy := p.shown.ToPeer != nil && *p.shown.ToPeer > 0 || p.shown.FromPeer != nil && *p.shown.FromPeer > 0
		switch {
		case slices.Contains(suspicious, p), slices.Contains(due, p):
		case isLossy && p.Held && len(suspicious) < mostSuspicious:
			suspicious = append(suspicious, p)
		case !p.isFiltered && now.Sub(p.lastAsked(n.speaker)) >= every:
			due = append(due, p)
		}
	}
	for i := range messages {
		for _, p := range suspicious {
			n.askOne(p)
		}
		if i == 0 {
			for _, p := range due {
				n.askOne(p)
			}
		}
		if len(suspicious) == 0 || retry.Sleep(ctx, betweenMessage) != nil {
			return
		}
	}
}

func (n *network) askOne(p *peer) {
	p.asked = time.Now()
	for _, a := range p.addrs {
		n.speaker.Ask(a)
	}
}

// lastAsked returns when this host or the peer has last asked the other one. For a peer that has something to tell, it
// is later, so that the peer asks next: an answer is no longer than the question, and has no room for a summary.
func (p *peer) lastAsked(s *hello.Speaker) time.Time {
	last, hasNews := p.asked, false
	for _, a := range p.addrs {
		v := s.Of(a)
		if v.Asked.After(last) {
			last = v.Asked
		}
		hasNews = hasNews || v.HasNews
	}
	if hasNews {
		return last.Add(2 * longestPause)
	}
	return last
}

// isAnsweredSince reports whether a message that was sent since a time reached the peer, and an answer this host, in
// each family.
func (n *network) isAnsweredSince(p *peer, then time.Time) bool {
	for _, a := range p.addrs {
		if n.speaker.Of(a).Arrived.Before(then) {
			return false
		}
	}
	return len(p.addrs) > 0 && len(p.addrs) == len(p.Subnets)
}

// lostMessages returns how many of the latest messages were lost, in the worse family and direction. If all were,
// perhaps a rule drops only messages.
func (p *peer) lostMessages(s *hello.Speaker) (lost, of int) {
	for _, a := range p.addrs {
		if v := s.Of(a); v.Lost < v.Of && (of == 0 || v.Lost > lost) {
			lost, of = v.Lost, v.Of
		}
	}
	return lost, of
}

// forget makes the messages so far count no more.
func (n *network) forget(p *peer) {
	for _, a := range p.addrs {
		n.speaker.Forget(a)
	}
	p.shown.ToPeer, p.shown.FromPeer = nil, nil
}

// hear takes over what is known of each direction of the path to a peer: the worse family counts.
func (n *network) hear(p *peer) {
	wereLost := p.datagrams.unheard != ""
	p.shown.ToPeer, p.shown.FromPeer, p.datagrams.unheard = nil, nil, ""
	never := 3*n.every(n.m.o.Interval(), hello.MessageLen, helloPerSec) + longestPause // it was asked several times
	for _, a := range p.addrs {
		v := n.speaker.Of(a)
		if v.Heard.IsZero() && time.Since(p.followed) > never && n.speakErr == nil && p.speaks(n.from) {
			p.datagrams.unheard = fmt.Sprintf("only pings are known to pass, no UDP message from %s has arrived", p.Node)
		}
		to, from := v.ToPeer, v.FromPeer
		isLate := time.Since(v.Heard) > 2*longestPause+n.lasted
		isSaid := valueOf(to) == 1 && v.Heard.After(p.shown.Since)
		if p.shown.State == api.PathLost && isLate && !isSaid && valueOf(from) < 1 {
			to, from = nil, nil // of the time before
		}
		if valueOf(to) == 1 && p.shown.State != api.PathLost {
			to = nil // perhaps a rule of the peer drops only messages
			p.datagrams.unheard = fmt.Sprintf("only pings are known to pass, no UDP message from this host reaches %s", p.Node)
		}
		if valueOf(from) == 1 && (p.shown.State != api.PathLost || p.outside == silentOutside) {
			from = nil // perhaps one of this host does, or the peer's agent does not run, or its host
			p.datagrams.unheard = fmt.Sprintf("only pings are known to pass, no UDP message from %s arrives", p.Node)
		}
		p.shown.ToPeer, p.shown.FromPeer = higher(p.shown.ToPeer, to), higher(p.shown.FromPeer, from)
		if v.Summary.At.After(p.summary.At) {
			before := p.summary
			p.summary, before.At = v.Summary, v.Summary.At
			p.hasNews = p.hasNews || !reflect.DeepEqual(before, p.summary)
		}
	}
	if wereLost && p.datagrams.unheard == "" {
		n.forget(p) // what was lost before says nothing about the path now
	}
	p.datagrams.isLost = p.datagrams.isLost && p.isOnlyPinged()
}

// speaks reports whether the peer's agent has an address to send messages from: with host-gw, it needs a bridge.
func (p *peer) speaks(host probe.Host) bool { return !p.Flannel && host.Backend != "host-gw" }

func higher(a, b *float64) *float64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

// result returns what is shown of the path to a peer: what the probes say, in which direction packets are lost, whether
// the store knows that the host has failed, and that a path is reached by pings only.
func (p *peer) result() api.PeerPath {
	out := p.shown
	switch direction := p.direction(); {
	case direction == "":
	case out.State == api.PathLost:
		out.Reason = fmt.Sprintf("packets %s are lost", strings.ReplaceAll(direction, "peer", p.Node))
	case out.State == api.PathLossy:
		out.Reason += ", most of them " + strings.ReplaceAll(direction, "peer", p.Node)
	}
	if out.State != "" && out.State != api.PathReached && p.Member == api.MemberFailed {
		out.Reason += "; Consul reports the host as failed"
	}
	if out.State == api.PathReached {
		out.Reason = p.datagrams.reason()
	}
	return out
}

// direction returns the direction in which packets are lost: "to peer" or "from peer", "" if it is not known or both.
// Where all packets are lost, it is one in which nothing arrives.
func (p *peer) direction() string {
	isLost := p.shown.State == api.PathLost
	if !isLost && p.shown.State != api.PathLossy || p.shown.ToPeer == nil && p.shown.FromPeer == nil {
		return ""
	}
	to, from := valueOf(p.shown.ToPeer), valueOf(p.shown.FromPeer)
	switch {
	case isLost && from == 1 && to < 1:
		return "from peer"
	case isLost && to == 1 && from < 1:
		return "to peer"
	case isLost || p.shown.ToPeer == nil || p.shown.FromPeer == nil:
	case to >= 2*from && to >= least:
		return "to peer"
	case from >= 2*to && from >= least:
		return "from peer"
	}
	return ""
}

// least is the loss of one direction from which it is named as the cause of a lossy path.
const least = 0.1

func valueOf(p *float64) float64 {
	if p == nil {
		return 0
	}
	return *p
}

// othersReached says how the others are known to reach each other, where this host reaches none of its peers, of which
// there are several: "" if they are not. One of them has said so since this host lost it, or said so before and is up:
// it answers outside the overlay, or Consul reports it as alive. The latter does not show that they still do.
func (n *network) othersReached(held []*peer) (text string) {
	if len(held) < 2 || slices.ContainsFunc(held, func(p *peer) bool { return p.shown.State != api.PathLost }) {
		return ""
	}
	for _, p := range held {
		others := p.summary.Reached
		if !slices.Contains(p.summary.Lost, n.Node) {
			others-- // this host
		}
		switch {
		case others <= 0:
		case p.summary.At.After(p.shown.Since):
			return "others reach each other"
		case p.outside == answersOutside || p.Member == api.MemberAlive:
			text = "others are up, and reached each other before"
		}
	}
	return text
}
