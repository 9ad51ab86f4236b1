package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/posener/complete"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
)

func networkApplySpec(m cli.Meta) cli.Spec {
	s := cli.NewSession(m)
	source := &networkSource{meta: m}
	force := false
	var wait cli.WaitFlag
	return cli.Spec{
		Name: "network apply", Args: "FILE|-", Min: 1, Max: 1,
		Synopsis: "Create or update networks in Consul from a file",
		Help: `
Creates or updates in Consul each network that a network block in FILE
defines. FILE is a file, a directory, or - for standard input. It can be the
agent's own configuration; settings of a single host are not stored. Running
hosts take over a change by themselves. A change that would take a subnet from
a host, or stop packets, is refused unless you give -force: see
leno network plan.

With -from-flannel, FILE is flannel's net-conf.json. The command warns of what
leno does not have.

With -wait the command waits until the change is in force on this host, and
exits 1 if the time is up before. It does not wait for networks that this host
takes no part in, or for other checks that fail there.

The token must be allowed to write the networks' keys in Consul.

  $ leno network apply networks.hcl
  $ leno network apply - < networks.hcl
  $ leno network apply networks.hcl -wait=30s
  $ leno network apply networks.hcl -force -token-file=admin.token`,
		Flags: func(fs *flag.FlagSet) {
			s.Register(fs)
			source.register(fs)
			fs.BoolVar(&force, "force", false, "apply the change even if hosts lose subnets or packets")
			wait.Register(fs, "what was applied is in force on this host")
		},
		Predict: complete.PredictFiles("*"),
		Values:  complete.Flags{"-from-flannel": complete.PredictAnything},
		Run: func(ctx context.Context, args []string) error {
			networks, err := source.read(args[0])
			if err != nil {
				return err
			}
			var done []networkPlan
			err = s.Call(ctx, func(ctx context.Context, c *api.Client) error {
				plans, err := makePlans(ctx, c, networks)
				if err != nil {
					return err
				}
				done, err = applyPlans(ctx, c, plans, force)
				// Print what was done even if something else failed.
				return errors.Join(s.Print(newPlanOutput(done, source.warnings), func(w io.Writer) {
					source.writeWarnings()
					for _, p := range done {
						writeApplied(w, p)
					}
				}), err)
			})
			if err != nil || wait.Limit == 0 {
				return err
			}
			var notes []string
			const until = "until what was applied is in force on this host"
			err = s.Agent.CallWithin(ctx, wait.Limit+cli.CallTimeout, until, func(ctx context.Context, c *api.Client) error {
				return cli.Await(ctx, wait.Limit, func(ctx context.Context) (err error) {
					notes, err = checkApplied(ctx, c, done)
					return err
				})
			})
			for _, text := range notes {
				cli.WriteNote(m.Stderr, "", text)
			}
			return err
		},
	}
}

// applyPlans applies the plans and returns those that succeeded. It continues after a failure.
func applyPlans(ctx context.Context, c *api.Client, plans []networkPlan, force bool) ([]networkPlan, error) {
	done := []networkPlan{}
	var errs []error
	for _, p := range plans {
		if err := refusalError(p, force); err != nil {
			errs = append(errs, err)
			continue
		}
		if p.Action != api.ActionNone {
			p.want.ModifyIndex = p.ModifyIndex
			stored, err := c.PutNetwork(ctx, p.want, force)
			if err != nil {
				errs = append(errs, fmt.Errorf("network %s: %w", p.Name, err))
				continue
			}
			p.ModifyIndex = stored.ModifyIndex
		}
		done = append(done, p)
	}
	return done, errors.Join(errs...)
}

// checkApplied returns an error while the change is not in force on this host. It returns other
// problems of those networks on this host as notes.
func checkApplied(ctx context.Context, c *api.Client, plans []networkPlan) (notes []string, err error) {
	self, err := c.Self(ctx)
	if err != nil {
		return nil, err
	}
	health, err := c.Health(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range plans {
		if !slices.Contains(self.Networks, p.Name) {
			continue
		}
		n, err := c.Network(ctx, p.Name)
		if err != nil {
			return nil, err
		}
		var part api.NetworkHealth
		if i := slices.IndexFunc(health.Networks, func(h api.NetworkHealth) bool { return h.Network == p.Name }); i >= 0 {
			part = health.Networks[i]
		}
		failing := criticalChecks(part)
		if n.Local == nil || n.Local.ModifyIndex < p.ModifyIndex || !part.Ready {
			switch {
			case len(failing) > 0:
			case n.Local == nil:
				failing = []string{"the agent has not joined it"}
			default:
				failing = []string{n.Local.State}
			}
			return nil, fmt.Errorf("network %s: not in force on this host yet: %s", p.Name, strings.Join(failing, "; "))
		}
		for _, check := range failing {
			notes = append(notes, fmt.Sprintf("Note: network %s is in force on this host, where %s", p.Name, check))
		}
	}
	return notes, nil
}

// criticalChecks returns a network's critical checks, each with its reason.
func criticalChecks(h api.NetworkHealth) []string {
	var out []string
	for _, c := range h.Checks {
		if c.Status == api.Critical {
			out = append(out, fmt.Sprintf("%s is critical: %s", c.Name, c.Reason))
		}
	}
	return out
}

// refusalError returns the reasons against a plan, and how to force it where that is possible. The
// agent makes the final decision.
func refusalError(p networkPlan, force bool) error {
	var reasons []string
	way := " (-force applies it anyway)"
	for _, r := range p.Refused {
		if !r.Force {
			way = ""
		}
		if !r.Force || !force {
			reasons = append(reasons, fmt.Sprintf("%s; instead, %s", r.Reason, r.Way))
		}
	}
	if len(reasons) == 0 {
		return nil
	}
	return fmt.Errorf("network %s was not changed: %s%s", p.Name, strings.Join(reasons, "; "), way)
}

func writeApplied(w io.Writer, p networkPlan) {
	switch p.Action {
	case api.ActionNone:
		cli.Printf(w, "Network %s is unchanged.", p.Name)
	case api.ActionCreate:
		cli.Printf(w, "Created network %s.", p.Name)
		writeEarlierReservations(w, p, "")
	case api.ActionSwitch:
		cli.Printf(w, "Began to switch network %s; `leno network switch %[1]s` shows how far it is:", p.Name)
		writeChanges(w, p.Changes)
		writeHosts(w, p.Hosts)
	default:
		cli.Printf(w, "Updated network %s:", p.Name)
		writeChanges(w, p.Changes)
		writeHosts(w, p.Hosts)
	}
}
