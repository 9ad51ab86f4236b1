package command

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/posener/complete"

	"github.com/lenonet/leno/api"
)

func networkApplySpec(m Meta) spec {
	s := newSession(m)
	return spec{
		name: "network apply", args: "FILE|-", min: 1, max: 1,
		synopsis: "Put networks into Consul as a file defines them",
		help: `
Creates or updates in Consul each network that a network block in FILE (a
file or directory; - for standard input) defines. FILE may be the agent's own
configuration; what concerns a host only is not stored. A network that
somebody else changes at the same time is left as it is, with an error. Look
first with plan.

The token must be allowed to write the networks' keys in Consul.`,
		flags: s.flags, predict: complete.PredictFiles("*.hcl"),
		run: func(ctx context.Context, args []string) error {
			networks, err := readNetworks(m, args[0])
			if err != nil {
				return err
			}
			return s.call(ctx, func(ctx context.Context, c *api.Client) error {
				plans, err := makePlans(ctx, c, networks)
				if err != nil {
					return err
				}
				done, err := apply(ctx, c, plans)
				// What was done is printed also when something else failed.
				return errors.Join(s.print(planOutput{done}, func(w io.Writer) {
					for _, p := range done {
						writeApplied(w, p)
					}
				}), err)
			})
		},
	}
}

// apply carries the plans out and returns those that succeeded. It goes on
// past a failure.
func apply(ctx context.Context, c *api.Client, plans []networkPlan) ([]networkPlan, error) {
	done := []networkPlan{}
	var errs []error
	for _, p := range plans {
		if p.Action != actionNone {
			p.want.ModifyIndex = p.ModifyIndex
			stored, err := c.PutNetwork(ctx, p.want)
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

func writeApplied(w io.Writer, p networkPlan) {
	switch p.Action {
	case actionNone:
		fmt.Fprintf(w, "Network %s is unchanged.\n", p.Name)
	case actionCreate:
		fmt.Fprintf(w, "Created network %s.\n", p.Name)
	default:
		fmt.Fprintf(w, "Updated network %s:\n", p.Name)
		writeChanges(w, p.Changes)
		writeMisfits(w, p.Misfits)
	}
}
