package command

import (
	"context"

	"github.com/lenonet/leno/api"
)

func leaseRevokeSpec(m Meta) spec {
	f := &agentFlags{meta: m}
	return spec{
		name: "lease revoke", args: "[NETWORK] SUBNET", min: 1, max: 2,
		synopsis: "Take a lease from whichever host has it",
		help: `
Removes the lease on SUBNET, held or lapsed, whoever has it. Its host, if it
lives, takes another subnet, and its agent goes on or exits, as its
lease.on_lost says. It keeps SUBNET only when no other is to be had or when
it is reserved for it. To give up this host's own lease, use release.

The token must be allowed to write the lease's key in Consul.

  $ leno lease revoke 10.5.77.0/24
  $ leno lease revoke blue 10.9.4.0/24 -token-file=admin.token`,
		flags: f.register, predict: predictSubnets(m, leased),
		run: func(ctx context.Context, args []string) error {
			given, subnet, err := subnetArgs(args)
			if err != nil {
				return err
			}
			return f.call(ctx, onNetwork(given, func(ctx context.Context, c *api.Client, name string) error {
				if err := c.RevokeLease(ctx, name, subnet); err != nil {
					return err
				}
				printf(m.Stdout, "Revoked the lease on %s of network %s.", subnet, name)
				return nil
			}))
		},
	}
}
