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
		Synopsis: "Take a lease away from the host that has it",
		Help: `
Removes the lease on SUBNET, held or lapsed, regardless of which host has it.
If that host is running, it takes another subnet, and its agent continues or
exits as its lease.on_lost says. It keeps SUBNET only if no other subnet is
free or if SUBNET is reserved for it. To give up this host's own lease, use
leno lease release.

The token must be allowed to read leno/networks/ and to write leno/leases/ and
leno/changes/ in Consul.

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
