package firewall

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/firewall/netfilter"
	"github.com/lenonet/leno/internal/testkit/firewalltest"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// load makes new connections from a container to the world, alternately TCP and UDP, up to 1,000 a second of each.
type load struct {
	to, from string // the address connected to, and the source it must see

	made   atomic.Int64
	failed error
	wrong  []string // the source it saw instead
}

// enoughConnections is the number of connections of each family in which one with a wrong source would be seen.
const enoughConnections = 400

// underLoad makes connections of both families while during runs, and fails the test when one was refused, lost a
// packet, or had a wrong source. during ends at the earliest when there were enough. It returns the number of connections.
func underLoad(t *testing.T, l lane, during func(enough func() bool)) int64 {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	loads := []*load{{to: "192.0.2.1", from: "192.0.2.34"}, {to: "2001:db8::1", from: "2001:db8::34"}}
	var all sync.WaitGroup
	for _, load := range loads {
		var streams net.Listener
		var packets net.PacketConn
		var err error
		l.world.Do(func() {
			var failed error
			streams, err = net.Listen("tcp", net.JoinHostPort(load.to, "0"))
			packets, failed = net.ListenPacket("udp", net.JoinHostPort(load.to, "0"))
			err = errors.Join(err, failed)
		})
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			defer streams.Close()
			defer packets.Close()
			l.container.Do(func() { load.failed = load.run(ctx, streams, packets) })
		})
	}
	deadline := time.Now().Add(2 * time.Minute)
	during(func() bool {
		return time.Now().After(deadline) || !slices.ContainsFunc(loads, func(l *load) bool { return l.made.Load() < enoughConnections })
	})
	stop()
	all.Wait()
	made := int64(0)
	for _, load := range loads {
		n := load.made.Load()
		made += n
		if load.failed != nil || len(load.wrong) > 0 || n < enoughConnections {
			t.Errorf("to %s: %d connections, %d of them with a wrong source %q, %v", load.to, n, len(load.wrong), load.wrong, load.failed)
		}
	}
	if again := retransmitted(l.container); again != "0" {
		t.Errorf("%s packets of the container were lost and sent again", again)
	}
	return made
}

// run makes connections every millisecond, or as soon as the previous one is made.
func (l *load) run(ctx context.Context, streams net.Listener, packets net.PacketConn) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		stream, err := connectStream(streams)
		if err != nil {
			return err
		}
		packet, err := sendPacket(packets)
		if err != nil {
			return err
		}
		for protocol, from := range map[string]netip.AddrPort{"TCP": stream, "UDP": packet} {
			if l.made.Add(1); from.Addr().Unmap().String() != l.from {
				l.wrong = append(l.wrong, protocol+" "+from.String())
			}
		}
	}
}

// connectStream opens a connection and returns the source that the listener saw. It resets the connection at once, so
// that no port stays in use.
func connectStream(to net.Listener) (from netip.AddrPort, err error) {
	conn, err := net.DialTCP("tcp", nil, to.Addr().(*net.TCPAddr))
	if err != nil {
		return from, err
	}
	seen, err := to.Accept()
	if err != nil {
		return from, err
	}
	return seen.RemoteAddr().(*net.TCPAddr).AddrPort(), errors.Join(conn.SetLinger(0), conn.Close(), seen.Close())
}

// sendPacket sends one packet from a new socket and returns the source that was seen.
func sendPacket(to net.PacketConn) (from netip.AddrPort, err error) {
	conn, err := net.DialUDP("udp", nil, to.LocalAddr().(*net.UDPAddr))
	if err != nil {
		return from, err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte{1}); err != nil {
		return from, err
	}
	if err := to.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return from, err
	}
	_, who, err := to.ReadFrom(make([]byte, 1))
	if err != nil {
		return from, err
	}
	return who.(*net.UDPAddr).AddrPort(), nil
}

// retransmitted returns the number of TCP segments that were sent again. A dropped first segment is sent again after
// a second.
func retransmitted(ns *nstest.NS) string {
	lines := regexp.MustCompile(`(?m)^Tcp: (.*)$`).FindAllStringSubmatch(ns.Sh("cat /proc/net/snmp"), 2)
	names, values := strings.Fields(lines[0][1]), strings.Fields(lines[1][1])
	for i, name := range names {
		if name == "RetransSegs" {
			return values[i]
		}
	}
	return "an unknown number of"
}

// replaced returns successive states, all of which masquerade the container.
func replaced() []State {
	states := []State{{}, {}, {}, {}, {}, {}}
	for i := range states {
		states[i] = State{RandomFully: true, Networks: two()}
	}
	states[1].Networks = two()[:1] // the second network is gone
	states[2].Networks[1].IPMasq = false
	states[3].Networks[1].Forward = false
	// The subnet changed, and another network comes first.
	states[4].Networks[0].Subnets = prefixes("10.5.32.0/20", "fd00:5:0:20::/60")
	states[4].Networks = append([]Network{{Name: "another", Pools: prefixes("10.7.0.0/16", "fd00:7::/48"),
		Subnets: prefixes("10.7.1.0/24", "fd00:7:0:1::/64"), IPMasq: true, Forward: true}}, states[4].Networks...)
	states[5].RandomFully = false
	return states
}

// applyUntil applies successive states until there were enough connections, and each of them at least twice.
func applyUntil(t *testing.T, enough func() bool, ns *nstest.NS, fw *Firewall, states int, state func(i int) State) (times int) {
	t.Helper()
	ns.Do(func() {
		for ; !enough() || times < 2*states; times++ {
			report, err := fw.Apply(t.Context(), state(times%states))
			if err = errors.Join(err, report.Leftover); err != nil || report.Writes == 0 {
				t.Fatalf("state %d: %+v, %v", times%states, report, err)
			}
		}
	})
	return times
}

// Whatever state is replaced, no new connection has a wrong source and none fails.
func TestReplacedUnderLoad(t *testing.T) {
	t.Parallel()
	variants(t, func(t *testing.T, _ *nstest.NS, h harness) {
		l, fw, states, times := newLane(t), h.only(), replaced(), 0
		l.host.Sh(h.drop)
		apply(t, l.host, fw, two(), h.tables)
		made := underLoad(t, l, func(enough func() bool) {
			times = applyUntil(t, enough, l.host, fw, len(states), func(i int) State { return states[(i+1)%len(states)] })
		})
		t.Logf("%d connections, rules replaced %d times", made, times)
	})
}

// The same holds when another kind of firewall takes over the rules, by configuration or because the host prefers
// another iptables.
func TestKindChangedUnderLoad(t *testing.T) {
	l, fw, times := newLane(t), New(hclog.NewNullLogger()), 0
	programs := firewalltest.NewPrograms(t)
	kinds := []struct {
		wanted Type
		prefer string
	}{{TypeAuto, netfilter.VariantNFT}, {TypeNFTables, netfilter.VariantNFT}, {TypeAuto, netfilter.VariantLegacy}, {TypeAuto, netfilter.VariantNFT}, {TypeAuto, netfilter.VariantLegacy}, {TypeNFTables, netfilter.VariantLegacy}}
	state := func(i int) State {
		programs.Prefer(kinds[i].prefer)
		return State{Type: kinds[i].wanted, RandomFully: true, Networks: two()}
	}
	l.host.Do(func() {
		if _, err := fw.Apply(t.Context(), state(len(kinds)-1)); err != nil {
			t.Fatal(err)
		}
	})
	made := underLoad(t, l, func(enough func() bool) {
		times = applyUntil(t, enough, l.host, fw, len(kinds), state)
	})
	t.Logf("%d connections, another kind %d times", made, times)
}
