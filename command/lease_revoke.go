package command

import (
	"context"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
)

func leaseRevokeSpec(m cli.Meta) cli.Spec {
	f := cli.NewAgentFlags(m)
	return cli.Spec{
		Name: "lease revoke", Args: "[NETWORK] SUBNET", Min: 1, Max: 2,
		Synopsis: "Take a lease from whichever host has it",
		Help: `
Removes the lease on SUBNET, held or lapsed, whoever has it. Its host, if it
lives, takes another subnet, and its agent goes on or exits, as its
lease.on_lost says. It keeps SUBNET only when no other is to be had or when
it is reserved for it. To give up this host's own lease, use release.

The token must be allowed to write the lease's key in Consul.

  $ leno lease revoke 10.5.77.0/24
  $ leno lease revoke blue 10.9.4.0/24 -token-file=admin.token`,
		Flags: f.Register, Predict: cli.PredictLeases(m),
		Run: func(ctx context.Context, args []string) error {
			given, subnet, err := cli.SubnetArgs(args)
			if err != nil {
				return err
			}
			return f.Call(ctx, cli.OnNetwork(given, func(ctx context.Context, c *api.Client, name string) error {
				if err := c.RevokeLease(ctx, name, subnet); err != nil {
					return err
				}
				cli.Printf(m.Stdout, "Revoked the lease on %s of network %s.", subnet, name)
				return nil
			}))
		},
	}
}
