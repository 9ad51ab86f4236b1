package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/registry"
	requests "github.com/lenonet/leno/registry/consul/transport"
)

// A meter counts what a simulated host receives over all its connections: HTTP including headers,
// without TCP and IP.
type meter struct{ received atomic.Int64 }

func (m *meter) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &meteredConn{conn, m}, nil
}

type meteredConn struct {
	net.Conn
	meter *meter
}

func (c *meteredConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.meter.received.Add(int64(n))
	return n, err
}

// A layout is a way of watching.
type layout struct {
	name string
	open func(s store, i int, n registry.Network, m *meter) (follower, error)
}

// A follower blocks until the leases differ from those at the index.
type follower func(ctx context.Context, after uint64) ([]registry.Lease, uint64, error)

var (
	// leno is the registry client of an agent.
	leno = layout{"leno", openLeno}
	// plain is the obvious implementation: a blocking query for everything below the prefix, which
	// any server may answer, compressed as Go's HTTP client requests by default.
	plain = layout{"plain watch", func(s store, i int, n registry.Network, m *meter) (follower, error) {
		return openPlain(s.address(i), n, m, true)
	}}
	// uncompressed is the same without compression, as in most other programs.
	uncompressed = layout{"plain watch, no gzip", func(s store, i int, n registry.Network, m *meter) (follower, error) {
		return openPlain(s.address(i), n, m, false)
	}}
)

func openLeno(s store, i int, n registry.Network, m *meter) (follower, error) {
	client, err := s.open(i, n.Name, m)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, after uint64) ([]registry.Lease, uint64, error) {
		set, index, err := client.WatchLeases(ctx, n, after)
		if err == nil && len(set.Bad) > 0 {
			err = fmt.Errorf("record %s: %s", set.Bad[0].Key, set.Bad[0].Reason)
		}
		if ctx.Err() != nil {
			err = errors.Join(ctx.Err(), client.Close())
		}
		return set.Leases, index, err
	}, nil
}

func openPlain(address string, n registry.Network, m *meter, gzip bool) (follower, error) {
	transport := &http.Transport{DialContext: m.dial, DisableCompression: !gzip}
	client, err := api.NewClient(&api.Config{Address: address, HttpClient: &http.Client{Transport: transport}})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, after uint64) ([]registry.Lease, uint64, error) {
		options := (&api.QueryOptions{AllowStale: true, WaitIndex: after, WaitTime: requests.DefaultWait}).WithContext(ctx)
		pairs, meta, err := client.KV().List("leno/leases/"+n.Name+"/", options)
		if ctx.Err() != nil {
			transport.CloseIdleConnections()
		}
		if err != nil {
			return nil, 0, err
		}
		leases, err := parse(n, pairs)
		return leases, meta.LastIndex, err
	}, nil
}

// A watcher is one simulated host that follows the leases of a network.
type watcher struct {
	meter
	follow follower
	reads  atomic.Int64
	view   []registry.Lease // owned by run until run has ended
	met    *goal            // the last goal that was met

	failures atomic.Int64
	failure  atomic.Pointer[error] // the last error
}

func (w *watcher) run(ctx context.Context, current *atomic.Pointer[goal]) {
	var index uint64
	for ctx.Err() == nil {
		leases, next, err := w.follow(ctx, index)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			w.failures.Add(1)
			w.failure.Store(&err)
			_ = lab.Sleep(ctx, 100*time.Millisecond+rand.N(100*time.Millisecond)) // the loop checks ctx
			continue
		}
		w.view, index = leases, next
		w.reads.Add(1)
		if g := current.Load(); g != nil && w.met != g && g.met(leases) {
			w.met = g
			g.arrive()
		}
	}
}

// A goal is what all watchers must see.
type goal struct {
	met  func([]registry.Lease) bool // called concurrently
	left atomic.Int64
	last time.Time // when the last watcher saw it; valid once done is closed
	done chan struct{}
}

func newGoal(watchers int, met func([]registry.Lease) bool) *goal {
	g := &goal{met: met, done: make(chan struct{})}
	g.left.Store(int64(watchers))
	return g
}

func (g *goal) arrive() {
	if g.left.Add(-1) == 0 {
		g.last = time.Now()
		close(g.done)
	}
}

// withMTU returns a goal that is met by a view in which n leases have the MTU.
func withMTU(n, mtu int) func([]registry.Lease) bool {
	return func(leases []registry.Lease) bool {
		found := 0
		for _, l := range leases {
			if l.MTU == mtu {
				found++
			}
		}
		return found == n
	}
}

// difference describes how a view differs from the truth, or returns "". The sessions may differ,
// because watchers need not see a lapse.
func difference(view, truth []registry.Lease) string {
	if len(view) != len(truth) {
		return fmt.Sprintf("%d leases, there are %d", len(view), len(truth))
	}
	for i, l := range view {
		t := truth[i]
		if l.Slot != t.Slot || l.NodeID != t.NodeID || l.MTU != t.MTU || !bytes.Equal(l.Backend.Object, t.Backend.Object) {
			return fmt.Sprintf("lease %s of %s with MTU %d, it is %s of %s with MTU %d", l.Subnet(), l.Node, l.MTU, t.Subnet(), t.Node, t.MTU)
		}
	}
	return ""
}
