package command

import (
	"fmt"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/api"
)

// planOutput is the output of `leno network plan -format=json` and of apply.
type planOutput struct {
	Networks []api.NetworkPlan `json:"networks"`
}

// networkPlan holds the changes from Consul's definition to a file's.
type networkPlan struct {
	api.NetworkPlan
	want api.Network
}

func newPlanOutput(plans []networkPlan) planOutput {
	out := planOutput{Networks: []api.NetworkPlan{}}
	for _, p := range plans {
		out.Networks = append(out.Networks, p.NetworkPlan)
	}
	return out
}

// networkOfBlock returns a file's network as the API represents it, with all defaults.
func networkOfBlock(n config.Network) (api.Network, error) {
	defined, err := definition.FromBlock(n)
	if err != nil {
		return api.Network{}, fmt.Errorf("network %q: %w", n.Name, err)
	}
	out := api.Network{Name: n.Name, Backend: defined.Backend.Object}
	for _, p := range defined.Plan {
		out.Pools = append(out.Pools, api.Pool(p))
	}
	return out, nil
}
