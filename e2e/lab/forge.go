package lab

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// UDPPacket returns an IPv4 packet with a UDP datagram without a checksum.
func UDPPacket(source, to netip.AddrPort, text string) []byte {
	out := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0}
	out = append(out, source.Addr().AsSlice()...)
	out = append(out, to.Addr().AsSlice()...)
	binary.BigEndian.PutUint16(out[2:], uint16(28+len(text)))
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(out[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(out[10:], ^uint16(sum+sum>>16))
	out = binary.BigEndian.AppendUint16(out, source.Port())
	out = binary.BigEndian.AppendUint16(out, to.Port())
	out = binary.BigEndian.AppendUint16(out, uint16(8+len(text)))
	return append(append(out, 0, 0), text...)
}

// InVXLAN returns an IPv4 packet as VXLAN carries it to the device with a hardware address, with a VNI below 256.
func InVXLAN(vni byte, to net.HardwareAddr, packet []byte) []byte {
	out := append([]byte{8, 0, 0, 0, 0, 0, vni, 0}, to...)
	return append(append(out, 2, 0, 0, 0, 0, 9, 8, 0), packet...)
}
