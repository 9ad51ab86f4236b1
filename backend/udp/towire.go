package udp

import (
	"errors"
	"syscall"

	"github.com/lenonet/leno/backend/udp/offload"
)

const (
	// deviceFrames and deviceBuffer bound what one reading of a device brings.
	// The buffer holds four super packets or many small ones and stays in the
	// cache.
	deviceFrames = 128
	deviceBuffer = 4 * (64 + maxFrame)

	// sendSegments is how many packets are sent in one go at most.
	sendSegments = 1024
)

// sender takes frames from one queue of the device to the wire.
type sender struct {
	buf    []byte
	frames [][]byte
	split  offload.Splitter

	segments []offload.Segment // of all messages, one behind the other
	out      []offload.Outbound
	to       []*peer // whom out[i] is for
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

// toWire judges frames and sends what they hold.
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

// pack puts packets for one peer into messages, as many as there is room for,
// and returns the rest. Neighbours of one size for one peer share a message,
// and a shorter one may end it.
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
			// All are of one size so far when they fill as many of it.
			if !p.alone.Load() && size <= o.Size && n < offload.MaxSegments && o.Bytes == n*o.Size && o.Bytes+size <= offload.MaxPayload && size > 0 {
				o.Segments = o.Segments[:n+1]
				o.Bytes += size
				continue
			}
		}
		first := len(s.segments) - 1
		s.out = append(s.out, offload.Outbound{To: p.sources[0], Segments: s.segments[first : first+1], Size: size, Bytes: size})
		s.to = append(s.to, p)
	}
	return nil
}

// send empties the messages.
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

// unsent counts a message that was sent in part or not at all and says whether
// the rest of it is worth trying: a size that is refused is about one segment,
// anything else about the way to the peer.
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
