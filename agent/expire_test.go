package agent

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// expiring counts what is expired and answers each with err.
type expiring struct {
	registry.Registry
	err     error
	expired []string
}

func (e *expiring) Expire(_ context.Context, l registry.Lease) error {
	e.expired = append(e.expired, l.Node)
	return e.err
}

func TestExpireOnce(t *testing.T) {
	const hold = time.Hour
	lapsed := func(slot uint64, since time.Duration) registry.Lease {
		l := testLease(fmt.Sprintf("h%d", slot), slot, "", 1)
		l.Lapsed = since
		return l
	}
	var many []registry.Lease
	for slot := range uint64(20) {
		many = append(many, lapsed(slot+1, 2*hold))
	}
	for _, tt := range []struct {
		name   string
		leases []registry.Lease
		read   time.Duration // ago
		err    error
		want   int
	}{
		{"none", nil, 0, nil, 0},
		{"held", []registry.Lease{testLease("b", 2, "s", 1)}, 2 * hold, nil, 0},
		{"within hold", []registry.Lease{lapsed(2, hold/2)}, 0, nil, 0},
		{"past hold", []registry.Lease{lapsed(2, hold), lapsed(3, hold/2)}, 0, nil, 1},
		{"past hold since it was read", []registry.Lease{lapsed(2, hold/2)}, hold / 2, nil, 1},
		{"only some at a time", many, 0, nil, expireEach},
		{"others were faster", many, 0, fmt.Errorf("expire: %w", registry.ErrConflict), expireEach},
		{"store away", many, 0, registry.ErrUnavailable, 1},
		{"no rights", many, 0, registry.ErrDenied, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, memory.New(), "a")
			h.config.Lease.Hold = hold
			store := &expiring{Registry: h.registry, err: tt.err}
			h.catalog = store
			r := h.part()
			r.snapshot.set(snapshot{set: registry.LeaseSet{Leases: tt.leases}, index: 1, read: time.Now().Add(-tt.read)})
			r.expireOnce(context.Background())
			if len(store.expired) != tt.want {
				t.Errorf("%d were tried: %v", len(store.expired), store.expired)
			}
		})
	}
}

func TestExpireBeginsAnywhere(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	store := &expiring{Registry: h.registry, err: registry.ErrUnavailable}
	h.catalog = store
	r := h.part()
	var leases []registry.Lease
	for slot := range uint64(20) {
		l := testLease(fmt.Sprintf("h%d", slot), slot+1, "", 1)
		l.Lapsed = 2 * h.config.Lease.Hold
		leases = append(leases, l)
	}
	r.snapshot.set(snapshot{set: registry.LeaseSet{Leases: leases}, index: 1, read: time.Now()})
	seen := map[string]bool{}
	for range 200 { // all alike with probability 20^-199
		r.expireOnce(context.Background())
	}
	for _, node := range store.expired {
		seen[node] = true
	}
	if len(seen) < 2 {
		t.Errorf("every host begins with %v", seen)
	}
}

func TestAPIAgesLapsedLeases(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	subnet := netip.MustParsePrefix("10.5.1.0/24")
	l := testLease("b", 1, "", 1)
	l.Lapsed = 10 * time.Second
	r := mustRunner(t, a)
	own, _, _ := r.lease.get()
	r.snapshot.set(snapshot{set: registry.LeaseSet{Leases: []registry.Lease{own, l}}, index: 1, read: time.Now().Add(-time.Hour)})
	if subnet == own.Subnet() {
		l.Slot, l.Subnets = 2, []netip.Prefix{netip.MustParsePrefix("10.5.2.0/24")}
		r.snapshot.set(snapshot{set: registry.LeaseSet{Leases: []registry.Lease{own, l}}, index: 1, read: time.Now().Add(-time.Hour)})
	}
	list, err := a.client.Leases(context.Background(), "n")
	must(t, err)
	for _, got := range list.Leases {
		if want := int64(3610); got.Node == "b" && (got.LapsedSeconds < want || got.LapsedSeconds > want+60) {
			t.Errorf("lapsed for %d s", got.LapsedSeconds)
		}
		if got.Node == "a" && got.LapsedSeconds != 0 {
			t.Errorf("a held lease lapsed for %d s", got.LapsedSeconds)
		}
	}
	if len(list.Leases) != 2 {
		t.Errorf("%+v", list.Leases)
	}
	peers, err := a.client.Peers(context.Background(), "n")
	if err != nil || len(peers.Peers) != 1 || peers.Peers[0].Held {
		t.Errorf("peers %+v, %v", peers, err)
	}
	// Asking does not change what is known.
	if snap, _, _ := r.snapshot.get(); snap.set.Leases[1].Lapsed != 10*time.Second {
		t.Errorf("the snapshot was changed: %s", snap.set.Leases[1].Lapsed)
	}
}
