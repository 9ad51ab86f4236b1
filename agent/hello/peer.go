package hello

import (
	"math/bits"
	"time"

	"github.com/lenonet/leno/api"
)

const (
	// window is the number of the latest messages of a direction that its loss is counted over, and least the number of
	// those whose fate must be known.
	window, least = 20, 5

	// lateAfter is how long a message may take before it counts as lost.
	lateAfter = 2 * time.Second

	// lostInRow is the number of lost messages after which a direction counts as broken, whatever came before.
	lostInRow = 6

	// silence is how much longer than its pause a peer may be silent before its messages count as lost.
	silence = 12 * time.Second

	// Received messages of one peer: those above these limits are ignored.
	mostPerSec, mostAtOnce = 8, 24
	// Answers to all peers together: questions above these limits are not answered. They count as received. Questions
	// that do not show the nonce of this process, which any host can send, have limits of their own.
	mostAnswersPerSec, mostAnswersAtOnce           = 25, 250
	mostOtherAnswersPerSec, mostOtherAnswersAtOnce = 5, 50

	// summaryPause is the shortest time from one summary to the same peer to the next.
	summaryPause = 30 * time.Second
)

// peer counts the messages to and from one address of a peer. It knows nothing of sockets.
type peer struct {
	outgoing
	incoming
	announced
	messages limits
	summary  api.HostSummary
	hasNews  bool
}

// outgoing is what this process has sent to the peer.
type outgoing struct {
	seq   uint32
	sent  [32]time.Time // when the last messages were sent, by the sequence number modulo 32
	floor uint32        // messages up to this one do not count any more

	// What the peer said last about it, and when.
	acked, ackBits uint32
	ackAt          time.Time
	arrived        time.Time // when the latest message that is known to have arrived was sent
}

// incoming is what has arrived of the peer's process.
type incoming struct {
	nonce      uint64 // 0 for none
	last, bits uint32
	base       uint32 // messages up to this one do not count
	heard      time.Time
	asked      time.Time // when its last question arrived
	pause      time.Duration
}

// announced is which of this host's summaries, by their number, the peer has.
type announced struct {
	told, telling int
	tellingSeq    uint32 // the last message with one
	toldAt        time.Time
}

// limit bounds how many messages are handled.
type limit struct {
	tokens   float64 // messages that may be handled now
	refilled time.Time
}

// limits keeps messages that show the nonce of this process, which only the peer knows, from being lost in a flood of
// others that name its address.
type limits struct{ proven, others limit }

// View is what is known of one address of a peer.
type View struct {
	Heard   time.Time // when its last message arrived, zero for never
	Asked   time.Time // when its last question arrived
	Arrived time.Time // when the latest message that is known to have reached it was sent

	HasNews bool // it said last that this host does not have its latest summary

	// The loss of each direction over the last 20 messages, 0 to 1; nil if it is not known.
	ToPeer, FromPeer *float64
	// How many of so many messages were lost, in the direction in which more were; Of is 0 if it is not known.
	Lost, Of int

	Summary api.HostSummary // At is when the peer last confirmed it, zero if it has sent none
}

func (p *peer) view(now time.Time) View {
	to, from := p.lossTo(now), p.lossFrom(now)
	worse := to
	if to.of == 0 || from.lost > to.lost {
		worse = from
	}
	return View{Heard: p.heard, Asked: p.asked, Arrived: p.arrived, HasNews: p.hasNews,
		ToPeer: to.ratio(), FromPeer: from.ratio(), Lost: worse.lost, Of: worse.of, Summary: p.summary}
}

// isSilent reports whether nothing has arrived for longer than the peer said.
func (p *peer) isSilent(now time.Time) bool { return now.Sub(p.heard) > p.pause+silence }

// isRecent reports whether a message that was sent is one of those whose times are known.
func (p *peer) isRecent(seq uint32) bool { return p.seq-seq < uint32(len(p.sent)) }

// admits reports whether one more message from the peer's address may be handled now.
func (p *peer) admits(now time.Time, isProven bool) bool {
	if isProven {
		return p.messages.proven.admits(now, mostPerSec, mostAtOnce)
	}
	return p.messages.others.admits(now, mostPerSec, mostAtOnce)
}

// admits reports whether one more message may be handled now.
func (l *limit) admits(now time.Time, perSec, atOnce float64) bool {
	if l.refilled.IsZero() {
		l.tokens = atOnce
	}
	l.tokens = min(atOnce, l.tokens+now.Sub(l.refilled).Seconds()*perSec)
	l.refilled = now
	if l.tokens < 1 {
		return false
	}
	l.tokens--
	return true
}

// next returns the message that is sent now, without its summary.
func (p *peer) next(now time.Time, nonce uint64) message {
	p.seq++
	p.sent[p.seq%32] = now
	m := message{seq: p.seq, nonce: nonce}
	if p.nonce != 0 && !p.isSilent(now) {
		m.echo, m.last, m.received = p.nonce, p.last, p.bits
	}
	return m
}

