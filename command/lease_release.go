package command

import (
	"context"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
)

func leaseReleaseSpec(m cli.Meta) cli.Spec {
	f := cli.NewAgentFlags(m)
	return cli.Spec{
		Name: "lease release", Args: "[NETWORK]", Max: 1,
		Synopsis: "Give up this host's lease and leave the network",
		Help: `
Makes the agent give up its own lease and remove its part of the network:
device, routes, firewall rules and subnet file. Other hosts can take the
subnet at once. The agent stays out of the network until it is restarted or
reloaded. Use it before you retire a host. Fails if something cannot be
removed; the agent retries.

  $ leno lease release
  $ leno lease release blue`,
		Flags: f.Register, Predict: cli.PredictNetworks(m),
		Run: func(ctx context.Context, args []string) error {
			return f.Call(ctx, cli.OnNetwork(cli.FirstArg(args), func(ctx context.Context, c *api.Client, name string) error {
				if err := c.ReleaseLease(ctx, name); err != nil {
					return err
				}
				cli.Printf(m.Stdout, "Released this host's lease of network %s.", name)
				cli.Printf(m.Stdout, "The agent stays out of it until it is restarted or reloaded.")
				return nil
			}))
		},
	}
}
