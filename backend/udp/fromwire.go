package udp

import (
	"github.com/lenonet/leno/backend/udp/offload"
)

const (
	// wireMessages is the maximum number of messages that one read of a socket returns, each up to
	// 64 KiB.
	wireMessages = 16

	// wireStride separates the starts of the buffers in the CPU caches, where addresses 64 KiB
	// apart share a set.
	wireStride = maxPacket + 1 + 64*67
)

// receiver takes datagrams from one socket to the device.
type receiver struct {
	in   []offload.Inbound
	join *offload.Joiner
	from []*peer // the sender of the packets in frame i
}

func newReceiver() *receiver {
	r := &receiver{in: make([]offload.Inbound, wireMessages), join: offload.NewJoiner(true, true)}
	memory := make([]byte, wireMessages*wireStride)
	for i := range r.in {
		r.in[i].Buf = memory[i*wireStride:][:maxPacket:maxPacket]
	}
	return r
}

// toDevice checks datagrams and passes the accepted ones to the kernel.
func (l *lane) toDevice(in []offload.Inbound) {
	t, r := l.e.table.Load(), l.receiver
	if l.attached {
		r.join.Join(l.device.Takes())
	}
	for j := range in {
		m := &in[j]
		if m.Lost > 0 {
			l.e.unmatched.rx.drop(overflow, m.Lost)
		}
		sender := t.sources[m.From]
		for rest := m.Buf[:m.Size]; ; {
			pkt := rest[:min(len(rest), m.Segment)]
			rest = rest[len(pkt):]
			p, why := t.ingress(sender, m.From, pkt)
			if why == passed && !l.attached {
				why = detached
			}
			if why != passed {
				l.e.counts(p).rx.drop(why, 1)
			} else {
				r.add(l.device, p, pkt)
			}
			if len(rest) == 0 {
				break
			}
		}
	}
	if l.attached {
		r.write(l.device)
	}
}

// add adds a packet to the frames, which are written first if they are full.
func (r *receiver) add(device Device, p *peer, pkt []byte) {
	if r.join.Full() {
		r.write(device)
	}
	if frame := r.join.Add(pkt); frame == len(r.from) {
		r.from = append(r.from, p)
	}
}

// write writes all frames to the device and empties them.
func (r *receiver) write(device Device) {
	from := r.from
	for frames := r.join.Frames(); len(frames) > 0; {
		n, err := device.Write(frames)
		for j := range n {
			from[j].count.rx.pass(frames[j].Packets, frames[j].Bytes)
		}
		if frames, from = frames[n:], from[n:]; err == nil || len(frames) == 0 {
			break
		}
		from[0].count.rx.drop(notWritten, frames[0].Packets)
		frames, from = frames[1:], from[1:]
	}
	r.from = r.from[:0]
	r.join.Reset()
}
