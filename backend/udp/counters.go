package udp

import (
	"sync/atomic"

	"github.com/lenonet/leno/backend"
)

// reason tells why a packet was not passed on.
type reason uint8

const (
	passed             reason = iota
	truncated                 // shorter than its IP header
	badVersion                // neither IPv4 nor IPv6
	badLength                 // the header's lengths do not match the number of bytes
	unknownPeer               // rx: the outer source is not the address and port of any peer
	foreignSource             // rx: the inner source is not the peer's; tx: it is not this host's
	foreignDestination        // rx: the inner destination is not in this host's subnets
	multicast                 // tx: multicast and broadcast are not carried
	noPeer                    // tx: no peer has the destination
	tooBig                    // tx: the socket refused the size
	notWritten                // refused by the socket or the device
	detached                  // no socket or no device to write to
	badOffload                // tx: a vnet header that does not fit its packet
	congested                 // tx: the send buffer is full; the underlay is slower than the traffic
	overflow                  // rx: lost in the socket's buffer; packets came faster than they were read
	reasons                   // number of reasons
)

func (r reason) String() string {
	return [reasons]string{
		"passed", "truncated", "bad_version", "bad_length", "unknown_peer", "foreign_source",
		"foreign_destination", "multicast", "no_peer", "too_big", "not_written", "detached", "bad_offload", "congested",
		"overflow",
	}[r]
}

// directions tells on which way packets can be dropped for the reason.
func (r reason) directions() []string {
	switch r {
	case unknownPeer, foreignDestination, overflow:
		return []string{"rx"}
	case multicast, noPeer, tooBig, badOffload, congested:
		return []string{"tx"}
	}
	return []string{"rx", "tx"}
}

// dropReasons returns the keys of backend.Counters.Drops.
func dropReasons() (out []string) {
	for r := truncated; r < reasons; r++ {
		for _, direction := range r.directions() {
			out = append(out, direction+"_"+r.String())
		}
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

// counters counts the packets of one peer, or all packets that belong to no peer.
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
