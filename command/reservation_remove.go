package command

import (
	"context"

	"github.com/lenonet/leno/api"
)

func reservationRemoveSpec(m Meta) spec {
	f := &agentFlags{meta: m}
	return spec{
		name: "reservation remove", args: "[NETWORK] SUBNET", min: 1, max: 2,
		synopsis: "Drop a reservation",
		help: `
Drops the reservation of SUBNET. A lease on it stays with its host.

  $ leno reservation remove 10.5.40.0/24
  $ leno reservation remove blue 10.9.4.0/24`,
		flags: f.register, predict: predictSubnets(m, reserved),
		run: func(ctx context.Context, args []string) error {
			given, subnet, err := subnetArgs(args)
			if err != nil {
				return err
			}
			return f.call(ctx, onNetwork(given, func(ctx context.Context, c *api.Client, name string) error {
				if err := c.RemoveReservation(ctx, name, subnet); err != nil {
					return err
				}
				printf(m.Stdout, "Removed the reservation of %s of network %s.", subnet, name)
				return nil
			}))
		},
	}
}
