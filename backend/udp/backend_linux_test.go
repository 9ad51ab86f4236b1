package udp

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/internal/testkit/nstest"
	"github.com/lenonet/leno/internal/testkit/waiting"
)

func TestHostsReachEachOther(t *testing.T) {
	t.Parallel()
	for _, outer := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d outside", outer), func(t *testing.T) {
			t.Parallel()
			a, b := newHosts(t, outer)
			for _, way := range []struct{ from, to *host }{{a, b}, {b, a}} {
				for _, addr := range inner(way.to.n) {
					out := ping(t, way.from.container, addr)
					// One hop on each host.
					mustContain(t, out, "ttl=62")
					ping(t, way.from.container, addr, "-s", "4000") // inner fragments
					ping(t, way.from.ns, addr)                      // from the host itself
				}
			}
			for _, addr := range inner(b.n) {
				transfer(t, a.container, b.container, addr)
			}
			for _, h := range []*host{a, b} {
				peer := h.backend.Counters()[fmt.Sprintf("host-%d", 3-h.n)]
				if peer.RxPackets == 0 || peer.TxPackets == 0 || peer.RxBytes < 1<<14 || peer.TxBytes < 1<<14 || len(peer.Drops) != 0 {
					t.Errorf("counters of host %d: %+v", h.n, peer)
				}
			}
		})
	}
}

// TestOuterPacketsMayBeFragmented checks that outer packets are fragmented if the underlay is
// narrower than the MTU allows for.
func TestOuterPacketsMayBeFragmented(t *testing.T) {
	t.Parallel()
	for _, outer := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d outside", outer), func(t *testing.T) {
			t.Parallel()
			a, b := newHosts(t, outer)
			for _, h := range []*host{a, b} {
				h.ns.Sh("ip link set eth0 mtu 1300")
			}
			ping(t, a.container, "10.5.2.2", "-M", "do", "-s", "1400")
			stream(t, a.container, b.container, "10.5.2.2")
			// The kernel does not segment messages for such a path, and the engine learns that only
			// once.
			if !a.backend.engine.table.Load().peers[0].alone.Load() {
				t.Error("many datagrams in a message are tried again and again")
			}
			if drops := a.backend.Counters()["host-2"].Drops; len(drops) != 0 {
				t.Errorf("drops %v", drops)
			}
		})
	}
}

// TestNextProcessAdopts checks that a new process adopts the device: everything in the kernel stays
// as it is.
func TestNextProcessAdopts(t *testing.T) {
	t.Parallel()
	a, b := newHosts(t, 4)
	before := a.dump()
	mustContain(t, before, "10.5.1.0/32", "fd00:5:0:1::/128", "10.5.2.0/24 dev leno-test", "fd00:5:0:2::/64 via fd00:5:0:2:: dev leno-test",
		"unreachable 10.5.0.0/16", "unreachable fd00:5::/48", "mtu 1472")
	if err := errors.Join(a.backend.Close(), a.backend.Close()); err != nil {
		t.Fatal(err)
	}
	if got := a.dump(); got != before {
		t.Errorf("after close\n%s\nwant\n%s", got, before)
	}
	a.renew()
	report := a.apply()
	if report.Writes != 3 || len(report.Repaired) != 0 {
		t.Errorf("the forwarder's table, socket and device are three writes, the kernel none: %+v", report)
	}
	if got := a.dump(); got != before {
		t.Errorf("after adoption\n%s\nwant\n%s", got, before)
	}
	ping(t, a.container, inner(b.n)[0])
	ping(t, b.container, inner(a.n)[1])

	// A closed backend can be used again too.
	if err := a.backend.Close(); err != nil {
		t.Fatal(err)
	}
	nstest.AwaitForks()
	a.apply()
	ping(t, a.container, inner(b.n)[0])
}

