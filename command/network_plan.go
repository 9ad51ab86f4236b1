package command

import (
	"context"
	"fmt"
	"io"

	"github.com/posener/complete"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
)

func networkPlanSpec(m cli.Meta) cli.Spec {
	s := cli.NewSession(m)
	source := &networkSource{meta: m}
	return cli.Spec{
		Name: "network plan", Args: "FILE|-", Min: 1, Max: 1,
		Synopsis: "Show what apply would change",
		Help: `
Compares the network blocks in FILE (a file or directory; - for standard
input) with Consul. It prints the differences, the effect on each host that
has a lease, and why apply would refuse the change. Changes nothing, and exits
0 whether or not there are differences.

With -from-flannel, FILE is flannel's net-conf.json. The command warns of what
leno does not have, and says what leno does instead.

  $ leno network plan networks.hcl
  $ leno network plan - < networks.hcl
  $ leno network plan net-conf.json -from-flannel=default`,
		Flags: cli.CombineFlags(s.Register, source.register), Predict: complete.PredictFiles("*"),
		Values: complete.Flags{"-from-flannel": complete.PredictAnything},
		Run: func(ctx context.Context, args []string) error {
			networks, err := source.read(args[0])
			if err != nil {
				return err
			}
			return s.Call(ctx, func(ctx context.Context, c *api.Client) error {
				plans, err := makePlans(ctx, c, networks)
				if err != nil {
					return err
				}
				store := storeName(ctx, c)
				return s.Print(newPlanOutput(plans, source.warnings), func(w io.Writer) {
					source.writeWarnings()
					for _, p := range plans {
						writePlan(w, p, store)
					}
				})
			})
		},
	}
}

// writePlan prints one network: + is new, ~ changes, - is removed, > is a host, ! is a reason
// against the plan. store is the name of the store.
func writePlan(w io.Writer, p networkPlan, store string) {
	switch p.Action {
	case api.ActionNone:
		cli.WriteNote(w, "  ", fmt.Sprintf("network %s is the same in %s", p.Name, store))
		writeHosts(w, p.Hosts) // while it is being switched
		return
	case api.ActionCreate:
		cli.Printf(w, "+ network %s does not exist yet", p.Name)
	case api.ActionSwitch:
		cli.Printf(w, "~ network %s differs (%s -> file), and is switched host by host without losing packets", p.Name, store)
	default:
		cli.Printf(w, "~ network %s differs (%s -> file)", p.Name, store)
	}
	writeChanges(w, p.Changes)
	writeHosts(w, p.Hosts)
	for _, r := range p.Refused {
		verdict := "refused without -force: "
		if !r.Force {
			verdict = "refused: "
		}
		cli.WriteItem(w, "!", verdict+r.Reason)
		cli.WriteItem(w, " ", "instead: "+r.Way)
	}
	writeEarlierReservations(w, p, fmt.Sprintf("; `leno network delete %s` drops them", p.Name))
}
