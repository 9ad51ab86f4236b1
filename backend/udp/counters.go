package udp

import (
	"sync/atomic"

	"github.com/lenonet/leno/backend"
)

// reason is why a packet was not passed on.
type reason uint8

const (
	passed             reason = iota
	truncated                 // shorter than its IP header
	badVersion                // neither IPv4 nor IPv6
	badLength                 // the header's lengths and the bytes at hand differ
	unknownPeer               // rx: the outer source is no peer's address and port
	foreignSource             // rx: inner source not of that peer; tx: not of this host
	foreignDestination        // rx: inner destination not in this host's subnets
	multicast                 // tx: multicast and broadcast do not cross
	noPeer                    // tx: no peer has the destination
	tooBig                    // tx: the socket refused the size
	notWritten                // the socket or the device refused it
	detached                  // there was no socket or no device to write to
	badOffload                // tx: a vnet header that does not fit its packet
	congested                 // tx: the send buffer is full, the underlay is slower than what comes
	overflow                  // rx: lost in the socket's buffer, faster than they were read
	reasons                   // how many there are
)

func (r reason) String() string {
	return [reasons]string{
		"passed", "truncated", "bad_version", "bad_length", "unknown_peer", "foreign_source",
		"foreign_destination", "multicast", "no_peer", "too_big", "not_written", "detached", "bad_offload", "congested", "overflow",
	}[r]
}

// dropReasons are the keys of backend.Counters.Drops.
func dropReasons() (out []string) {
	for r := truncated; r < reasons; r++ {
		out = append(out, "rx_"+r.String(), "tx_"+r.String())
	}
	return out
}

// flow counts one direction.
type flow struct {
	packets, bytes atomic.Uint64 // of the inner packet
	drops          [reasons]atomic.Uint64
}

func (f *flow) pass(packets, bytes int) {
	f.packets.Add(uint64(packets))
	f.bytes.Add(uint64(bytes))
}

func (f *flow) drop(why reason, packets int) { f.drops[why].Add(uint64(packets)) }

// counters belong to one peer, or to all packets that belong to none.
type counters struct {
	rx, tx flow // from the wire, to the wire
}

func (c *counters) snapshot() backend.Counters {
	out := backend.Counters{
		RxPackets: c.rx.packets.Load(),
		RxBytes:   c.rx.bytes.Load(),
		TxPackets: c.tx.packets.Load(),
		TxBytes:   c.tx.bytes.Load(),
		Drops:     map[string]uint64{},
	}
	for r := range reasons {
		if n := c.rx.drops[r].Load(); n > 0 {
			out.Drops["rx_"+r.String()] = n
		}
		if n := c.tx.drops[r].Load(); n > 0 {
			out.Drops["tx_"+r.String()] = n
		}
	}
	return out
}