func TestApplyHeals(t *testing.T) {
	t.Parallel()
	a, b := newHosts(t, 4)
	before := a.dump()
	tests := []struct {
		name, harm string
		repaired   string
		newDevice  bool
	}{
		{"device deleted", "ip link del leno-test", "[device was deleted]", true},
		{"device deleted and another put in its place", "ip link del leno-test; ip tuntap add leno-test mode tun", "[device was replaced]", true},
		{"device renamed", "ip link set leno-test name other", "[device was renamed: to other]", false},
		{"device renamed while down", "ip link set leno-test down; ip link set leno-test name other", "[device was renamed: to other device was down]", false},
		{"device renamed and another put in its place", "ip link set leno-test name other; ip tuntap add leno-test mode tun", "[device was replaced]", false},
		{"device down", "ip link set leno-test down", "[device was down]", false},
		{"MTU changed", "ip link set leno-test mtu 1400", "[device had another MTU: 1400 instead of 1472]", false},
		{"alias changed", "ip link set leno-test alias mine", `[device had another alias: "mine"]`, false},
		{"addresses flushed", "ip addr flush dev leno-test", "[addresses were missing: 10.5.1.0/32 and 1 more]", false},
		{"routes flushed", "ip route flush proto 108; ip -6 route flush proto 108", "[routes were missing: 10.5.0.0/16 metric 16777216 and 3 more]", false},
		{"strange route", "ip route add 10.5.99.0/24 dev leno-test proto 108", "[foreign routes were there: 10.5.99.0/24 link INDEX]", false},
		{"strange address", "ip addr add 10.5.1.77/32 dev leno-test", "[foreign addresses were there: 10.5.1.77/32]", false},
	}
	indexless := func(dump string) string {
		var out []string
		for line := range strings.Lines(dump) {
			if i := strings.Index(line, ": leno-test"); i >= 0 {
				line = line[i:]
			}
			out = append(out, line)
		}
		return strings.Join(out, "")
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a.t = t
			a.ns.Sh(tt.harm)
			if tt.newDevice {
				eventually(t, "the reader ended", func() bool { return !a.backend.engine.devices.alive() })
			}
			report := a.apply()
			if fmt.Sprint(report.Repaired) != strings.ReplaceAll(tt.repaired, "INDEX", fmt.Sprint(a.ns.Index("leno-test"))) || report.Writes == 0 {
				t.Errorf("report %+v", report)
			}
			if got, want := indexless(a.dump()), indexless(before); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			ping(t, a.container, inner(b.n)[0])
			ping(t, b.container, inner(a.n)[1])
		})
	}
}

// TestApplyOverLeftovers checks that a leftover of another version under our name is adopted or
// replaced. A device that cannot be ours is left alone.
func TestApplyOverLeftovers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ leftover, err string }{
		"vxlan":           {"ip link add leno-test type vxlan id 1 dev eth0 dstport 8472", `of kind "vxlan": is not leno's`},
		"tap":             {"ip tuntap add leno-test mode tap", `of kind "tuntap": is not leno's`},
		"multi-queue TUN": {"ip tuntap add leno-test mode tun multi_queue", ""},
		"a plain TUN":     {"ip tuntap add leno-test mode tun; ip addr add 10.5.66.0/32 dev leno-test; ip link set leno-test up", ""},
		"vnet header TUN": {"ip tuntap add leno-test mode tun vnet_hdr", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newHost(t, 4, 1, labPeer(4, 2)), newHost(t, 4, 2, labPeer(4, 1))
			join(a, b)
			a.ns.Sh(tt.leftover)
			if tt.err != "" {
				before := a.ns.Sh("ip -d -o link show leno-test")
				if _, err := a.tryApply(a.state); err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v", err)
				}
				if _, err := a.tryApply(backend.State{}); err != nil {
					t.Errorf("zero state: %v", err)
				}
				if got := a.ns.Sh("ip -d -o link show leno-test"); got != before {
					t.Errorf("touched:\n%s\nbefore\n%s", got, before)
				}
				return
			}
			a.apply()
			b.apply()
			ping(t, a.container, inner(b.n)[0])
			if strings.Contains(a.dump(), "10.5.66.0") {
				t.Errorf("leftover address\n%s", a.dump())
			}
		})
	}
}

