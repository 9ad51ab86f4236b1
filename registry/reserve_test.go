package registry_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/registry"
)

// TestCheckNewReservation checks which reservations may be added: only for slots in the range of the hosts.
func TestCheckNewReservation(t *testing.T) {
	n := registry.Network{Name: "default", Plan: mustPlan(t, pool("10.7.0.0/21", 24, "10.7.2.0", "10.7.4.0"))}
	for _, tt := range []struct {
		name, subnet, node, id string
		want                   string // part of the error, "" for none
	}{
		{"first of the range", "10.7.2.0/24", "a", "", ""},
		{"last of the range", "10.7.4.0/24", "", "id-a", ""},
		{"before the range", "10.7.1.0/24", "a", "", "10.7.1.0/24 is out of the network's range, 10.7.2.0/24 to 10.7.4.0/24"},
		{"after the range", "10.7.5.0/24", "a", "", "out of the network's range"},
		{"outside of the pool", "10.8.2.0/24", "a", "", "10.8.2.0/24"},
		{"another size", "10.7.2.0/25", "a", "", "10.7.2.0/25"},
		{"for no host", "10.7.2.0/24", "", "", "either a node or a node_id"},
		{"for two hosts", "10.7.2.0/24", "a", "id-a", "either a node or a node_id"},
	} {
		r := registry.Reservation{Subnet: netip.MustParsePrefix(tt.subnet), Node: tt.node, NodeID: tt.id}
		got, err := registry.CheckNewReservation(n, r)
		if tt.want != "" {
			if !errors.Is(err, registry.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
			}
			continue
		}
		if slot := uint64(r.Subnet.Addr().As4()[2]); err != nil || got.Slot != slot || got.Network != "default" || got.Subnet != r.Subnet {
			t.Errorf("%s: %+v, %v", tt.name, got, err)
		}
	}
}

// TestCheckKept checks the reservations of a new network: the error names each fault of each of them.
func TestCheckKept(t *testing.T) {
	n := smallNetwork(t)
	kept := func(slot uint64, node, id string) registry.Reservation {
		r := reservation(n, slot, node, id)
		return registry.Reservation{Subnet: r.Subnet, Node: node, NodeID: id} // as an operator writes it
	}
	for _, tt := range []struct {
		name  string
		index uint64 // of the network
		kept  []registry.Reservation
		slots []uint64
		want  []string
	}{
		{"none", 0, nil, []uint64{}, nil},
		{"none for a network that exists", 7, nil, []uint64{}, nil},
		{"two hosts", 0, []registry.Reservation{kept(1, "a", ""), kept(2, "", "1d")}, []uint64{1, 2}, nil},
		{"a name that is like an id", 0, []registry.Reservation{kept(1, "1d", ""), kept(2, "", "1d")}, []uint64{1, 2}, nil},
		{"a network that exists", 7, []registry.Reservation{kept(1, "a", "")}, nil, []string{"network default exists"}},
		{"one slot", 0, []registry.Reservation{kept(1, "a", ""), kept(1, "b", "")}, []uint64{1}, []string{"10.7.1.0/24 is there twice"}},
		{"one name", 0, []registry.Reservation{kept(1, "a", ""), kept(2, "a", "")}, []uint64{1}, []string{`node "a" has two, one is 10.7.2.0/24`}},
		{"one id", 0, []registry.Reservation{kept(1, "", "1d"), kept(2, "", "1d")}, []uint64{1}, []string{"node id 1d has two"}},
		{"one id in two spellings", 0, []registry.Reservation{kept(1, "", "1d"), kept(2, "", "1D")}, []uint64{1}, []string{"node id 1D has two"}},
		{"three faults", 0, []registry.Reservation{kept(1, "a", ""), kept(1, "b", ""), kept(3, "a", ""), kept(4, "", "")}, []uint64{1},
			[]string{"is there twice", "has two", "either a node or a node_id"}},
	} {
		n := n
		n.ModifyIndex = tt.index
		got, err := registry.CheckKept(n, tt.kept)
		var slots []uint64
		if got != nil {
			slots = []uint64{}
		}
		for _, r := range got {
			slots = append(slots, r.Slot)
		}
		if (err == nil) != (tt.want == nil) || !slices.Equal(slots, tt.slots) {
			t.Errorf("%s: slots %v, want %v; %v", tt.name, slots, tt.slots, err)
		}
		for _, want := range tt.want {
			if !errors.Is(err, registry.ErrInvalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v lacks %q", tt.name, err, want)
			}
		}
	}
}

