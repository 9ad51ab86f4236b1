package command

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/posener/complete"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
)

// stdinName replaces a file's name in errors.
const stdinName = "standard input"

func networkPlanSpec(m cli.Meta) cli.Spec {
	s := cli.NewSession(m)
	return cli.Spec{
		Name: "network plan", Args: "FILE|-", Min: 1, Max: 1,
		Synopsis: "Show what apply would change",
		Help: `
Compares the network blocks in FILE (a file or directory; - for standard
input) with Consul. It prints the differences, the effect on each host that
has a lease, and the reasons for which apply would refuse the change, if any.
FILE can be the agent's own configuration. Changes nothing, and exits 0
whether or not there are differences.

  $ leno network plan networks.hcl
  $ leno network plan - < networks.hcl`,
		Flags: s.Register, Predict: complete.PredictFiles("*.hcl"),
		Run: func(ctx context.Context, args []string) error {
			networks, err := readNetworks(m, args[0])
			if err != nil {
				return err
			}
			return s.Call(ctx, func(ctx context.Context, c *api.Client) error {
				plans, err := makePlans(ctx, c, networks)
				if err != nil {
					return err
				}
				return s.Print(newPlanOutput(plans), func(w io.Writer) {
					for _, p := range plans {
						writePlan(w, p)
					}
				})
			})
		},
	}
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

// writePlan prints one network: + is new, ~ changes, - is removed, > is a host, ! is a reason
// against the plan.
func writePlan(w io.Writer, p networkPlan) {
	switch p.Action {
	case api.ActionNone:
		cli.WriteNote(w, "  ", fmt.Sprintf("network %s is as Consul has it", p.Name))
		return
	case api.ActionCreate:
		cli.Printf(w, "+ network %s does not exist yet", p.Name)
	default:
		cli.Printf(w, "~ network %s differs (Consul -> file)", p.Name)
	}
	writeChanges(w, p.Changes)
	writeHosts(w, p.Hosts)
	for _, r := range p.Refused {
		verdict := "refused without -force: "
		if !r.Force {
			verdict = "refused: "
		}
		writeItem(w, "!", verdict+r.Reason)
		writeItem(w, " ", "instead: "+r.Way)
	}
	writeLeft(w, p, fmt.Sprintf("; `leno network delete %s` drops them", p.Name))
}

// writeLeft prints reservations that existed before the network.
func writeLeft(w io.Writer, p networkPlan, way string) {
	if len(p.Reservations) > 0 {
		writeItem(w, "!", fmt.Sprintf("%s reserved in it already: `leno reservation list %s`%s",
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
		writeItem(w, ">", name+" "+strings.Join(h.What, "; "))
	}
}

// writeItem prints a text after a mark, wrapped.
func writeItem(w io.Writer, mark, text string) {
	lead := "  " + mark + " "
	for _, line := range cli.Wrap(cli.EscapeLine(text), cli.Width-8) {
		fmt.Fprintln(w, lead+line)
		lead = "        "
	}
}
