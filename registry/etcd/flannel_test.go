package etcd

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/registry"
)

// flannelKey is flannel's pattern for the keys of leases.
var flannelKey = regexp.MustCompile(`(\d+\.\d+.\d+.\d+)-(\d+)(?:&([a-f\d:]+)-(\d+))?$`)

// flannelNetwork defines a network as flannel's operators do. A client's network "default" is that one.
func (s *store) flannelNetwork(t *testing.T, c *Client, config string) registry.Network {
	t.Helper()
	if _, err := s.admin.Put(testContext(t), s.keys.prefix+"/config", config); err != nil {
		t.Fatal(err)
	}
	n, err := c.Network(testContext(t), "default")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

const (
	oneFamily    = `{"Network":"10.5.0.0/22","SubnetLen":24,"SubnetMin":"10.5.1.0","Backend":{"Type":"vxlan"}}`
	bothFamilies = `{"EnableIPv6":true,"Network":"10.5.0.0/22","SubnetLen":24,"SubnetMin":"10.5.1.0",` +
		`"IPv6Network":"fd00:5::/62","IPv6SubnetLen":64,"IPv6SubnetMin":"fd00:5:0:1::",` +
		`"Backend":{"Type":"vxlan"}}`
)

// flannelLease writes a lease as flannel does: under an etcd lease of a day, or without one for a reservation.
func (s *store) flannelLease(t *testing.T, name, ip string, reserved bool) (key string) {
	t.Helper()
	value := fmt.Sprintf(`{"PublicIP":%q,"PublicIPv6":null,"BackendType":"vxlan",`+
		`"BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}}`, ip)
	if strings.Contains(name, "&") {
		value = strings.Replace(value, `"PublicIPv6":null`, `"PublicIPv6":"2001:db8::99"`, 1)
		value = strings.Replace(value, `}}`, `},"BackendV6Data":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:45"}}`, 1)
	}
	key = s.keys.prefix + "/subnets/" + name
	var options []clientv3.OpOption
	if !reserved {
		grant, err := s.admin.Grant(testContext(t), 86400)
		if err != nil {
			t.Fatal(err)
		}
		options = append(options, clientv3.WithLease(grant.ID))
	}
	if _, err := s.admin.Put(testContext(t), key, value, options...); err != nil {
		t.Fatal(err)
	}
	return key
}

// vxlanClaim returns the claim of host i in a network of vxlan.
func vxlanClaim(t *testing.T, i int) registry.Claim {
	t.Helper()
	c := claim(i)
	var err error
	options := fmt.Sprintf(`{"vni":1,"port":8472,"vtep_mac":"0a:58:c0:00:02:%02x"}`, i)
	if c.Backend, err = registry.NewBackend("vxlan", json.RawMessage(options)); err != nil {
		t.Fatal(err)
	}
	c.MTU = 1450
	return c
}

// fill claims slots until the network is full, and returns the slots.
func fill(t *testing.T, c *Client, n registry.Network) (got []uint64) {
	t.Helper()
	for i := 101; ; i++ {
		l, err := c.Acquire(testContext(t), n, vxlanClaim(t, i))
		if err != nil {
			wantErr(t, err, registry.ErrNetworkFull)
			slices.Sort(got)
			return got
		}
		got = append(got, l.Slot)
	}
}

// TestFlannelNetwork: flannel's configuration defines a network, in which leno hosts write what flannel reads.
func TestFlannelNetwork(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]string{"one family": oneFamily, "both families": bothFamilies} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t, common.Get(t))
			c := s.open(t)
			n := s.flannelNetwork(t, c, config)
			claim := vxlanClaim(t, 1)
			l := acquire(t, c, n, claim)
			keys := s.records(t, n)
			if len(keys) != 1 {
				t.Fatal(keys)
			}
			m := flannelKey.FindStringSubmatch(keys[0])
			if m == nil || m[1]+"/"+m[2] != l.Subnets[0].String() {
				t.Fatalf("flannel reads %q of %s for %v", m, keys[0], l.Subnets)
			}
			if len(n.Plan) == 2 && m[3]+"/"+m[4] != l.Subnets[1].String() {
				t.Errorf("flannel reads %q of %s for %v", m, keys[0], l.Subnets)
			}
			resp, err := s.admin.Get(testContext(t), keys[0])
			if err != nil {
				t.Fatal(err)
			}
			ttl, err := s.admin.TimeToLive(testContext(t), clientv3.LeaseID(resp.Kvs[0].Lease))
			if err != nil || ttl.GrantedTTL != int64((claim.TTL+claim.Hold)/time.Second) {
				t.Errorf("%+v, %v", ttl, err)
			}
			var value struct {
				PublicIP    netip.Addr
				BackendType string
				BackendData struct {
					VNI     int
					VtepMAC string
				}
			}
			if err := json.Unmarshal(resp.Kvs[0].Value, &value); err != nil {
				t.Fatal(err)
			}
			if value.PublicIP != claim.PublicIPs[0] || value.BackendType != "vxlan" || value.BackendData.VNI != 1 ||
				value.BackendData.VtepMAC != "0a:58:c0:00:02:01" {
				t.Errorf("%s", resp.Kvs[0].Value)
			}
			if set, _, err := s.open(t).WatchLeases(testContext(t), n, 0); err != nil || len(set.Leases) != 1 {
				t.Errorf("%+v, %v", set, err)
			}
			if err := c.Release(testContext(t), l); err != nil {
				t.Fatal(err)
			}
			if keys := s.records(t, n); len(keys) != 0 {
				t.Error(keys)
			}
		})
	}
}