func TestZeroStateLeavesNothing(t *testing.T) {
	t.Parallel()
	everything := "(ip -o link | sed 's/ state .*//; s/<.*>//'; ip -o addr; ip route show table all; ip -6 route show table all; ss -Hlun) | sed -E '/fe80|ff00/d; s/ linkdown//'"
	for _, closed := range []bool{false, true} {
		a := newHost(t, 4, 1, labPeer(4, 2))
		join(a, newHost(t, 4, 2))
		before := a.ns.Sh(everything)
		a.apply()
		if a.ns.Sh(everything) == before {
			t.Fatal("apply did nothing")
		}
		if closed {
			a.renew() // a process that has never applied anything cleans up too
		}
		report, err := a.tryApply(backend.State{})
		if err != nil || report.Writes == 0 {
			t.Fatalf("zero state: %+v, %v", report, err)
		}
		// The kernel does some of it by itself, a moment later.
		waiting.Eventually(t, func() error {
			if got := a.ns.Sh(everything); got != before {
				return fmt.Errorf("left\n%s\nwant\n%s", got, before)
			}
			return nil
		})
		if a.backend.engine.devices.alive() || a.backend.engine.binds.alive() {
			t.Error("readers are left")
		}
		if report, err := a.tryApply(backend.State{}); err != nil || report.Writes != 0 {
			t.Errorf("zero state again: %+v, %v", report, err)
		}
		a.apply()
	}
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	a, b := newHost(t, 4, 1, labPeer(4, 2)), newHost(t, 4, 2, labPeer(4, 1))
	join(a, b)
	b.apply()
	var squatter *net.UDPConn
	inNS(t, a.ns, func() (err error) {
		squatter, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4zero, Port: 8285})
		return err
	})
	report, err := a.tryApply(a.state)
	if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "udp port 8285 is used by another program") {
		t.Errorf("error %v", err)
	}
	if report.Peers != 0 {
		t.Errorf("%d peers in place without a socket", report.Peers)
	}
	mustContain(t, a.dump(), "10.5.2.0/24 dev leno-test") // the rest was done
	if err := squatter.Close(); err != nil {
		t.Fatal(err)
	}
	nstest.AwaitForks()
	if report := a.apply(); report.Writes != 1 || report.Peers != 1 {
		t.Errorf("report %+v", report)
	}
	ping(t, a.container, inner(b.n)[0])
}

// TestSocketIsReopened checks that a socket that can no longer be read is opened again by the next
// Apply.
func TestSocketIsReopened(t *testing.T) {
	t.Parallel()
	a, b := newHosts(t, 4)
	nothing, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(nothing)
	if err := unix.Dup3(nothing, a.backend.engine.binds.all[0].FD(), unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	a.backend.engine.wake.ring() // poll(2) still waits for the file that the descriptor was
	eventually(t, "the reader ended", func() bool { return !a.backend.engine.binds.alive() })
	nstest.AwaitForks()
	if report := a.apply(); report.Writes != 1 || fmt.Sprint(report.Repaired) != "[socket was closed]" || report.Peers != 1 {
		t.Errorf("report %+v", report)
	}
	ping(t, a.container, inner(b.n)[0])
}

// TestEngineIsStartedAgain checks that an engine whose lanes could not be started carries nothing:
// each Apply tries again, and fails until it runs.
func TestEngineIsStartedAgain(t *testing.T) {
	t.Parallel()
	a, b := newHost(t, 4, 1, labPeer(4, 2)), newHost(t, 4, 2, labPeer(4, 1))
	join(a, b)
	b.apply()
	kernel := a.backend.engine.newWakeup
	stopped := func(when string) {
		t.Helper()
		a.backend.engine.newWakeup = func() (*wakeup, error) { return nil, fmt.Errorf("eventfd: %w", unix.EMFILE) }
		for try := range 3 {
			report, err := a.tryApply(a.state)
			if !errors.Is(err, unix.EMFILE) || backend.ByPart(err)[backend.Routes] == nil || report.Peers != 0 {
				t.Errorf("%s, try %d: %+v, %v", when, try+1, report, err)
			}
		}
		a.backend.engine.newWakeup = kernel
	}
	runs := func(when string) {
		t.Helper()
		if report := a.apply(); report.Peers != 1 {
			t.Errorf("%s: %+v", when, report)
		}
		ping(t, a.container, inner(b.n)[0])
		ping(t, b.container, inner(a.n)[1])
	}
	stopped("at the start")
	runs("after the start")

	a.ns.Sh("ip addr add 192.0.2.11/24 dev eth0")
	a.state.Underlay.Addrs, b.state.Peers[0].PublicIPs = addrs("192.0.2.11"), addrs("192.0.2.11")
	b.apply()
	stopped("with another address")
	runs("after another address")

	a.ns.Sh("ip link del leno-test")
	eventually(t, "the reader ended", func() bool { return !a.backend.engine.devices.alive() })
	stopped("with another device")
	runs("after another device")
}

func TestDeviceInUse(t *testing.T) {
	t.Parallel()
	a, b := newHosts(t, 4)
	second := newTestBackend(t)
	state := a.state
	a.ns.Sh("ip addr add 192.0.2.9/24 dev eth0")
	state.Underlay.Addrs = addrs("192.0.2.9")
	// However often the second backend tries, the first loses no packet.
	pings := make(chan string)
	go func() {
		out, err := a.container.Try("ping -n -q -i 0.002 -c 250 -W 30 10.5.2.2")
		pings <- fmt.Sprint(out, err)
	}()
	for {
		var err error
		a.ns.Do(func() { _, err = second.Apply(t.Context(), state) })
		if !errors.Is(err, kernel.ErrTUNBusy) || !strings.Contains(err.Error(), testLink) {
			t.Errorf("error %v", err)
		}
		select {
		case out := <-pings:
			mustContain(t, out, "250 received")
			if t.Failed() { // where packets were lost
				t.Logf("counters %+v, of the peer %+v", a.backend.Counters(), b.backend.Counters())
				t.Log(a.ns.Sh("ip -s link; nstat -az | grep -E 'Errors|Discards|Drop'; ss -uamn"))
			}
			return
		default:
		}
	}
}

// TestSingleQueueDeviceInUse checks that a device with our name is not taken from a program that
// made it with one queue.
func TestSingleQueueDeviceInUse(t *testing.T) {
	t.Parallel()
	h := newHost(t, 4, 1)
	h.ns.Sh("ip link add eth0 type veth peer name eth1; ip addr add 192.0.2.1/24 dev eth0; ip link set eth0 up")
	var holder int
	inNS(t, h.ns, func() (err error) {
		if holder, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
			return err
		}
		ifr, err := unix.NewIfreq(testLink)
		if err != nil {
			return err
		}
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		return errors.Join(unix.IoctlIfreq(holder, unix.TUNSETIFF, ifr), unix.IoctlSetInt(holder, unix.TUNSETPERSIST, 1))
	})
	index := h.ns.Index(testLink)
	if _, err := h.tryApply(h.state); !errors.Is(err, kernel.ErrTUNBusy) {
		t.Errorf("error %v", err)
	}
	if _, err := unix.Read(holder, make([]byte, maxPacket)); !errors.Is(err, unix.EAGAIN) || h.ns.Index(testLink) != index {
		t.Errorf("the device was taken away: %v", err)
	}
	// Once that program has left it, the device is replaced.
	if err := unix.Close(holder); err != nil {
		t.Fatal(err)
	}
	nstest.AwaitForks()
	h.apply()
	if h.ns.Index(testLink) == index {
		t.Error("the device of one queue is still there")
	}
}

