// Package offload does in user space what segmentation offload leaves to a
// program on a TUN device with vnet headers: it cuts super packets into the
// packets they stand for (Splitter), joins packets into super packets
// (Joiner), and sums checksums.
//
// It owns the bytes from the vnet header to the transport header and refuses
// to know devices, sockets, peers and routes: it makes no system call, and
// what is worth sending or writing is the caller's to judge. Payload is never
// copied, and nothing is allocated once the memory of the busiest batch is
// there. No type here may be used by several goroutines at once.
package offload

import "encoding/binary"

// HeaderLen is the length of Header in bytes, on a device whose header size
// was left as it is (TUNSETVNETHDRSZ).
const HeaderLen = 10

// Flags and types of Header, from linux/virtio_net.h.
const (
	NeedsCsum = 0x01 // the transport checksum is partial
	DataValid = 0x02 // the kernel has verified the checksum

	TypeNone = 0x00
	TypeTCP4 = 0x01
	TypeTCP6 = 0x04
	TypeUDP  = 0x05 // UDP_L4: whole datagrams, not the fragments of type 3
	TypeECN  = 0x80 // beside a TCP type: CWR is set
)

// Header is struct virtio_net_hdr: what a TUN device with IFF_VNET_HDR puts
// before each packet. All zero it says that the packet is as it looks.
type Header struct {
	Flags      uint8
	Type       uint8
	HdrLen     uint16 // bytes of headers; a hint, never trusted
	GSOSize    uint16 // payload bytes of each packet but the last
	CsumStart  uint16 // where the sum of a partial checksum begins, from the packet's start
	CsumOffset uint16 // where the checksum stands, from CsumStart
}

// Decode reads a header from at least HeaderLen bytes. The fields are in the
// machine's byte order, as on every device without TUNSETVNETLE or
// TUNSETVNETBE.
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