// TestFlannelHost: the lease of a flannel host is shown, and no other host gets its subnet.
func TestFlannelHost(t *testing.T) {
	t.Parallel()
	for name, reserved := range map[string]bool{"lease": false, "reservation": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t, common.Get(t))
			c := s.open(t)
			n := s.flannelNetwork(t, c, oneFamily)
			key := s.flannelLease(t, "10.5.2.0-24", "192.0.2.99", reserved)
			wanting := vxlanClaim(t, 1)
			wanting.Prefer = netip.MustParsePrefix("10.5.2.0/24")
			l, err := c.Acquire(testContext(t), n, wanting)
			if err != nil || l.Slot == 2 {
				t.Fatalf("%+v, %v", l, err)
			}
			set, index := follow(t, c, n, 0, []string{fmt.Sprint(min(l.Slot, 2)), fmt.Sprint(max(l.Slot, 2))})
			i := slices.IndexFunc(set.Leases, func(l registry.Lease) bool { return l.Slot == 2 })
			if l := set.Leases[i]; l.Node != "flannel-192.0.2.99" || l.NodeID != l.Node || !l.Held() || l.Lapsed != 0 {
				t.Errorf("%+v", l)
			}
			switched := n // the same records, after a switch
			switched.Epoch.Number = 1
			again, _, err := c.WatchLeases(testContext(t), switched, 0)
			if err != nil || !again.Leases[i].Foreign || !strings.Contains(string(again.Leases[i].Backend.Object), `"epoch":1`) {
				t.Errorf("%+v, %v", again, err)
			}
			if got := fill(t, c, n); slices.Contains(got, 2) || len(got) != 1 {
				t.Errorf("others got %v", got)
			}
			err = c.AddReservation(testContext(t), n, registry.Reservation{
				Network: n.Name,
				Subnet:  netip.MustParsePrefix("10.5.2.0/24"),
				Node:    "host-1",
			}, false)
			wantErr(t, err, registry.ErrHeld)
			s.Delete(t, key)
			if set, _, err := c.WatchLeases(testContext(t), n, index); err != nil {
				t.Errorf("%+v, %v", set, err)
			}
			follow(t, c, n, registry.Known, []string{"1", "3"})
		})
	}
}

