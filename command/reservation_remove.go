package command

import (
	"context"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
)

func reservationRemoveSpec(m cli.Meta) cli.Spec {
	f := cli.NewAgentFlags(m)
	return cli.Spec{
		Name: "reservation remove", Args: "[NETWORK] SUBNET", Min: 1, Max: 2,
		Synopsis: "Remove a reservation",
		Help: `
Removes the reservation of SUBNET. A lease on it stays with its host.

  $ leno reservation remove 10.5.40.0/24
  $ leno reservation remove blue 10.9.4.0/24`,
		Flags: f.Register, Predict: cli.PredictReservations(m),
		Run: func(ctx context.Context, args []string) error {
			given, subnet, err := cli.SubnetArgs(args)
			if err != nil {
				return err
			}
			return f.Call(ctx, cli.OnNetwork(given, func(ctx context.Context, c *api.Client, name string) error {
				if err := c.RemoveReservation(ctx, name, subnet); err != nil {
					return err
				}
				cli.Printf(m.Stdout, "Removed the reservation of %s of network %s.", subnet, name)
				return nil
			}))
		},
	}
}
