package httpapi

import (
	"context"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// manyReaders is how many readers wait at once, spread over all lists.
const manyReaders = 600

// within is how soon a change has to answer them all, where hundreds of clients, the race detector and other tests share
// the processors. BenchmarkReaders measures it.
const within = time.Minute

// reading is one list and what changes it.
type reading struct {
	name   string
	read   func(ctx context.Context, since api.Read) (index uint64, err error)
	change func(t *testing.T)
}

// readings returns all lists of a host and what changes each of them alone. x is a network in which the host takes no
// part.
func readings(h *host, x registry.Network) []reading {
	ctx, store, c := context.Background(), h.store.Client(), h.client
	return []reading{
		{"reservations", func(ctx context.Context, since api.Read) (uint64, error) {
			l, err := c.Reservations(ctx, "x", since)
			return l.Index, err
		}, func(t *testing.T) {
			must(t, store.AddReservation(ctx, x, registry.Reservation{Subnet: x.Plan.Subnets(9)[0], Node: "z"}, false))
		}},
		{"leases elsewhere", func(ctx context.Context, since api.Read) (uint64, error) {
			l, err := c.Leases(ctx, "x", since)
			return l.Index, err
		}, func(t *testing.T) {
			_, err := store.Acquire(ctx, x, registry.Claim{Node: "z", NodeID: "id-z", MTU: 1400, Backend: x.Backend, TTL: time.Minute,
				Hold: time.Hour, PublicIPs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}})
			must(t, err)
		}},
		{"leases", func(ctx context.Context, since api.Read) (uint64, error) {
			l, err := c.Leases(ctx, "n", since)
			return l.Index, err
		}, func(*testing.T) {
			set, _, _ := h.n.leases.Get()
			more := lease(3, "c", "s")
			more.Subnets, more.Backend = x.Plan.Subnets(3), x.Backend
			h.n.leases.Set(registry.LeaseSet{Leases: append(slices.Clone(set.Leases), more)})
		}},
		{"peers", func(ctx context.Context, since api.Read) (uint64, error) {
			l, err := c.Peers(ctx, "n", since)
			return l.Index, err
		}, func(*testing.T) {
			h.n.set(func() { h.n.peers = api.PeerList{Peers: []api.Peer{{Node: "c"}}} })
		}},
		{"network", func(ctx context.Context, since api.Read) (uint64, error) {
			n, err := c.Network(ctx, "n", since)
			return n.Index, err
		}, func(*testing.T) {
			h.n.set(func() { h.n.status.Local.State = "another state" })
		}},
		{"networks", func(ctx context.Context, since api.Read) (uint64, error) {
			l, err := c.Networks(ctx, since)
			return l.Index, err
		}, func(t *testing.T) { must(t, store.DeleteNetwork(ctx, "x")) }},
	}
}

// countingStore counts the reads of a registry.
type countingStore struct {
	registry.Registry
	reads *atomic.Int64
}

func (s countingStore) WatchLeases(ctx context.Context, n registry.Network, after uint64) (registry.LeaseSet, uint64, error) {
	s.reads.Add(1)
	return s.Registry.WatchLeases(ctx, n, after)
}

func (s countingStore) WatchReservations(ctx context.Context, n registry.Network, after uint64) (registry.ReservationSet, uint64, error) {
	s.reads.Add(1)
	return s.Registry.WatchReservations(ctx, n, after)
}

// TestManyReaders: hundreds of readers of every list cost the store one watch for each list that has one, and a change
// of a list answers all of its readers soon.
func TestManyReaders(t *testing.T) {
	h := newHost(t, nil)
	x := h.define("x", "10.8.0.0/16")
	var reads atomic.Int64
	h.agent.store = countingStore{h.registry, &reads}
	h.serve("unix://" + filepath.Join(t.TempDir(), "leno.sock"))
	lists := readings(h, x)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	before := reads.Load()
	answered := make([]chan time.Time, len(lists))
	var all sync.WaitGroup
	for i, l := range lists {
		answered[i] = make(chan time.Time, manyReaders)
		index, err := l.read(ctx, api.Read{})
		if err != nil {
			t.Fatal(err)
		}
		for range manyReaders / len(lists) {
			all.Go(func() {
				// What another list's change moves of this one is waited over.
				for begun := index; ; {
					next, err := l.read(ctx, api.Read{Index: begun, Wait: 5 * time.Minute})
					if err != nil {
						return
					}
					answered[i] <- time.Now()
					begun = next
				}
			})
		}
	}
	h.readers(manyReaders)
	if asked := reads.Load() - before; asked > int64(4*len(lists)) {
		t.Errorf("%d readers made the store be asked %d times", manyReaders, asked)
	}
	for i, l := range lists {
		for len(answered[i]) > 0 {
			<-answered[i]
		}
		begun := time.Now()
		l.change(t)
		changed := time.Now() // the change itself may take the agent its time
		for n := range manyReaders / len(lists) {
			select {
			case at := <-answered[i]:
				if took := at.Sub(changed); took > within {
					t.Errorf("%s: a reader was answered %s after the change, which took %s", l.name, took, changed.Sub(begun))
				}
			case <-time.After(2 * time.Minute):
				t.Fatalf("%s: %d readers were answered", l.name, n)
			}
		}
	}
	leave()
	all.Wait()
	h.readers(0)
	must(t, h.stop()) // which waits for those that follow the lists
}
