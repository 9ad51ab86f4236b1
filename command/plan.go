package command

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
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
	out := api.Network{Name: n.Name, Backend: defined.Backend.Object, Encryption: defined.Encryption}
	for _, p := range defined.Plan {
		out.Pools = append(out.Pools, api.Pool(p))
	}
	return out, nil
}

// readNetworks reads the definitions from a file, a directory or standard input. Blocks without
// pools define nothing and are skipped.
func readNetworks(m cli.Meta, source string) ([]api.Network, error) {
	var cfg config.Config
	var err error
	if source == "-" {
		var src []byte
		if src, err = io.ReadAll(m.Stdin); err != nil {
			return nil, fmt.Errorf("%s: %w", stdinName, err)
		}
		cfg, err = config.Parse(src, stdinName, configOptions(m.Backends))
	} else {
		cfg, err = config.Load([]string{source}, configOptions(m.Backends))
	}
	if err != nil {
		return nil, err
	}
	var out []api.Network
	for _, n := range cfg.Networks {
		if len(n.Pools) == 0 {
			continue
		}
		defined, err := networkOfBlock(n)
		if err != nil {
			return nil, err
		}
		out = append(out, defined)
	}
	if len(out) == 0 {
		if source == "-" {
			source = stdinName
		}
		return nil, fmt.Errorf("%s defines no network: no network block with an ipv4 or ipv6 pool", source)
	}
	return out, nil
}

// makePlans makes the agent compare each network with Consul's.
func makePlans(ctx context.Context, c *api.Client, networks []api.Network) ([]networkPlan, error) {
	plans := []networkPlan{}
	for _, want := range networks {
		p, err := c.PlanNetwork(ctx, want)
		if err != nil {
			return nil, fmt.Errorf("network %s: %w", want.Name, err)
		}
		plans = append(plans, networkPlan{p, want})
	}
	return plans, nil
}

// writeLeft prints reservations that existed before the network.
func writeLeft(w io.Writer, p networkPlan, way string) {
	if len(p.Reservations) > 0 {
		cli.WriteItem(w, "!", fmt.Sprintf("%s reserved in it already: `leno reservation list %s`%s",
			areSubnets(len(p.Reservations)), p.Name, way))
	}
}

func areSubnets(count int) string {
	if count == 1 {
		return "1 subnet is"
	}
	return fmt.Sprintf("%d subnets are", count)
}

func writeChanges(w io.Writer, changes []api.Change) {
	var list []cli.Pair
	for _, c := range changes {
		switch {
		case c.From == "":
			list = append(list, cli.Pair{"  + " + c.Field, c.To})
		case c.To == "":
			list = append(list, cli.Pair{"  - " + c.Field, c.From})
		default:
			list = append(list, cli.Pair{"  ~ " + c.Field, c.From + " -> " + c.To})
		}
	}
	cli.WritePairs(w, list)
}

// writeHosts prints what happens to each host.
func writeHosts(w io.Writer, hosts []api.HostChange) {
	for _, h := range hosts {
		name := h.Node
		if !h.Held {
			name += " (lapsed)"
		}
		cli.WriteItem(w, ">", name+" "+strings.Join(h.What, "; "))
	}
}
