package udp

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/internal/testkit/nstest"
)

// recording holds the IP packets that pass a device, in both directions.
type recording struct {
	t       *testing.T
	fd      int
	ending  atomic.Bool
	done    chan error
	mu      sync.Mutex // guards packets until done is closed
	packets []captured
}

type captured struct {
	sent bool // by the namespace
	pkt  []byte
}

const (
	vnetLen     = 10 // struct virtio_net_hdr, which PACKET_VNET_HDR puts first
	ethernetLen = 14
)

// asOnAWire makes a device receive what a network card would put on the wire. A veth would pass
// super packets and omit checksums.
func asOnAWire(ns *nstest.NS, link string) {
	ns.Sh("ethtool -K " + link + " gso off tso off tx-udp-segmentation off tx off gro off")
}

// record starts recording an Ethernet device, until stop is called.
func record(t *testing.T, ns *nstest.NS, link string) *recording {
	t.Helper()
	c := &recording{t: t, done: make(chan error, 1)}
	index := ns.Index(link)
	inNS(t, ns, func() (err error) {
		everything := uint16(unix.ETH_P_ALL>>8 | unix.ETH_P_ALL<<8&0xff00)
		// Protocol 0 until the socket is bound, so that no packet of another device is recorded.
		if c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(c.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20),
			unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 5_000}),
			unix.Bind(c.fd, &unix.SockaddrLinklayer{Ifindex: index, Protocol: everything}))
	})
	go func() {
		defer close(c.done)
		c.done <- c.read()
	}()
	t.Cleanup(func() {
		c.ending.Store(true)
		<-c.done
		_ = unix.Close(c.fd) // only read from
	})
	return c
}

func (c *recording) read() error {
	buf := make([]byte, 1<<17)
	for {
		ending := c.ending.Load() // read before it is known that nothing is left
		n, from, err := unix.Recvfrom(c.fd, buf, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			if ending {
				return nil
			}
			continue
		case err != nil:
			return err
		}
		at := from.(*unix.SockaddrLinklayer)
		if protocol := at.Protocol>>8 | at.Protocol<<8; protocol != unix.ETH_P_IP && protocol != unix.ETH_P_IPV6 {
			continue
		}
		one := captured{
			sent: at.Pkttype == unix.PACKET_OUTGOING,
			pkt:  append([]byte(nil), buf[vnetLen+ethernetLen:n]...),
		}
		c.mu.Lock()
		c.packets = append(c.packets, one)
		c.mu.Unlock()
	}
}

// count returns how many packets have passed for which a function is true.
func (c *recording) count(matches func(captured) bool) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.packets {
		if matches(p) {
			n++
		}
	}
	return n
}

// await waits until the recording of what arrives is complete. Otherwise the comparison that follows fails.
func await(complete func() bool) {
	for deadline := time.Now().Add(time.Minute); !complete() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}

// stop ends the recording and returns all packets that passed.
func (c *recording) stop() []captured {
	c.t.Helper()
	c.ending.Store(true)
	if err := <-c.done; err != nil {
		c.t.Fatal(err)
	}
	stats, err := unix.GetsockoptTpacketStats(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil || stats.Drops != 0 {
		c.t.Fatalf("the recording lacks %d packets of %d, %v", stats.Drops, stats.Packets, err)
	}
	return c.packets
}