// TestBeside checks which two reservations of a network exclude each other.
func TestBeside(t *testing.T) {
	n := smallNetwork(t)
	for _, tt := range []struct {
		name     string
		r, other registry.Reservation
		same     bool
		want     string // part of the error, "" for none
	}{
		{"the same by name", reservation(n, 1, "a", ""), reservation(n, 1, "a", ""), true, ""},
		{"the same by id", reservation(n, 1, "", "1d"), reservation(n, 1, "", "1d"), true, ""},
		{"the same by id in another spelling", reservation(n, 1, "", "1d"), reservation(n, 1, "", "1D"), true, ""},
		{"another slot and host", reservation(n, 1, "a", ""), reservation(n, 2, "b", ""), false, ""},
		{"another slot, and an id that is like the name", reservation(n, 1, "1d", ""), reservation(n, 2, "", "1d"), false, ""},
		{"another host", reservation(n, 1, "a", ""), reservation(n, 1, "b", ""), false, `10.7.1.0/24 is kept for node "b"`},
		{"the slot is kept for an id", reservation(n, 1, "a", ""), reservation(n, 1, "", "1d"), false, "10.7.1.0/24 is kept for node id 1d"},
		{"another slot", reservation(n, 1, "a", ""), reservation(n, 2, "a", ""), false, `node "a" has 10.7.2.0/24 already`},
		{"another slot for the id in another spelling", reservation(n, 1, "", "1d"), reservation(n, 2, "", "1D"), false, "node id 1d has 10.7.2.0/24 already"},
	} {
		same, err := tt.r.Beside(tt.other)
		if same != tt.same || (err == nil) != (tt.want == "") || err != nil && (!errors.Is(err, registry.ErrReserved) || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %t, %v", tt.name, same, err)
		}
	}
}

// TestHindered checks that only a live host for which a slot is not kept hinders a reservation.
func TestHindered(t *testing.T) {
	n := smallNetwork(t)
	for _, tt := range []struct {
		name string
		r    registry.Reservation
		l    registry.Lease
		want bool
	}{
		{"another host holds it", reservation(n, 1, "host-2", ""), held(n, 1, 1), true},
		{"another host by id", reservation(n, 1, "", "id-2"), held(n, 1, 1), true},
		{"its host holds it", reservation(n, 1, "host-1", ""), held(n, 1, 1), false},
		{"its host by id", reservation(n, 1, "", "ID-1"), held(n, 1, 1), false},
		{"another host's lapsed lease", reservation(n, 1, "host-2", ""), lapsedFor(n, 1, 1, 0), false},
	} {
		err := tt.r.Hindered(tt.l)
		if (err != nil) != tt.want || err != nil && (!errors.Is(err, registry.ErrHeld) || !strings.Contains(err.Error(), `"host-1" (192.0.2.1, node id id-1) holds 10.7.1.0/24`)) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if err := registry.HinderedUnread("leno/leases/default/10.7.1.0-24", ""); err != nil {
		t.Errorf("a record without a session: %v", err)
	}
	if err := registry.HinderedUnread("leno/leases/default/10.7.1.0-24", "s"); !errors.Is(err, registry.ErrHeld) || !strings.Contains(err.Error(), "10.7.1.0-24 is locked by session s") {
		t.Errorf("a record with a session: %v", err)
	}
}

// TestCompareReservations checks the order of reservations: by slot, and without a plan by subnet.
func TestCompareReservations(t *testing.T) {
	n := smallNetwork(t)
	list := []registry.Reservation{reservation(n, 7, "c", ""), reservation(n, 1, "b", ""), reservation(n, 3, "a", "")}
	for _, plan := range []bool{true, false} {
		for i := range list {
			if !plan {
				list[i].Slot = 0
			}
		}
		slices.Reverse(list)
		slices.SortFunc(list, registry.Reservation.Compare)
		if list[0].Node != "b" || list[1].Node != "a" || list[2].Node != "c" {
			t.Errorf("with a plan %t: %+v", plan, list)
		}
	}
}

// TestSharesAddress checks which hosts say that others have their public addresses, and how endpoints are written.
func TestSharesAddress(t *testing.T) {
	for _, tt := range []struct {
		attributes string
		shares     bool
		endpoint   string
	}{
		{`{}`, false, "192.0.2.1"},
		{`{"listen_port":51820}`, false, "192.0.2.1:51820"},
		{`{"listen_port":51820,"public_port":7001}`, true, "192.0.2.1:7001"},
		{`{"public_port":"7001"}`, false, "192.0.2.1"}, // not a number: the host has its addresses alone
	} {
		l := behind(held(smallNetwork(t), 1, 1), tt.attributes)
		if got := registry.EndpointText(l.Endpoints()[0]); l.SharesAddress() != tt.shares || got != tt.endpoint {
			t.Errorf("%s: shares %t, endpoint %s", tt.attributes, l.SharesAddress(), got)
		}
	}
}

// TestCheckEncryption checks the values of a network's encryption.
func TestCheckEncryption(t *testing.T) {
	for text, valid := range map[string]bool{"": true, "required": true, "Required": false, "none": false} {
		if err := registry.CheckEncryption(text); (err == nil) != valid || err != nil && !errors.Is(err, registry.ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestReadableBackend checks that the type of a record's backend is known whatever else is wrong with the record.
func TestReadableBackend(t *testing.T) {
	for value, want := range map[string]string{
		leaseValue: "vxlan",
		`{"version":99,"backend":{"type":"udp","port":"x"}}`: "udp",
		`{"backend":{"type":7}}`:                             "",
		`{"backend":[]}`:                                     "",
		`{`:                                                  "",
		``:                                                   "",
	} {
		if got := registry.ReadableLease([]byte(value)).Backend.Type; got != want {
			t.Errorf("%s: %q, want %q", value, got, want)
		}
	}
}