// TestBrokenFlannelRecords change nothing for other hosts.
func TestBrokenFlannelRecords(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	c := s.open(t)
	n := s.flannelNetwork(t, c, strings.ReplaceAll(oneFamily, "/22", "/20"))
	s.flannelLease(t, "10.5.2.0-24", "192.0.2.99", false)
	bad := map[string]string{
		"10.5.3.0-24":           `not JSON`,
		"10.5.4.0-24":           ``,
		"10.5.5.0-24":           `{"PublicIP":"192.0.2.98","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"x"}}`,
		"10.5.6.0-24":           `{}`,
		"10.5.7.0-24":           `[1]`,
		"10.5.8.0-25":           `{"PublicIP":"192.0.2.97","BackendType":"vxlan"}`,
		"10.9.0.0-24":           `{"PublicIP":"192.0.2.96","BackendType":"vxlan"}`,
		"something":             `{"PublicIP":"192.0.2.95"}`,
		"10.5.9.0-24&fd00::-64": `{"PublicIP":"192.0.2.94","PublicIPv6":"2001:db8::94","BackendType":"vxlan"}`,
	}
	var keys []string
	for name, value := range bad {
		key := s.keys.prefix + "/subnets/" + name
		if _, err := s.admin.Put(testContext(t), key, value); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	slices.Sort(keys)
	first := vxlanClaim(t, 1)
	first.Prefer = netip.MustParsePrefix("10.5.10.0/24")
	acquire(t, c, n, first)
	set, _ := follow(t, c, n, 0, []string{"2", "10"})
	var got []string
	for _, b := range set.Bad {
		if got = append(got, b.Key); b.Reason == "" {
			t.Errorf("%s has no reason", b.Key)
		}
	}
	if !slices.Equal(got, keys) {
		t.Errorf("unusable records: %v, want %v", got, keys)
	}
	if got, want := fill(t, c, n), []uint64{1, 11, 12, 13, 14, 15}; !slices.Equal(got, want) {
		t.Errorf("others got %v, want %v", got, want)
	}
}

// TestTakenOverFromFlannel: a host that ran flannel before keeps its subnet, under the same key.
func TestTakenOverFromFlannel(t *testing.T) {
	t.Parallel()
	for name, reserved := range map[string]bool{"lease": false, "reservation": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t, common.Get(t))
			c := s.open(t)
			n := s.flannelNetwork(t, c, strings.ReplaceAll(oneFamily, "/22", "/16"))
			key := s.flannelLease(t, "10.5.77.0-24", "192.0.2.1", reserved)
			l, err := c.Acquire(testContext(t), n, vxlanClaim(t, 1))
			if err != nil || l.Slot != 77 || s.LeaseKey(n, l.Slot) != key {
				t.Fatalf("%+v, %v", l, err)
			}
			if keys := s.records(t, n); !slices.Equal(keys, []string{key}) {
				t.Errorf("%v, want %s", keys, key)
			}
			set, _ := follow(t, c, n, 0, []string{"77"})
			if got := set.Leases[0]; got.Node != "host-1" || got.Session != l.Session {
				t.Errorf("%+v", got)
			}
			resp, err := s.admin.Get(testContext(t), key)
			if err != nil || resp.Kvs[0].Lease == 0 {
				t.Errorf("%+v, %v", resp, err)
			}
			reservations, _, err := c.WatchReservations(testContext(t), n, 0)
			if err != nil {
				t.Fatal(err)
			}
			switch kept := reservations.Reservations; {
			case !reserved && len(kept) != 0:
				t.Errorf("%+v", kept)
			case reserved && (len(kept) != 1 || kept[0].Slot != 77 || kept[0].Node != "host-1"):
				t.Errorf("flannel's reservation was lost: %+v", kept)
			}
			acquire(t, c, n, again(vxlanClaim(t, 1), l))
			if err := c.Release(testContext(t), l); err != nil {
				t.Fatal(err)
			}
			follow(t, c, n, registry.Known, []string{})
		})
	}
}

