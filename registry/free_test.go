package registry_test

import (
	"testing"

	"github.com/lenonet/leno/registry"
)

// TestFree: each slot that is not free counts as taken once, and only slots in the range of hosts count.
func TestFree(t *testing.T) {
	n := smallNetwork(t) // slots 1 to 7
	bad := func(keys ...string) (out []registry.BadRecord) {
		for _, key := range keys {
			out = append(out, registry.BadRecord{Key: key})
		}
		return out
	}
	for _, tt := range []struct {
		name     string
		set      registry.LeaseSet
		reserved []registry.Reservation
		want     uint64
	}{
		{"empty", registry.LeaseSet{}, nil, 7},
		{"held and lapsed", registry.LeaseSet{Leases: []registry.Lease{held(n, 2, 1), lapsedFor(n, 3, 2, 0)}}, nil, 5},
		{"out of range", registry.LeaseSet{Leases: []registry.Lease{held(n, 0, 1)}}, nil, 7},
		{"reserved", registry.LeaseSet{}, []registry.Reservation{reservation(n, 4, "z", "")}, 6},
		{"reserved and leased", registry.LeaseSet{Leases: []registry.Lease{held(n, 4, 1)}}, []registry.Reservation{reservation(n, 4, "z", "")}, 6},
		{"unusable", registry.LeaseSet{Bad: bad("leno/leases/default/10.7.5.0-24")}, nil, 6},
		{"unusable and kept", registry.LeaseSet{Leases: []registry.Lease{held(n, 5, 1)}, Bad: bad("leno/leases/default/10.7.5.0-24")}, nil, 6},
		{"unusable over two", registry.LeaseSet{Bad: bad("leno/leases/default/10.7.4.0-23")}, nil, 5},
		{"unusable names", registry.LeaseSet{Bad: bad("leno/leases/default/x", "", "10.9.0.0-24")}, nil, 7},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := registry.Free(n.Plan, tt.set, tt.reserved); got != tt.want {
				t.Errorf("%d free, want %d", got, tt.want)
			}
		})
	}
}