// answerOther returns the answer to a process that does not count yet. It takes no sequence number, because the process
// that counts does not get it.
func (p *peer) answerOther(m message, nonce uint64) message {
	return message{seq: max(p.seq, 1), nonce: nonce, echo: m.nonce, last: m.seq, received: 1}
}

// receive counts a message of the peer. own is the nonce of this process. It reports whether the message is one that
// this process can believe: not a repeated one, and no answer to someone else.
//
// Another process of the peer counts instead of the one before when it says that it has received one of the latest
// messages, or when nothing else is heard of the peer. If that was wrong, because the message was forged or old,
// it ends with the next message of the process that lives.
func (p *peer) receive(m message, own uint64, now time.Time) bool {
	isToUs := m.echo == own
	switch {
	case m.nonce == own, !m.asks && !isToUs, isToUs && m.last > p.seq:
		return false
	case m.nonce != p.nonce && (p.nonce == 0 || isToUs && p.isRecent(m.last) || p.isSilent(now)):
		p.nonce = m.nonce
		p.last, p.bits, p.base = m.seq-1, 0, m.seq-1
		p.acked, p.ackBits, p.ackAt = 0, 0, time.Time{}
		p.floor, p.announced = p.seq, announced{}
	case m.nonce != p.nonce:
		return true // a new process, perhaps: it is answered, and counts when it echoes that
	}
	isLatest := m.seq > p.last
	if !p.count(m.seq) {
		return false
	}
	p.heard, p.pause = now, m.pause
	if m.asks {
		p.asked = now
	}
	if isLatest && (isToUs || m.echo == 0) {
		p.acknowledge(m, now)
	}
	return true
}

// count counts a message that has arrived. It reports false for a repeated or very late one.
func (p *peer) count(seq uint32) bool {
	if seq > p.last {
		p.bits = p.bits<<min(seq-p.last, 32) | 1
		p.last = seq
		return true
	}
	bit := uint32(1) << min(p.last-seq, 31)
	if p.last-seq > 31 || p.bits&bit != 0 {
		return false
	}
	p.bits |= bit
	p.base = min(p.base, seq-1)
	return true
}

// acknowledge takes over what a message says of those that this process has sent. One without an echo says that none
// has arrived.
func (p *peer) acknowledge(m message, now time.Time) {
	p.acked, p.ackBits, p.ackAt = m.last, m.received, now
	if m.last != 0 && p.isRecent(m.last) {
		p.arrived = p.sent[m.last%32]
	}
	if d := m.last - p.tellingSeq; p.telling != 0 && m.last >= p.tellingSeq && d < 32 && m.received>>d&1 != 0 {
		p.told = p.telling
	}
}

// forget makes the messages so far count no more.
func (p *peer) forget() { p.floor, p.base = p.seq, p.last }

// loss is how many of so many messages were lost; zero if that is not known.
type loss struct{ lost, of int }

func (l loss) ratio() *float64 {
	if l.of == 0 {
		return nil
	}
	out := float64(l.lost) / float64(l.of)
	return &out
}

// lossTo returns the loss of the direction to the peer, zero if the peer has not said enough about it recently.
func (p *peer) lossTo(now time.Time) loss {
	if p.ackAt.IsZero() || p.isSilent(now) {
		return loss{}
	}
	known, lost, isRow := 0, 0, true
	for i := range min(uint32(len(p.sent)), p.seq-p.floor) {
		seq := p.seq - i
		isLost := true
		switch {
		case seq <= p.acked:
			d := p.acked - seq
			isLost = d >= 32 || p.ackBits>>d&1 == 0
		case p.ackAt.Sub(p.sent[seq%32]) < lateAfter:
			continue // it may be under way
		}
		known++
		isRow = isRow && isLost
		if isLost {
			lost++
		}
		if isRow && lost == lostInRow {
			return loss{lost, lost}
		}
		if known == window {
			break
		}
	}
	if known < least {
		return loss{}
	}
	return loss{lost, known}
}

// lossFrom returns the loss of the direction from the peer, zero if too few of its messages have arrived.
func (p *peer) lossFrom(now time.Time) loss {
	if p.heard.IsZero() {
		return loss{}
	}
	if p.isSilent(now) {
		return loss{1, 1}
	}
	n := int(min(window, p.last-p.base))
	if n < least {
		return loss{}
	}
	return loss{n - bits.OnesCount32(p.bits&(1<<n-1)), n}
}

// hear takes over what a message says of the peer's host. A summary that cannot be read changes nothing.
func (p *peer) hear(m message, now time.Time) {
	p.hasNews = !m.current
	if len(m.summary) > 0 {
		s, err := parseSummary(m.summary)
		if err != nil {
			return
		}
		p.summary = s
		p.summary.At = now
	} else if m.current && !p.summary.At.IsZero() {
		p.summary.At = now
	}
}
