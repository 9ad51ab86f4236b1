package command

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/flannel"
)

// planOutput is the output of `leno network plan -format=json` and of apply.
type planOutput struct {
	Networks []api.NetworkPlan `json:"networks"`
	Warnings []string          `json:"warnings,omitempty"` // what flannel's file has and leno leaves out
}

// networkPlan holds the changes from Consul's definition to a file's.
type networkPlan struct {
	api.NetworkPlan
	want api.Network
}

func newPlanOutput(plans []networkPlan, warnings []string) planOutput {
	out := planOutput{Networks: []api.NetworkPlan{}, Warnings: warnings}
	for _, p := range plans {
		out.Networks = append(out.Networks, p.NetworkPlan)
	}
	return out
}

// networkOf returns a definition as the API represents it.
func networkOf(n registry.Network) api.Network {
	out := api.Network{Name: n.Name, Backend: n.Backend.Object, Encryption: n.Encryption}
	for _, p := range n.Plan {
		out.Pools = append(out.Pools, api.Pool(p))
	}
	return out
}

// networkSource is the file that network plan and network apply read.
type networkSource struct {
	meta    cli.Meta
	flannel string // the name of the network if the file is flannel's net-conf.json

	warnings []string // about what read left out of flannel's file
}

// register declares the flag for flannel's file.
func (s *networkSource) register(fs *flag.FlagSet) {
	fs.StringVar(&s.flannel, "from-flannel", "",
		"FILE is flannel's net-conf.json, or the value of its key config, which defines the network of this `name`")
}

// read returns the definitions in a file, a directory or standard input. Blocks without pools define nothing and are
// skipped.
func (s *networkSource) read(source string) ([]api.Network, error) {
	name := source
	var src []byte
	var err error
	switch {
	case source == "-":
		name = stdinName
		src, err = io.ReadAll(s.meta.Stdin)
	case s.flannel != "":
		src, err = os.ReadFile(source)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var cfg config.Config
	switch {
	case s.flannel != "":
		n, err := flannel.ParseNetwork(s.flannel, src)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, warning := range flannel.Warnings(src) {
			s.warnings = append(s.warnings, fmt.Sprintf("%s: %s", name, warning))
		}
		return []api.Network{networkOf(n)}, nil
	case source == "-":
		cfg, err = config.Parse(src, name, configOptions(s.meta.Backends))
	default:
		cfg, err = config.Load([]string{source}, configOptions(s.meta.Backends))
	}
	if err != nil {
		return nil, err
	}
	var out []api.Network
	for _, n := range cfg.Networks {
		if len(n.Pools) == 0 {
			continue
		}
		defined, err := definition.FromBlock(n)
		if err != nil {
			return nil, fmt.Errorf("network %q: %w", n.Name, err)
		}
		out = append(out, networkOf(defined))
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s defines no network: no network block with an ipv4 or ipv6 pool", name)
	}
	return out, nil
}

// writeWarnings prints the warnings about the file.
func (s *networkSource) writeWarnings() {
	for _, warning := range s.warnings {
		cli.WriteNote(s.meta.Stderr, "", "Warning: "+warning)
	}
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

// writeEarlierReservations prints reservations that existed before the network.
func writeEarlierReservations(w io.Writer, p networkPlan, way string) {
	if len(p.Reservations) > 0 {
		cli.WriteItem(w, "!", fmt.Sprintf("%s already reserved in it:  `leno reservation list %s`%s",
			subnetCount(len(p.Reservations)), p.Name, way))
	}
}

func subnetCount(count int) string {
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
