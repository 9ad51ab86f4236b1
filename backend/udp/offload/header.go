// Package offload does in user space what segmentation offload leaves to a program on a TUN device
// with vnet headers: it splits super packets into the packets they stand for (Splitter), joins
// packets into super packets (Joiner), and computes checksums.
//
// It owns the bytes from the vnet header to the transport header and knows nothing of devices,
// sockets, peers and routes. It makes no system call, and leaves it to the caller to decide what to
// send or write. Payload is never copied, and nothing is allocated once there is enough memory for
// the busiest batch. No type here may be used by several goroutines at once.
package offload

import "encoding/binary"

// HeaderLen is the length of Header in bytes, the default header size of a device
// (TUNSETVNETHDRSZ).
const HeaderLen = 10

// Flags and types of Header, from linux/virtio_net.h.
const (
	NeedsCsum = 0x01 // the transport checksum is partial
	DataValid = 0x02 // the kernel has verified the checksum

	TypeNone = 0x00
	TypeTCP4 = 0x01
	TypeTCP6 = 0x04
	TypeUDP  = 0x05 // UDP_L4: whole datagrams, not the fragments of type 3
	TypeECN  = 0x80 // combined with a TCP type: CWR is set
)

// Header is struct virtio_net_hdr, which precedes each packet on a TUN device with IFF_VNET_HDR. If
// it is all zero, the packet is complete as it is.
type Header struct {
	Flags      uint8
	Type       uint8
	HdrLen     uint16 // bytes of headers; a hint, never trusted
	GSOSize    uint16 // payload bytes of each packet except the last
	CsumStart  uint16 // where the sum of a partial checksum begins, counted from the packet's start
	CsumOffset uint16 // where the checksum is stored, counted from CsumStart
}

// Decode decodes a header from at least HeaderLen bytes. The fields are in the machine's byte
// order, as on every device without TUNSETVNETLE or TUNSETVNETBE.
func (h *Header) Decode(b []byte) {
	_ = b[HeaderLen-1]
	h.Flags, h.Type = b[0], b[1]
	h.HdrLen = binary.NativeEndian.Uint16(b[2:])
	h.GSOSize = binary.NativeEndian.Uint16(b[4:])
	h.CsumStart = binary.NativeEndian.Uint16(b[6:])
	h.CsumOffset = binary.NativeEndian.Uint16(b[8:])
}

// Encode writes the header to at least HeaderLen bytes.
func (h Header) Encode(b []byte) {
	_ = b[HeaderLen-1]
	b[0], b[1] = h.Flags, h.Type
	binary.NativeEndian.PutUint16(b[2:], h.HdrLen)
	binary.NativeEndian.PutUint16(b[4:], h.GSOSize)
	binary.NativeEndian.PutUint16(b[6:], h.CsumStart)
	binary.NativeEndian.PutUint16(b[8:], h.CsumOffset)
}
