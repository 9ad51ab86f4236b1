package udp

import (
	"github.com/lenonet/leno/backend/udp/offload"
)

const (
	// wireMessages is how many messages one reading of a socket brings at most,
	// each up to 64 KiB.
	wireMessages = 16

	// wireStride keeps the beginnings of the buffers out of each other's way in
	// the caches, where addresses 64 KiB apart share a set.
	wireStride = maxPacket + 1 + 64*67
)

// receiver takes datagrams from one socket to the device.
type receiver struct {
	in   []offload.Inbound
	join *offload.Joiner
	from []*peer // whose the packets of frame i are
}

func newReceiver() *receiver {
	r := &receiver{in: make([]offload.Inbound, wireMessages), join: offload.NewJoiner(true, true)}
	memory := make([]byte, wireMessages*wireStride)
	for i := range r.in {
		r.in[i].Buf = memory[i*wireStride:][:maxPacket:maxPacket]
	}
	return r
}

// fromWire reads the i-th socket until it is at its end and returns why.
func (e *engine) fromWire(i int, b Bind) error {
	r := newReceiver()
	for {
		n, err := b.Receive(r.in)
		if err != nil {
			return err
		}
		e.toDevice(i, r, r.in[:n])
	}
}

// toDevice judges datagrams and hands them to the kernel.
func (e *engine) toDevice(i int, r *receiver, in []offload.Inbound) {
	t := e.table.Load()
	device, attached := e.devices.writer(i)
	if attached {
		r.join.Join(device.Takes())
	}
	for j := range in {
		m := &in[j]
		sender := t.sources[m.From]
		for rest := m.Buf[:m.Size]; ; {
			pkt := rest[:min(len(rest), m.Segment)]
			rest = rest[len(pkt):]
			p, why := t.ingress(sender, m.From, pkt)
			if why == passed && !attached {
				why = detached
			}
			if why != passed {
				e.counts(p).rx.drop(why, 1)
			} else {
				r.add(device, p, pkt)
			}
			if len(rest) == 0 {
				break
			}
		}
	}
	if attached {
		r.write(device)
	}
}

// add puts a packet into the frames, which are written when they are full.
func (r *receiver) add(device Device, p *peer, pkt []byte) {
	if r.join.Full() {
		r.write(device)
	}
	if frame := r.join.Add(pkt); frame == len(r.from) {
		r.from = append(r.from, p)
	}
}

// write empties the frames.
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
