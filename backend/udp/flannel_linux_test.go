package udp

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/internal/testkit/backendtest"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// flannelProxy does what flanneld's proxy does: it sends each packet of its TUN device, flannel0,
// as one datagram to the host that has the destination's subnet, writes each datagram to the device,
// and decrements the TTL both times. It knows IPv4 alone, and checks no source.
type flannelProxy struct {
	tun     *os.File
	conn    *net.UDPConn
	subnets []netip.Prefix
	peer    netip.AddrPort
	running errgroup.Group
}

// startFlannelProxy starts a proxy in a host's namespace. Its device has the host's first address,
// and the route to the whole network.
func startFlannelProxy(h backendtest.FlannelHost) *flannelProxy {
	h.T.Helper()
	p := &flannelProxy{subnets: h.Peer.Subnets, peer: netip.AddrPortFrom(h.Peer.PublicIPs[0], 8285)}
	inNS(h.T, h.NS, func() (err error) {
		if p.tun, err = openFlannelTUN(); err != nil {
			return err
		}
		at := netip.AddrPortFrom(h.PublicIPs[0], 8285)
		p.conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		return err
	})
	h.NS.Sh(fmt.Sprintf(`ip addr add %s/32 dev flannel0
ip link set flannel0 mtu 1472 up
ip route add 10.5.0.0/16 dev flannel0`, h.Subnets[0].Addr()))
	p.running.Go(func() error { return p.copy(p.tun.Read, p.send) })
	p.running.Go(func() error { return p.copy(p.conn.Read, p.receive) })
	return p
}

func openFlannelTUN() (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	request, err := unix.NewIfreq("flannel0")
	if err != nil {
		return nil, err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "flannel0"), nil
}

// copy passes packets on until reading fails.
func (p *flannelProxy) copy(read func([]byte) (int, error), write func([]byte)) error {
	buf := make([]byte, 1472)
	for {
		n, err := read(buf)
		if err != nil {
			return err
		}
		if n >= 20 && buf[0]>>4 == 4 && decrementTTL(buf) {
			write(buf[:n])
		}
	}
}

// decrementTTL decrements the TTL and adjusts the checksum (RFC 1624). It returns false at 0.
func decrementTTL(pkt []byte) bool {
	if pkt[8]--; pkt[8] == 0 {
		return false
	}
	sum := uint32(binary.BigEndian.Uint16(pkt[10:])) + 0x100
	binary.BigEndian.PutUint16(pkt[10:], uint16(sum+sum>>16))
	return true
}

func (p *flannelProxy) send(pkt []byte) {
	dst := netip.AddrFrom4([4]byte(pkt[16:20]))
	if slices.ContainsFunc(p.subnets, func(s netip.Prefix) bool { return s.Contains(dst) }) {
		_, _ = p.conn.WriteToUDPAddrPort(pkt, p.peer)
	}
}

func (p *flannelProxy) receive(pkt []byte) { _, _ = p.tun.Write(pkt) }

// stop ends the proxy. Its device goes with it.
func (p *flannelProxy) stop() {
	_ = p.tun.Close()
	_ = p.conn.Close()
	_ = p.running.Wait() // the loops end with the error of a closed file
	nstest.AwaitForks()
}

// TestFlannelHosts checks packets to and from a host that runs flannel.
func TestFlannelHosts(t *testing.T) {
	t.Parallel()
	var proxies sync.Map // of namespaces
	stop := func(h backendtest.FlannelHost) {
		if p, ok := proxies.LoadAndDelete(h.NS); ok {
			p.(*flannelProxy).stop()
		}
	}
	flannel := backendtest.Flannel{
		Pools: 1, MTUs: []int{1472},
		Attributes: func(int) string { return `{"port":8285}` },
		Start: func(h backendtest.FlannelHost) {
			stop(h)
			proxies.Store(h.NS, startFlannelProxy(h))
			h.T.Cleanup(func() { stop(h) })
		},
		Stop:     stop,
		Conflict: "address already in use",
	}
	backendtest.RunFlannel(t, backendtest.Suite{Type: Type()}, flannel)
}
