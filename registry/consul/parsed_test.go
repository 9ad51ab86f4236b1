package consul

import (
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// TestParsedFollowsValuesAndPlan: what is remembered of a record is used for
// exactly that value under exactly that plan, and what the store says of it is
// always new.
func TestParsedFollowsValuesAndPlan(t *testing.T) {
	n := network("default", "10.5.0.0/16")
	record := func(node string) []byte {
		c := claim(1)
		value, err := registry.FormatLease(registry.Lease{Subnets: n.Plan.Subnets(7), Node: node, NodeID: c.NodeID,
			PublicIPs: c.PublicIPs, MTU: c.MTU, Backend: c.Backend})
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	const prefix = "leno/leases/default/"
	var p parsed
	for _, tt := range []struct {
		name    string
		network registry.Network
		pair    api.KVPair
		node    string // "" for a record that cannot be used
	}{
		{"first", n, api.KVPair{Value: record("a"), ModifyIndex: 1, Session: "s"}, "a"},
		{"again, lapsed", n, api.KVPair{Value: record("a"), ModifyIndex: 2}, "a"},
		{"another value", n, api.KVPair{Value: record("b"), ModifyIndex: 3, Session: "s"}, "b"},
		{"unusable", n, api.KVPair{Value: []byte("{"), ModifyIndex: 4, Session: "s"}, ""},
		{"mended", n, api.KVPair{Value: record("b"), ModifyIndex: 5, Session: "s"}, "b"},
		{"another plan", network("default", "10.6.0.0/16"), api.KVPair{Value: record("b"), ModifyIndex: 5, Session: "s"}, ""},
		{"the first plan", n, api.KVPair{Value: record("b"), ModifyIndex: 5, Session: "s"}, "b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.pair.Key = prefix + registry.SubnetKey(n.Plan.Subnets(7)[0])
			got := p.read(tt.network, prefix, []*api.KVPair{&tt.pair})
			if len(got) != 1 || (got[0].err == nil) != (tt.node != "") {
				t.Fatalf("%+v", got)
			}
			if l := got[0].lease; tt.node != "" && (l.Node != tt.node || l.ModifyIndex != tt.pair.ModifyIndex || l.Session != tt.pair.Session) {
				t.Errorf("%+v", l)
			}
		})
	}
	if p.read(n, prefix, nil); len(p.leases) != 0 {
		t.Errorf("%d records are remembered that are gone", len(p.leases))
	}
}
