package registry_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/lenonet/leno/registry"
)

// rejected reports whether a parser refused, and checks that it did so with ErrInvalid.
func rejected(t *testing.T, err error) bool {
	if err != nil && !errors.Is(err, registry.ErrInvalid) {
		t.Fatalf("error %v is not %v", err, registry.ErrInvalid)
	}
	if err != nil && len(err.Error()) > 1000 {
		t.Fatalf("error of %d bytes", len(err.Error()))
	}
	if err != nil && strings.ContainsFunc(err.Error(), func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Fatalf("error %q has what does not print", err)
	}
	return err != nil
}

func FuzzParseLease(f *testing.F) {
	n := dualNetwork(f)
	f.Add("10.5.34.0-24", []byte(leaseValue))
	f.Add("fd00.5.0.22..-64", []byte(leaseValue))
	f.Add("10.5.34.0-24", []byte(`{"version":1,"subnet":"10.5.34.0/24","NODE":"a","node_id":"b","public_ip":"192.0.2.1","mtu":68,"backend":{"type":"x","a":[{}]}}`))
	f.Add("10.5.34.0-24", []byte(`{"version":1,"subnet":"10.5.34.0/24","subnets":null,"node":"\u003c","node_id":"b","public_ips":["2001:db8::1"],"mtu":65535,"backend":{"type":"&"}}`))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		l, err := registry.ParseLease(n, key, value)
		if rejected(t, err) {
			return
		}
		if registry.SubnetKey(l.Subnet()) != key {
			t.Fatalf("subnet %s under key %s", l.Subnet(), key)
		}
		if whole := n.Plan.Subnets(l.Slot); !slices.Equal(l.Subnets, whole[:len(l.Subnets)]) {
			t.Fatalf("subnets %v are not of slot %d", l.Subnets, l.Slot)
		}
		for i, s := range l.Subnets {
			if p := n.Plan[i].Prefix; !p.Contains(s.Addr()) || s.Bits() != n.Plan[i].SubnetLen {
				t.Fatalf("subnet %s is not in %s", s, p)
			}
		}
		for _, a := range l.PublicIPs {
			if slices.ContainsFunc(n.Plan.Prefixes(), func(p netip.Prefix) bool { return p.Contains(a) }) {
				t.Fatalf("public ip %s is in the network", a)
			}
		}
		again, err := registry.FormatLease(l)
		if err != nil {
			t.Fatal(err)
		}
		if len(again) > registry.MaxRecordSize {
			return // escapes and explicit defaults may exceed the limit
		}
		back, err := registry.ParseLease(n, key, again)
		if err != nil || !back.SameValue(l) || back.Slot != l.Slot || back.Network != l.Network {
			t.Fatalf("%v\nwas %+v\nis  %+v", err, l, back)
		}
	})
}

func FuzzParseNetwork(f *testing.F) {
	f.Add("default", []byte(networkValue))
	f.Add("default", []byte(`{"version":1,"name":"default","pools":[{"prefix":"10.5.0.0/16"}],"backend":{"type":"vxlan"},`+
		`"switch":{"to":{"type":"udp"},"direction":"back","rotated":true},"epoch":{"number":1,"rotated":true,"since":"2026-01-02T03:04:05Z"}}`))
	f.Add("six", []byte(`{"version":1,"name":"six","pools":[{"prefix":"fd00:5::/48"},{"prefix":"10.0.0.0/8","min":"10.0.0.0"}],"backend":{"type":"udp"}}`))
	f.Add("default", []byte(`{"version":1,"name":"default","pools":[{"prefix":"10.5.0.0/28"}],"backend":{"type":"udp","TYPE":"x"}}`))
	f.Fuzz(func(t *testing.T, name string, value []byte) {
		n, err := registry.ParseNetwork(name, value)
		if rejected(t, err) {
			return
		}
		first, last := n.Plan.Range()
		for _, slot := range []uint64{first, last} {
			for i, s := range n.Plan.Subnets(slot) {
				if !n.Plan[i].Prefix.Contains(s.Addr()) || s != s.Masked() {
					t.Fatalf("slot %d has %s, not in %s", slot, s, n.Plan[i].Prefix)
				}
				if back, err := n.Plan.Slot(s); err != nil || back != slot {
					t.Fatalf("slot of %s is %d, %v, want %d", s, back, err, slot)
				}
			}
		}
		again, err := registry.FormatNetwork(n)
		if err != nil {
			if len(value) < registry.MaxRecordSize/8 {
				t.Fatal(err)
			}
			return // escapes and explicit defaults may exceed the limit
		}
		back, err := registry.ParseNetwork(name, again)
		if err != nil || back.Name != n.Name || !slices.Equal(back.Plan, n.Plan) || !back.Backend.Equal(n.Backend) {
			t.Fatalf("%v\nwas %+v\nis  %+v", err, n, back)
		}
	})
}

func FuzzParseReservation(f *testing.F) {
	n := dualNetwork(f)
	f.Add("10.5.40.0-24", []byte(nodeReservation))
	f.Add("10.5.40.0-24", []byte(idReservation))
	f.Add("fd00.5.0.28..-64", []byte(`{"version":1,"subnet":"fd00:5:0:28::/64","node":"a"}`))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		r, err := registry.ParseReservation(n, key, value)
		if rejected(t, err) {
			return
		}
		if registry.SubnetKey(r.Subnet) != key || n.Plan.Subnets(r.Slot)[0] != r.Subnet || (r.Node == "") == (r.NodeID == "") {
			t.Fatalf("under key %s: %+v", key, r)
		}
		again, err := registry.FormatReservation(r)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := registry.ParseReservation(n, key, again); err != nil || back != r {
			t.Fatalf("%v\nwas %+v\nis  %+v", err, r, back)
		}
	})
}

func FuzzParseSubnetKey(f *testing.F) {
	for _, key := range append(slices.Clone(invalidKeys), "10.5.34.0-24", "fd00.5.0.22..-64", "..ffff.10.0.0.0-104") {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		p, err := registry.ParseSubnetKey(key)
		if rejected(t, err) {
			return
		}
		if !p.IsValid() || p != p.Masked() || registry.SubnetKey(p) != key {
			t.Fatalf("key %q is %s", key, p)
		}
	})
}
