package backend_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lenonet/leno/backend"
)

// TestPlus checks how the counters of two backends of one network are added: the later handshake counts, with its endpoint.
func TestPlus(t *testing.T) {
	early, late := time.Unix(1e9, 0), time.Unix(2e9, 0)
	one, other := netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.1:2")
	for _, tt := range []struct {
		name       string
		a, b, want backend.Counters
	}{
		{"nothing", backend.Counters{}, backend.Counters{}, backend.Counters{}},
		{"each number",
			backend.Counters{RxPackets: 1, RxBytes: 2, TxPackets: 3, TxBytes: 4},
			backend.Counters{RxPackets: 10, RxBytes: 20, TxPackets: 30, TxBytes: 40},
			backend.Counters{RxPackets: 11, RxBytes: 22, TxPackets: 33, TxBytes: 44}},
		{"drops of both",
			backend.Counters{Drops: map[string]uint64{"a": 1, "b": 2}},
			backend.Counters{Drops: map[string]uint64{"b": 3, "c": 4}},
			backend.Counters{Drops: map[string]uint64{"a": 1, "b": 5, "c": 4}}},
		{"the first drops",
			backend.Counters{},
			backend.Counters{Drops: map[string]uint64{"a": 1}},
			backend.Counters{Drops: map[string]uint64{"a": 1}}},
		{"the second has the later handshake",
			backend.Counters{Handshake: early, Endpoint: one},
			backend.Counters{Handshake: late, Endpoint: other},
			backend.Counters{Handshake: late, Endpoint: other}},
		{"the first has it",
			backend.Counters{Handshake: late, Endpoint: one},
			backend.Counters{Handshake: early, Endpoint: other},
			backend.Counters{Handshake: late, Endpoint: one}},
		{"the only endpoint belongs to the earlier one",
			backend.Counters{Handshake: late},
			backend.Counters{Handshake: early, Endpoint: other},
			backend.Counters{Handshake: late, Endpoint: other}},
		{"the second does not encrypt",
			backend.Counters{Handshake: late, Endpoint: one},
			backend.Counters{},
			backend.Counters{Handshake: late, Endpoint: one}},
	} {
		before := tt.a.Drops["b"]
		if diff := cmp.Diff(tt.want, tt.a.Plus(tt.b), cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if tt.a.Drops["b"] != before {
			t.Errorf("%s: the summand was changed", tt.name)
		}
	}
}
