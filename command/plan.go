package command

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/lenonet/leno/agent"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// What a plan does to a network.
const (
	actionCreate = "create"
	actionUpdate = "update"
	actionNone   = "none"
)

// planOutput is the answer of `leno network plan -format=json` and of apply.
type planOutput struct {
	Networks []networkPlan `json:"networks"`
}

// networkPlan is the way from what Consul has to what a file says.
type networkPlan struct {
	Name        string   `json:"name"`
	Action      string   `json:"action"`       // create, update or none
	ModifyIndex uint64   `json:"modify_index"` // of what Consul has, 0 for nothing; after apply, of the result
	Changes     []change `json:"changes"`      // never null
	Misfits     []misfit `json:"misfits"`      // leases that the new pools have no place for; never null

	want api.Network
}

// change is one value that differs; "" stands for none.
type change struct {
	Field string `json:"field"` // ipv4.prefix, backend.type, backend.port
	From  string `json:"from"`
	To    string `json:"to"`
}

// misfit is a lease whose subnet is not one of the new pools'.
type misfit struct {
	Subnet netip.Prefix `json:"subnet"`
	Node   string       `json:"node"`
	Held   bool         `json:"held"`
}

// definition is a file's network as the API carries it: effective values, no
// default left out.
func definition(n config.Network) (api.Network, error) {
	defined, err := agent.Definition(n)
	if err != nil {
		return api.Network{}, fmt.Errorf("network %q: %w", n.Name, err)
	}
	out := api.Network{Name: n.Name, Backend: defined.Backend.Object}
	for _, p := range defined.Plan {
		out.Pools = append(out.Pools, api.Pool(p))
	}
	return out, nil
}

// compare plans the way from have, nil for nothing, to want.
func compare(want api.Network, have *api.Network, leases []api.Lease) networkPlan {
	p := networkPlan{Name: want.Name, Action: actionCreate, Changes: []change{}, Misfits: []misfit{}, want: want}
	from := map[string]string{}
	if have != nil {
		p.Action, p.ModifyIndex = actionUpdate, have.ModifyIndex
		from = fields(*have)
	}
	to := fields(want)
	names := slices.Collect(maps.Keys(to))
	for name := range from {
		if _, both := to[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if from[name] != to[name] {
			p.Changes = append(p.Changes, change{name, from[name], to[name]})
		}
	}
	if have != nil && len(p.Changes) == 0 {
		p.Action = actionNone
		return p
	}
	var pools registry.Plan
	for _, pool := range want.Pools {
		pools = append(pools, registry.Pool(pool))
	}
	for _, l := range leases {
		if !fits(pools, l) {
			p.Misfits = append(p.Misfits, misfit{l.Subnet, l.Node, l.Held})
		}
	}
	return p
}

// fits says whether the host can keep its slot: the subnet that the lease is
// named by is still given out. A second family that comes or goes is no misfit,
// the host writes its lease anew.
func fits(pools registry.Plan, l api.Lease) bool {
	slot, err := pools.Slot(l.Subnet)
	return err == nil && pools.InRange(slot)
}

// fields is a network as names and values that can be compared one by one.
func fields(n api.Network) map[string]string {
	out := map[string]string{"backend.type": backendType(n.Backend)}
	for name, value := range backendOptions(n.Backend) {
		out["backend."+name] = value
	}
	for _, p := range n.Pools {
		f := family(p.Prefix)
		out[f+".prefix"] = p.Prefix.String()
		out[f+".subnet_len"] = strconv.Itoa(p.SubnetLen)
		out[f+".min"] = p.Min.String()
		out[f+".max"] = p.Max.String()
	}
	return out
}
