package paths

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/events"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/hello"
	"github.com/lenonet/leno/agent/probe"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

func TestMain(m *testing.M) {
	nstest.RunMoreAtOnce()
	m.Run()
}

// realHost is a namespace with an underlay and a device of the overlay, and a Monitor with real sockets.
type realHost struct {
	n       int
	ns      *nstest.NS
	board   *health.Board
	monitor *Monitor
}

func (h *realHost) subnet() netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", h.n))
}
func (h *realHost) outer() netip.Addr { return netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", h.n)) }

// socket resolves the names of devices in the namespace.
type socket struct {
	hello.Socket
	ns *nstest.NS
}

func (s socket) Accept(links []string) { s.ns.Do(func() { s.Socket.Accept(links) }) }

// run makes the Monitor test the path to a peer until the test ends.
func (h *realHost) run(t *testing.T, peer *realHost) {
	h.board = health.New(time.Now, nil)
	h.board.Set("n", health.Lease, api.Passing, "")
	network := Network{
		Name: "n",
		Node: fmt.Sprintf("host-%d", h.n),
		Host: func() (probe.Host, error) {
			return probe.Host{Network: "n", Backend: "vxlan", Link: "leno-n", Subnets: []netip.Prefix{h.subnet()}, MTU: 1450,
				Underlay: api.Underlay{Interface: "eth0", MTU: 1500, Addresses: []netip.Addr{h.outer()}}}, nil
		},
		Peers: func() []api.Peer {
			return []api.Peer{{Node: fmt.Sprintf("host-%d", peer.n), Subnets: []netip.Prefix{peer.subnet()},
				PublicIPs: []netip.Addr{peer.outer()}, Backend: "vxlan", Held: true}}
		},
	}
	h.monitor = New(Options{
		Log:      hclog.NewNullLogger(),
		Networks: func() []Network { return []Network{network} },
		Probe: func(ctx context.Context, host probe.Host, peers []api.Peer, r api.ProbeRequest) (out api.Probe, err error) {
			h.ns.Do(func() { out, err = probe.Run(ctx, host, peers, r) })
			return out, err
		},
		Listen: func(ctx context.Context, own netip.Addr, receive func(netip.Addr, []byte)) (out hello.Socket, err error) {
			h.ns.Do(func() { out, err = hello.ListenUDP(ctx, own, receive) })
			return socket{out, h.ns}, err
		},
		Health:   h.board,
		Events:   events.New(time.Now),
		Changed:  watch.New[struct{}](),
		Interval: func() time.Duration { return time.Second },
		Summary:  func(string) api.HostSummary { return api.HostSummary{Version: network.Node, Health: api.Passing} },
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := h.monitor.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// expect waits until the check has a text.
func (h *realHost) expect(t *testing.T, text string) {
	t.Helper()
	var last api.Health
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		last, _ = h.board.Report()
		for _, c := range last.Networks[0].Checks {
			if c.Name == health.Paths && strings.Contains(c.Reason, text) {
				return
			}
		}
	}
	t.Fatalf("host %d does not say %q: %+v, %+v", h.n, text, last.Networks, h.monitor.Of("n"))
}

// TestRealDirections: what one of two kernels drops is seen by both hosts, with the direction, and so is its end.
func TestRealDirections(t *testing.T) {
	t.Parallel()
	a, b := &realHost{n: 1, ns: nstest.New(t)}, &realHost{n: 2, ns: nstest.New(t)}
	joint := func(h *realHost, link, addr string) nstest.Joint {
		return nstest.Joint{NS: h.ns, Link: link, Addrs: []string{addr}}
	}
	nstest.Join(joint(a, "leno-n", "10.5.1.0/16"), joint(b, "leno-n", "10.5.2.0/16"))
	nstest.Join(joint(a, "eth0", "192.0.2.1/24"), joint(b, "eth0", "192.0.2.2/24"))
	a.run(t, b)
	b.run(t, a)
	for _, h := range []*realHost{a, b} {
		h.expect(t, "packets reach 1 of 1 hosts")
		for len(h.monitor.Summaries("n")) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
	}
	b.ns.Sh("nft 'add table ip t; add chain ip t c { type filter hook input priority 0; }; add rule ip t c iifname leno-n drop'")
	a.expect(t, "packets to host-2 are lost")
	b.expect(t, "packets from host-1 are lost")
	b.ns.Sh("nft delete table ip t")
	a.expect(t, "packets reach 1 of 1 hosts")
	b.expect(t, "packets reach 1 of 1 hosts")
}
