package udp

import (
	"errors"
	"syscall"

	"github.com/lenonet/leno/backend/udp/offload"
)

const (
	// deviceFrames and deviceBuffer limit what one read of a device returns. The buffer holds four
	// super packets or many small ones and stays in the cache.
	deviceFrames = 128
	deviceBuffer = 4 * (64 + maxFrame)

	// sendSegments is the maximum number of packets sent in one go.
	sendSegments = 1024
)

// sender takes frames from one queue of the device to the wire.
type sender struct {
	buf    []byte
	frames [][]byte
	split  offload.Splitter

	segments []offload.Segment // of all messages, one after the other
	out      []offload.Outbound
	to       []*peer // the receiver of out[i]
}

func newSender() *sender {
	return &sender{
		buf:      make([]byte, deviceBuffer),
		frames:   make([][]byte, deviceFrames),
		segments: make([]offload.Segment, 0, sendSegments),
		out:      make([]offload.Outbound, 0, sendSegments),
		to:       make([]*peer, 0, sendSegments),
	}
}

// toWire checks frames and sends the packets they hold.
func (l *lane) toWire(frames [][]byte) {
	t, s := l.e.table.Load(), l.sender
	for _, frame := range frames {
		p, why := t.egress(frame)
		if why != passed {
			l.e.counts(p).tx.drop(why, 1)
			continue
		}
		segments, err := s.split.Split(frame)
		if err != nil {
			p.count.tx.drop(badOffload, 1)
			continue
		}
		for len(segments) > 0 {
			segments = s.pack(p, segments)
			if len(segments) > 0 {
				l.send()
			}
		}
	}
	l.send()
	s.split.Reset()
}

// pack puts as many packets for one peer into messages as there is room for, and returns the rest.
// Consecutive packets of one size for one peer share a message; a shorter one may end it.
func (s *sender) pack(p *peer, segments []offload.Segment) (rest []offload.Segment) {
	for i := range segments {
		size := len(segments[i].Head) + len(segments[i].Body)
		if len(s.segments) == cap(s.segments) {
			return segments[i:]
		}
		s.segments = append(s.segments, segments[i])
		if last := len(s.out) - 1; last >= 0 && s.to[last] == p {
			o := &s.out[last]
			n := len(o.Segments)
			// So far all segments are of one size if together they fill that many times the size.
			if !p.alone.Load() && size <= o.Size && n < offload.MaxSegments && o.Bytes == n*o.Size &&
				o.Bytes+size <= offload.MaxPayload && size > 0 {
				o.Segments = o.Segments[:n+1]
				o.Bytes += size
				continue
			}
		}
		first := len(s.segments) - 1
		s.out = append(s.out, offload.Outbound{To: p.sources[0], Segments: s.segments[first : first+1], Size: size,
			Bytes: size})
		s.to = append(s.to, p)
	}
	return nil
}

// send sends all messages and empties the lists.
func (l *lane) send() {
	s := l.sender
	for out, to := s.out, s.to; len(out) > 0; {
		if !l.listening {
			to[0].count.tx.drop(detached, len(out[0].Segments))
			out, to = out[1:], to[1:]
			continue
		}
		n, err := l.bind.Send(out)
		for j := range n {
			to[j].count.tx.pass(len(out[j].Segments), out[j].Bytes)
			if out[j].Alone {
				to[j].alone.Store(true)
			}
		}
		out, to = out[n:], to[n:]
		if len(out) == 0 {
			break
		}
		if !unsent(&out[0], &to[0].count.tx, err) {
			out, to = out[1:], to[1:]
		}
	}
	s.segments, s.out, s.to = s.segments[:0], s.out[:0], s.to[:0]
}

// unsent counts a message that was not sent completely, and reports whether the rest of it is worth
// trying. A refused size concerns one segment; any other error concerns the path to the peer.
func unsent(o *offload.Outbound, count *flow, err error) (again bool) {
	for _, s := range o.Segments[:o.Sent] {
		count.pass(1, len(s.Head)+len(s.Body))
	}
	rest := o.Segments[o.Sent:]
	switch {
	case errors.Is(err, syscall.EAGAIN):
		count.drop(congested, len(rest))
		return false
	case !errors.Is(err, syscall.EMSGSIZE):
		count.drop(notWritten, len(rest))
		return false
	}
	count.drop(tooBig, 1)
	*o = offload.Outbound{To: o.To, Segments: rest[1:], Size: o.Size}
	for _, s := range o.Segments {
		o.Bytes += len(s.Head) + len(s.Body)
	}
	if len(o.Segments) == 1 {
		o.Size = o.Bytes
	}
	return len(o.Segments) > 0
}