// TestUnderlayAddressChanges changes the host's address under traffic; its subnet stays.
func TestUnderlayAddressChanges(t *testing.T) {
	t.Parallel()
	a, b := newHosts(t, 4)
	a.ns.Sh("ip addr add 192.0.2.11/24 dev eth0; ip addr del 192.0.2.1/24 dev eth0; ip addr add 192.0.2.11/24 dev eth0 2>/dev/null || true")
	a.state.Underlay.Addrs = addrs("192.0.2.11")
	if report := a.apply(); report.Writes != 1 || len(report.Repaired) != 0 {
		t.Errorf("report %+v", report)
	}
	mustContain(t, a.ns.Sh("ss -Hlun"), "192.0.2.11:8285")
	b.state.Peers[0].PublicIPs = addrs("192.0.2.11")
	if report := b.apply(); report.Writes != 1 {
		t.Errorf("report %+v", report)
	}
	ping(t, a.container, inner(b.n)[0])

	// A new address that does not exist yet is an error, and the old socket keeps working.
	a.state.Underlay.Addrs = addrs("192.0.2.12")
	if _, err := a.tryApply(a.state); err == nil || !strings.Contains(err.Error(), "192.0.2.12") {
		t.Errorf("error %v", err)
	}
	ping(t, a.container, inner(b.n)[0])
}

// TestVRF checks that the sockets follow the underlay into a VRF and out of it. The kernel of the test
// may lack VRFs: a socket can be bound to any device in the same way.
func TestVRF(t *testing.T) {
	t.Parallel()
	a, b := newHosts(t, 4)
	for _, step := range []struct {
		vrf   int
		shows string
	}{
		{a.ns.Index("eth0"), "192.0.2.1%eth0:8285"},
		{0, "192.0.2.1:8285"},
	} {
		a.state.Underlay.VRF = step.vrf
		if report := a.apply(); report.Writes != 1 || len(report.Repaired) != 0 {
			t.Errorf("report %+v", report)
		}
		mustContain(t, a.ns.Sh("ss -Hlun"), step.shows)
		ping(t, a.container, inner(b.n)[0])
	}
}

// TestForeignSourceIsCounted checks that a host that forwards packets that are not its own counts
// them.
func TestForeignSourceIsCounted(t *testing.T) {
	t.Parallel()
	a, _ := newHosts(t, 4)
	a.ns.Sh("ip addr add 203.0.113.1/32 dev lo")
	if out, err := a.ns.Try("ping -n -c 1 -W 1 -I 203.0.113.1 10.5.2.2"); err == nil {
		t.Errorf("answered: %s", out)
	}
	eventually(t, "it is counted", func() bool { return a.backend.Counters()["host-2"].Drops["tx_foreign_source"] == 1 })
}
