package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// newCrowd returns a host with a thousand peers, which are all one namespace at the other end of a VXLAN. It is a
// router on the underlay: kernels have room for a thousand neighbours, in all namespaces together.
func newCrowd(t testing.TB) (ns *nstest.NS, h Host, peers []api.Peer) {
	t.Helper()
	a, b := nstest.New(t), nstest.New(t)
	nstest.Join(nstest.Joint{NS: a, Link: "eth0", Addrs: []string{"198.18.0.1/30"}}, nstest.Joint{NS: b, Link: "eth0", Addrs: []string{"198.18.0.2/30"}})
	var addrs strings.Builder
	for i := range 1000 {
		p := api.Peer{Node: fmt.Sprintf("host-%d", i), Held: true,
			Subnets:   []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(6 + i/250), byte(1 + i%250), 0}), 24)},
			PublicIPs: []netip.Addr{netip.AddrFrom4([4]byte{198, 18, byte(1 + i/250), byte(1 + i%250)})}}
		fmt.Fprintf(&addrs, "addr add %s/32 dev leno-n\naddr add %s/32 dev eth0\n", p.Subnets[0].Addr(), p.PublicIPs[0])
		peers = append(peers, p)
	}
	for i, ns := range []*nstest.NS{a, b} {
		ns.Sh(fmt.Sprintf(`ip link add leno-n address 0a:00:00:00:00:0%d type vxlan id 1 dstport 8472 local 198.18.0.%[1]d dev eth0 nolearning
ip addr add 10.5.%[1]d.0/32 dev leno-n; ip link set leno-n mtu 1450 up
ip route add 10.0.0.0/8 via 10.5.%[2]d.0 dev leno-n onlink
ip neigh add 10.5.%[2]d.0 lladdr 0a:00:00:00:00:0%[2]d dev leno-n nud permanent
bridge fdb add 0a:00:00:00:00:0%[2]d dev leno-n dst 198.18.0.%[2]d`, i+1, 2-i))
	}
	a.Sh("ip route add 198.18.0.0/15 via 198.18.0.2")
	b.Sh("ip -batch - <<'END'\n" + addrs.String() + "END\n")
	return a, Host{Network: "n", Backend: "vxlan", Options: []byte(`{"port":8472}`), Link: "leno-n", MTU: 1450, Subnets: []netip.Prefix{prefix("10.5.1.0/24")},
		Underlay: api.Underlay{Interface: "eth0", MTU: 1500, Addresses: []netip.Addr{addr("198.18.0.1")}}}, peers
}

// TestManyPeers probes a thousand hosts of which one in ten is gone. It needs the processors for itself. That it does
// not wait for one host after the other is what TestManyPackets counts.
func TestManyPeers(t *testing.T) {
	ns, h, peers := newCrowd(t)
	for i := range peers {
		if i%10 == 0 {
			peers[i].Subnets, peers[i].PublicIPs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, byte(i / 10), 0}), 24)}, []netip.Addr{netip.AddrFrom4([4]byte{198, 19, 0, byte(1 + i/10)})}
		}
	}
	ns.Do(func() {
		got, err := Run(context.Background(), h, peers, api.ProbeRequest{Count: 1})
		if err != nil || len(got.Peers) != len(peers) {
			t.Fatalf("%d peers, %v", len(got.Peers), err)
		}
		for i, p := range got.Peers {
			if p.Node != peers[i].Node || p.Reached == (i%10 == 0) {
				t.Errorf("%s: reached %v", p.Node, p.Reached)
			}
		}
	})
}

// TestManyPackets checks that the memory for pending packets is bounded, whatever the number of packets and the
// timeout.
func TestManyPackets(t *testing.T) {
	ns, h, peers := newCrowd(t)
	for i := range peers { // no peer answers
		peers[i].Subnets = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(77 + i/250), byte(i % 250), 0}), 24)}
		peers[i].PublicIPs = []netip.Addr{netip.AddrFrom4([4]byte{198, 19, byte(i / 250), byte(1 + i%250)})}
	}
	ns.Do(func() {
		var wrong *FieldError
		if _, err := Run(context.Background(), h, peers, api.ProbeRequest{Count: 100, IntervalMS: 10, TimeoutMS: 10_000}); !errors.As(err, &wrong) {
			t.Errorf("count 100, timeout_ms 10000: %v", err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		r, err := Normalize(api.ProbeRequest{Count: 9, IntervalMS: 10, TimeoutMS: 10_000})
		if err != nil {
			t.Fatal(err)
		}
		r.TimeoutMS = 600_000 // longer than this test
		here, done, err := readKernel(h)
		if err != nil {
			t.Fatal(err)
		}
		defer done()
		s, err := open(ctx)
		if err != nil {
			t.Fatal(err)
		}
		before, goroutines := held(), runtime.NumGoroutine()
		ended := make(chan []api.PeerProbe)
		go func() { ended <- probeAll(ctx, s, planner{h, here}, peers, r) }()
		for until := time.Now().Add(2 * time.Minute); s.sent() < maxPending && time.Now().Before(until); {
			time.Sleep(5 * time.Millisecond)
		}
		if n := s.sent(); n != maxPending {
			t.Errorf("%d packets are under way", n)
		}
		// One for each pending packet, peer and path.
		more, bytes := runtime.NumGoroutine()-goroutines, held()-before
		t.Logf("%d goroutines, %d KiB", more, bytes>>10)
		if most := maxPending + 3*len(peers) + 10; more > most {
			t.Errorf("%d goroutines, of %d", more, most)
		}
		if bytes > 64<<20 {
			t.Errorf("%d KiB are held", bytes>>10)
		}
		cancel()
		for _, p := range <-ended {
			if p.Reached || p.Ways[0].NotProbed == "" {
				t.Errorf("%s", dump(p))
			}
		}
		if n := len(s.slots); n > 0 {
			t.Errorf("%d packets are under way at the end", n)
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
}

// sent returns the number of packets that have left and are still pending.
func (s *sockets) sent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pending)
}

// held returns the memory of this process's heap and stacks, in bytes.
func held() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapInuse + m.StackInuse)
}
