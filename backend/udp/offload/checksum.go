package offload

import (
	"encoding/binary"
	"math/bits"
)

// Sum adds the 16-bit words of b to a ones' complement sum, which starts at 0 (RFC 1071). The sum
// is an unfolded running value in the machine's byte order, meant only for Sum and Checksum. All
// parts except the last must be of even length.
func Sum(b []byte, sum uint64) uint64 {
	// A carry out of 64 bits is worth 1, like a carry out of 16 bits, and words added in the
	// machine's order give the sum in that order (RFC 1071, section 2). So each addition takes
	// eight bytes.
	var c uint64
	for len(b) >= 128 {
		w := (*[128]byte)(b)
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(w[0:]), c)
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(w[8:]), c)
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(w[16:]), c)
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(w[24:]), c)
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(w[32:]), c)
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(w[40:]), c)
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(w[48:]), c)
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(w[56:]), c)
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(w[64:]), c)
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(w[72:]), c)
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(w[80:]), c)
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(w[88:]), c)
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(w[96:]), c)
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(w[104:]), c)
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(w[112:]), c)
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(w[120:]), c)
		b = b[128:]
	}
	for len(b) >= 32 {
		w := (*[32]byte)(b)
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(w[0:]), c)
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(w[8:]), c)
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(w[16:]), c)
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(w[24:]), c)
		b = b[32:]
	}
	for len(b) >= 8 {
		sum, c = bits.Add64(sum, binary.NativeEndian.Uint64(b), c)
		b = b[8:]
	}
	// The remaining bytes fit into 64 bits together.
	var rest uint64
	if len(b) >= 4 {
		rest = uint64(binary.NativeEndian.Uint32(b))
		b = b[4:]
	}
	if len(b) >= 2 {
		rest += uint64(binary.NativeEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) > 0 {
		rest += word(int(b[0]) << 8)
	}
	sum, c = bits.Add64(sum, rest, c)
	// If there is a carry, the sum is small, because the value added last is.
	return sum + c
}

// Checksum returns the Internet checksum of b and of what was summed before it, as the number that
// appears in the packet. It is 0 for parts that contain their own correct checksum.
func Checksum(b []byte, sum uint64) uint16 {
	var at [2]byte
	binary.NativeEndian.PutUint16(at[:], ^fold(Sum(b, sum)))
	return binary.BigEndian.Uint16(at[:])
}

// fold reduces a sum to 16 bits. The result is 0 only if every byte summed was 0.
func fold(sum uint64) uint16 {
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	return uint16(sum)
}

// putChecksum writes the checksum for a sum.
func putChecksum(b []byte, sum uint64) {
	binary.NativeEndian.PutUint16(b, ^fold(sum))
}

// putUDPChecksum is putChecksum for UDP, where a checksum of 0 means that there is none (RFC 768).
func putUDPChecksum(b []byte, sum uint64) {
	c := ^fold(sum)
	if c == 0 {
		c = 0xffff
	}
	binary.NativeEndian.PutUint16(b, c)
}

// word returns what a number in network byte order adds to a sum.
func word(n int) uint64 {
	var at [2]byte
	binary.BigEndian.PutUint16(at[:], uint16(n))
	return uint64(binary.NativeEndian.Uint16(at[:]))
}

// addresses sums the addresses of an IP packet, the part of a pseudo-header that comes from its IP
// header (RFC 9293 section 3.1, RFC 8200 section 8.1). The sum is folded, so that words can be
// added to it.
func addresses(pkt []byte) uint64 {
	if pkt[0]>>4 == 4 {
		return uint64(fold(Sum(pkt[12:20], 0)))
	}
	return uint64(fold(Sum(pkt[8:40], 0)))
}
