package udp

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend/udp/offload"
)

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	unix.Msghdr
	Len uint32
}

// mmsg holds the buffers of recvmmsg and sendmmsg calls.
type mmsg struct {
	headers [messages]mmsghdr
	names   [messages]unix.RawSockaddrInet6 // room for both families
	control [messages][controlLen]byte
	iov     []unix.Iovec
}

const (
	// controlSpace is the size of a control message with one integer; all that are sent and
	// received have this size (CMSG_SPACE, cmsg(3)).
	controlSpace = unix.SizeofCmsghdr + (4+unix.SizeofPtr-1)&^(unix.SizeofPtr-1)

	// controlLen has room for a segment size and a count of overflows.
	controlLen = 2 * controlSpace
)

// forReceiving points the headers to the buffers.
func (m *mmsg) forReceiving(in []offload.Inbound) {
	m.iov = m.iov[:len(in)]
	for i := range in {
		m.iov[i] = vector(in[i].Buf)
		h := &m.headers[i].Msghdr
		h.Name, h.Namelen = (*byte)(unsafe.Pointer(&m.names[i])), unix.SizeofSockaddrInet6
		h.Iov = &m.iov[i]
		h.SetIovlen(1)
		h.Control = &m.control[i][0]
		h.SetControllen(controlLen)
	}
}

// received reads what the kernel stored in the headers. lost is the socket's count of lost
// datagrams before the call; received returns the new count.
func (m *mmsg) received(in []offload.Inbound, lost uint32) uint32 {
	for i := range in {
		h := &m.headers[i]
		in[i].Size, in[i].Segment, in[i].Lost = int(h.Len), int(h.Len), 0
		in[i].From = addrPortOf(&m.names[i])
		for rest := m.control[i][:h.Controllen]; len(rest) >= unix.SizeofCmsghdr+4; {
			c := (*unix.Cmsghdr)(unsafe.Pointer(&rest[0]))
			value := binary.NativeEndian.Uint32(rest[unix.SizeofCmsghdr:])
			switch {
			case c.Level == unix.SOL_UDP && c.Type == unix.UDP_GRO && value > 0:
				in[i].Segment = int(value)
			case c.Level == unix.SOL_SOCKET && c.Type == unix.SO_RXQ_OVFL:
				in[i].Lost = int(value - lost) // the counter wraps
				lost = value
			}
			rest = rest[min(len(rest), controlSpace):]
		}
	}
	return lost
}

// addrPortOf returns the address in name, which may be of either family.
func addrPortOf(name *unix.RawSockaddrInet6) netip.AddrPort {
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&name.Port))[:])
	if name.Family == unix.AF_INET {
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(name))
		return netip.AddrPortFrom(netip.AddrFrom4(four.Addr), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(name.Addr).Unmap(), port)
}

func (m *mmsg) reset() { m.iov = m.iov[:0] }

// add fills in the i-th message with segments of o.
func (m *mmsg) add(i int, o *offload.Outbound, segments []offload.Segment) {
	first := len(m.iov)
	for j := range segments {
		seg := &segments[j]
		m.iov = append(m.iov, vector(seg.Head))
		if len(seg.Body) > 0 {
			m.iov = append(m.iov, vector(seg.Body))
		}
	}
	h := &m.headers[i].Msghdr
	h.Name, h.Namelen = (*byte)(unsafe.Pointer(&m.names[i])), setName(&m.names[i], o.To)
	h.Iov = &m.iov[first]
	h.SetIovlen(len(m.iov) - first)
	h.Control = nil
	h.SetControllen(0)
	if len(segments) > 1 {
		c := (*unix.Cmsghdr)(unsafe.Pointer(&m.control[i][0]))
		*c = unix.Cmsghdr{Level: unix.SOL_UDP, Type: unix.UDP_SEGMENT}
		c.SetLen(unix.CmsgLen(2))
		binary.NativeEndian.PutUint16(m.control[i][unix.SizeofCmsghdr:], uint16(o.Size))
		h.Control = &m.control[i][0]
		h.SetControllen(unix.CmsgSpace(2))
	}
}

// setName writes an address of either family and returns its length.
func setName(name *unix.RawSockaddrInet6, to netip.AddrPort) uint32 {
	size := uint32(unix.SizeofSockaddrInet6)
	if to.Addr().Is4() {
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(name))
		*four = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: to.Addr().As4()}
		size = unix.SizeofSockaddrInet4
	} else {
		*name = unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: to.Addr().As16()}
	}
	// The port is at the same offset in both.
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&name.Port))[:], to.Port())
	return size
}
