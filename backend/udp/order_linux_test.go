package udp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/internal/testkit/seed"
)

// flowEnd is one end of a flow that runs in both directions.
type flowEnd struct {
	conn     *net.UDPConn
	peer     netip.AddrPort
	sent     atomic.Uint32 // datagrams
	received atomic.Uint32 // the number of the last datagram from the other end, plus one
	count    int           // datagrams that arrived
}

// newFlows returns flows of both families between two containers.
func newFlows(t *testing.T, a, b *host, n int) (flows [][2]*flowEnd) {
	t.Helper()
	for i := range n {
		ends := [2]*flowEnd{{}, {}}
		for j, h := range []*host{a, b} {
			ends[j].conn = listenUDP(t, h.container, net.JoinHostPort(inner(h.n)[i%2], "0"))
		}
		for j, end := range ends {
			end.peer = netip.MustParseAddrPort(ends[1-j].conn.LocalAddr().String())
		}
		flows = append(flows, ends)
	}
	return flows
}

// send writes bursts of all sizes, and does not get far ahead of the other end.
func (e *flowEnd) send(flow byte, other *flowEnd, random *rand.Rand) error {
	for e.sent.Load() < 500 {
		many := burst{size: 8 + random.IntN(1300), count: 1 + random.IntN(40)}
		seq, err := many.send(e.conn, e.peer, flow, e.sent.Load(), random.IntN(2) == 0)
		if err != nil {
			return err
		}
		e.sent.Store(seq)
		// Lost datagrams are not waited for.
		for deadline := time.Now().Add(200 * time.Millisecond); other.received.Load()+100 < seq && time.Now().Before(deadline); {
			time.Sleep(50 * time.Microsecond)
		}
	}
	return nil
}

// receive reads until no more datagrams come. Datagrams may be lost, but none may overtake another,
// arrive twice or differ from what was sent.
func (e *flowEnd) receive(flow byte, until *atomic.Bool) error {
	buf := make([]byte, maxPacket)
	for {
		if err := e.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			return err
		}
		n, _, err := e.conn.ReadFromUDPAddrPort(buf)
		switch {
		case nothingCame(err) && until.Load():
			return nil
		case nothingCame(err):
			continue
		case err != nil:
			return err
		}
		of, seq, err := numberOf(buf[:n])
		if err != nil {
			return err
		}
		if before := e.received.Load(); of != flow || seq < before {
			return fmt.Errorf("flow %d: number %d of flow %d after number %d", flow, seq, of, int64(before)-1)
		}
		e.received.Store(seq + 1)
		e.count++
	}
}

// TestOrderWithinFlows sends datagrams both ways in several flows at once, in bursts of all sizes,
// while TCP fills the queues. It repeats this with new flows, because a queue is chosen when a flow
// begins and when the first answer has arrived.
func TestOrderWithinFlows(t *testing.T) {
	t.Parallel()
	random := seed.Rand(t)
	a, b := newHosts(t, 4)
	var bulk errgroup.Group
	for i, way := range [][2]*host{{a, b}, {b, a}} {
		client, server := connect(t, way[0].container, way[1].container, inner(way[1].n)[i])
		bulk.Go(func() error { return pour(client, server, randomBytes(2<<20)) })
	}
	for range 4 {
		flows := newFlows(t, a, b, 6)
		var senders, receivers errgroup.Group
		var ended atomic.Bool
		for i, ends := range flows {
			for j, end := range ends {
				own := rand.New(rand.NewPCG(random.Uint64(), random.Uint64()))
				senders.Go(func() error { return end.send(byte(i), ends[1-j], own) })
				receivers.Go(func() error { return end.receive(byte(i), &ended) })
			}
		}
		err := senders.Wait()
		ended.Store(true)
		if err := errors.Join(err, receivers.Wait()); err != nil {
			t.Error(err)
			break
		}
		for i, ends := range flows {
			for j, end := range ends {
				if sent := ends[1-j].sent.Load(); end.count < int(sent)/10 {
					t.Errorf("flow %d: %d datagrams arrived of %d", i, end.count, sent)
				}
			}
		}
	}
	if err := bulk.Wait(); err != nil {
		t.Errorf("TCP: %v", err)
	}
}
