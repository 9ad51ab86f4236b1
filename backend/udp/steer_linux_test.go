package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestSteering checks that all packets of a flow go to one queue, fragmented or not, and flows are
// spread.
func TestSteering(t *testing.T) {
	t.Parallel()
	nstest.New(t) // needs root
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SocketFilter, License: "MPL-2.0", Instructions: steering()})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	queue := func(pkt []byte) uint32 {
		t.Helper()
		// The kernel removes an Ethernet header.
		q, err := program.Run(&ebpf.RunOptions{Data: append(make([]byte, 14), pkt...)})
		if err != nil {
			t.Fatal(err)
		}
		return q % 4
	}
	flow := func(family, i int, proto byte, payload []byte) ipPacket {
		p := ipPacket{src: netip.MustParseAddr("10.5.1.2"), dst: netip.MustParseAddr("10.5.2.3"), ttl: 64, proto: proto, payload: payload}
		if family == 6 {
			p.src, p.dst = netip.MustParseAddr("fd00:5:0:1::2"), netip.MustParseAddr("fd00:5:0:2::3")
		}
		for range i {
			p.src = p.src.Next()
		}
		return p
	}
	for _, family := range []int{4, 6} {
		used := map[string]map[uint32]bool{"TCP": {}, "ports of TCP": {}, "UDP": {}, "ports of UDP": {}}
		for i := range 64 {
			tcp := tcpSegment{src: 1000, dst: 80, seq: 1, flags: tcpACK, data: []byte("a")}
			same := flow(family, i, protoTCP, tcp.bytes())
			q := queue(same.bytes())
			used["TCP"][q] = true
			longer := tcp
			longer.seq, longer.ack, longer.flags, longer.data = 9, 7, tcpACK|tcpPSH, make([]byte, 999)
			same.id, same.tos, same.df, same.payload = 9, 3, true, longer.bytes()
			if got := queue(same.bytes()); got != q {
				t.Errorf("IPv%d, TCP flow %d: queue %d, then %d", family, i, q, got)
			}
			if family == 4 {
				same.options = []byte{1, 1, 1, 0}
				if got := queue(same.bytes()); got != q {
					t.Errorf("TCP flow %d: queue %d, with IP options %d", i, q, got)
				}
			}
			tcp.src += uint16(i)
			used["ports of TCP"][queue(flow(family, 0, protoTCP, tcp.bytes()).bytes())] = true

			datagram := flow(family, i, protoUDP, udpDatagram(1000, 53, []byte("datagram")))
			q = queue(datagram.bytes())
			used["UDP"][q] = true
			datagram.fragment, datagram.payload = true, []byte("a part without ports")
			part := datagram.bytes()
			if family == 4 {
				part[6] = 0x20
			} else {
				datagram.options, datagram.next = []byte{protoUDP, 0, 0, 1, 0, 0, 0, 1}, unix.IPPROTO_FRAGMENT
				part = datagram.bytes()
			}
			if got := queue(part); got != q {
				t.Errorf("IPv%d, UDP flow %d: queue %d, of a fragment %d", family, i, q, got)
			}
			used["ports of UDP"][queue(flow(family, 0, protoUDP, udpDatagram(uint16(1000+i), 53, nil)).bytes())] = true
		}
		for what, want := range map[string]int{"TCP": 4, "ports of TCP": 4, "UDP": 4, "ports of UDP": 1} {
			if len(used[what]) != want {
				t.Errorf("IPv%d: 64 %s use %d of 4 queues, want %d", family, what, len(used[what]), want)
			}
		}
		whole := flow(family, 1, protoTCP, tcpSegment{src: 1, dst: 2}.bytes()).bytes()
		if got := queue(whole[:len(whole)-20]); got != 0 {
			t.Errorf("IPv%d: a packet cut short goes to queue %d", family, got)
		}
	}
}

// TestFlowsStayInTheirQueues checks that answers written to another queue do not move a flow.
func TestFlowsStayInTheirQueues(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	var queues []*tun
	inNS(t, ns, func() (err error) {
		queues, err = openTUN(testLink, 4, allOffloads)
		return err
	})
	for _, q := range queues {
		defer q.Close()
	}
	if len(queues) != 4 {
		t.Fatalf("%d queues", len(queues))
	}
	ns.Sh("echo 1 > /proc/sys/net/ipv6/conf/leno-test/disable_ipv6\n" +
		"ip addr add 10.5.1.0/32 dev leno-test; ip link set leno-test up; ip route add 10.5.2.0/24 dev leno-test")
	sender := listenUDP(t, ns, "10.5.1.0:7")
	buf, read := deviceMemory()
	for i := range 8 {
		to := addrPort(fmt.Sprintf("10.5.2.%d:9", i+1))
		seen := map[int]bool{}
		for round := range 2 * len(queues) {
			if _, err := sender.WriteToUDPAddrPort([]byte("out"), to); err != nil {
				t.Fatal(err)
			}
			seen[readable(t, queues)] = true
			for q := range seen {
				if n, err := queues[q].Read(buf, read); n != 1 || err != nil {
					t.Fatal(n, err)
				}
			}
			answer := udpPacket(to.Addr().As4(), [4]byte{10, 5, 1, 0}, "in")
			if _, err := queues[round%len(queues)].Write(frames(answer)); err != nil {
				t.Fatal(err)
			}
		}
		if len(seen) != 1 {
			t.Errorf("packets to %s went to queues %v", to, seen)
		}
	}
}

// TestSteeringWithoutDescriptors checks that a shortage of descriptors, which is temporary, does
// not leave the device with a single queue until the next start.
func TestSteeringWithoutDescriptors(t *testing.T) {
	ns := nstest.New(t)
	inNS(t, ns, func() error {
		queues, err := openTUN(testLink, 2, allOffloads)
		return errors.Join(err, closeAll(queues))
	})
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	})
	ns.Do(func() {
		next, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Close(next)
		}
		if err == nil { // room for the device, and for nothing else
			err = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next) + 1, Max: before.Max})
		}
		if err != nil {
			t.Fatal(err)
		}
		queues, err := openTUN(testLink, 2, allOffloads)
		if !errors.Is(err, unix.EMFILE) || len(queues) > 0 && queues[0].fd >= 0 {
			t.Errorf("%d queues: %v", len(queues), err)
			if err := closeAll(queues); err != nil {
				t.Error(err)
			}
		}
	})
}