// TestFlannelSubnetsOfTwoSlots: a flannel host may have subnets of different slots, and no other host gets either.
func TestFlannelSubnetsOfTwoSlots(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	c := s.open(t)
	n := s.flannelNetwork(t, c, bothFamilies)
	s.flannelLease(t, "10.5.1.0-24&fd00:5:0:2::-64", "192.0.2.99", false)
	for _, slot := range []uint64{1, 2} {
		err := c.AddReservation(testContext(t), n, registry.Reservation{
			Network: n.Name,
			Subnet:  n.Plan.Subnets(slot)[0],
			Node:    "host-1",
		}, false)
		wantErr(t, err, registry.ErrHeld)
	}
	if got := fill(t, c, n); !slices.Equal(got, []uint64{3}) {
		t.Errorf("others got %v, want 3", got)
	}
	set, _, err := c.WatchLeases(testContext(t), n, 0)
	if err != nil || len(set.Leases) != 2 || set.Leases[0].Node != "flannel-192.0.2.99" ||
		set.Leases[0].Subnets[1] != netip.MustParsePrefix("fd00:5:0:2::/64") {
		t.Errorf("%+v, %v", set, err)
	}
}

// TestTakenOverInTwoSlots: leno's subnets are of one slot. A host whose flannel lease has subnets of two slots gets none
// before one is reserved for it. Then it keeps the first, unless another host uses the other subnet of that slot.
func TestTakenOverInTwoSlots(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]string{"free": "", "used": "10.5.2.0-24&fd00:5:0:1::-64"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t, common.Get(t))
			c := s.open(t)
			n := s.flannelNetwork(t, c, strings.ReplaceAll(strings.ReplaceAll(bothFamilies, "/22", "/20"), "/62", "/60"))
			s.flannelLease(t, "10.5.1.0-24&fd00:5:0:3::-64", "192.0.2.1", false)
			if other != "" {
				key := s.flannelLease(t, other, "192.0.2.99", false)
				defer s.Delete(t, key)
			}
			claim := vxlanClaim(t, 1)
			_, err := c.Acquire(testContext(t), n, claim)
			wantErr(t, err, registry.ErrInvalid)
			for _, word := range []string{"10.5.1.0/24", "fd00:5:0:3::/64", "leno flannel adopt -renumber-ipv6"} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%v does not say %s", err, word)
				}
			}
			accepted := registry.Reservation{Network: n.Name, Subnet: netip.MustParsePrefix("10.5.1.0/24"), Node: claim.Node}
			if err := c.AddReservation(testContext(t), n, accepted, true); err != nil {
				t.Fatal(err)
			}
			l, err := c.Acquire(testContext(t), n, claim)
			if err != nil {
				t.Fatal(err)
			}
			if keeps := l.Slot == 1; keeps != (other == "") || l.Slot == 2 || l.Slot == 3 {
				t.Errorf("got %v", l.Subnets)
			}
		})
	}
}

// TestOfNoUseToFlannel: with vxlan and both families, flannel ignores hosts without an address of each. Such a host takes
// no subnet where hosts run flannel or flannel's operator has defined the network, but keeps one that it uses.
func TestOfNoUseToFlannel(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	c := s.open(t)
	n := network(t, "10.5.0.0/22", "fd00:5::/62")
	n.Backend, _ = registry.NewBackend("vxlan", json.RawMessage(`{"vni":1,"port":8472}`))
	if err := c.PutNetwork(testContext(t), n); err != nil {
		t.Fatal(err)
	}
	onlyIPv4 := func(i int) registry.Claim {
		claim := vxlanClaim(t, i)
		claim.PublicIPs = claim.PublicIPs[:1]
		return claim
	}
	refused := func(i int) {
		t.Helper()
		_, err := c.Acquire(testContext(t), n, onlyIPv4(i))
		wantErr(t, err, registry.ErrInvalid)
		if !strings.Contains(err.Error(), "hosts with flannel") {
			t.Error(err)
		}
	}
	before := onlyIPv4(1) // there is no flannel yet
	before.Prefer = n.Plan.Subnets(1)[0]
	first := acquire(t, c, n, before)
	key := s.flannelLease(t, "10.5.3.0-24&fd00:5:0:3::-64", "192.0.2.99", false)
	refused(2)
	changed := again(onlyIPv4(1), first)
	changed.MTU = 1400
	acquire(t, c, n, changed)
	acquire(t, c, n, vxlanClaim(t, 3))
	s.Delete(t, key)
	follow(t, c, n, 0, []string{"1", "2"}) // a record counts as deleted once its deletion was seen
	second := acquire(t, c, n, onlyIPv4(2))
	if err := c.Release(testContext(t), second); err != nil {
		t.Fatal(err)
	}
	n = s.flannelNetwork(t, c, bothFamilies)
	refused(2)
}

// TestFlannelNetworkEdited: a host keeps its subnet in the plan that it has in force while flannel's operator has written
// another one, which is not confirmed. No host gets a new one in a plan that is not that of the store.
func TestFlannelNetworkEdited(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	c := s.open(t)
	n := s.flannelNetwork(t, c, oneFamily)
	claim := vxlanClaim(t, 1)
	l := acquire(t, c, n, claim)
	edited := s.flannelNetwork(t, c, strings.ReplaceAll(oneFamily, "10.5.", "10.6."))
	if !n.Foreign || !edited.Foreign {
		t.Errorf("flannel's: %t, %t", n.Foreign, edited.Foreign)
	}
	if got := acquire(t, c, n, again(claim, l)); got.Subnet() != l.Subnet() {
		t.Errorf("got %s, had %s", got.Subnet(), l.Subnet())
	}
	_, err := c.Acquire(testContext(t), n, vxlanClaim(t, 2))
	wantErr(t, err, registry.ErrConflict)

	confirmed := edited.Replacing(n)
	if err := c.PutNetwork(testContext(t), confirmed); err != nil {
		t.Fatal(err)
	}
	if now, err := c.Network(testContext(t), "default"); err != nil || now.Foreign {
		t.Errorf("%+v, %v", now, err)
	}
	_, err = c.Acquire(testContext(t), n, again(claim, l))
	wantErr(t, err, registry.ErrConflict)
}

// TestFlannelReservation: a reservation in flannel, which no host has used, is shown as a reservation and not as a held
// host. No other host gets its subnet, and the host with its address takes it over.
func TestFlannelReservation(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	c := s.open(t)
	n := s.flannelNetwork(t, c, oneFamily)
	other := vxlanClaim(t, 2)
	other.Prefer = n.Plan.Subnets(1)[0]
	acquire(t, c, n, other)
	_, index, err := c.WatchReservations(testContext(t), n, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.admin.Put(testContext(t), s.keys.prefix+"/subnets/10.5.3.0-24", `{"PublicIP":"192.0.2.1"}`); err != nil {
		t.Fatal(err)
	}
	set, _, err := c.WatchReservations(testContext(t), n, index)
	if err != nil || len(set.Reservations) != 1 || set.Reservations[0].Slot != 3 || set.Reservations[0].Address.String() != "192.0.2.1" {
		t.Fatalf("%+v, %v", set, err)
	}
	for what, err := range map[string]error{
		"revoke": c.Revoke(testContext(t), n.Name, set.Reservations[0].Subnet),
		"remove": c.RemoveReservation(testContext(t), n.Name, set.Reservations[0].Subnet),
	} {
		wantErr(t, err, registry.ErrNotSupported)
		if key := s.keys.prefix + "/subnets/10.5.3.0-24"; err != nil && !strings.Contains(err.Error(), "`etcdctl del '"+key+"'`") {
			t.Errorf("%s: %v", what, err)
		}
	}
	leases, _, err := c.WatchLeases(testContext(t), n, 0)
	if err != nil || len(leases.Leases) != 1 || len(leases.Bad) > 0 {
		t.Errorf("%+v, %v", leases, err)
	}
	if got := fill(t, c, n); slices.Contains(got, 3) {
		t.Errorf("others got %v", got)
	}
	l, err := c.Acquire(testContext(t), n, vxlanClaim(t, 1))
	if err != nil || l.Slot != 3 {
		t.Fatalf("its host got %+v, %v", l, err)
	}
	if set, _, err := c.WatchReservations(testContext(t), n, 0); err != nil || len(set.Reservations) != 1 || set.Reservations[0].Node != "host-1" {
		t.Errorf("%+v, %v", set, err)
	}
}
