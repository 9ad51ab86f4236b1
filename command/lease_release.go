package command

import (
	"context"

	"github.com/lenonet/leno/api"
)

func leaseReleaseSpec(m Meta) spec {
	f := &agentFlags{meta: m}
	return spec{
		name: "lease release", args: "[NETWORK]", max: 1,
		synopsis: "Give up this host's lease and leave the network",
		help: `
Makes the agent give up its own lease and take its part of the network down:
device, routes, firewall rules and subnet file. Other hosts may have the
subnet at once. The agent stays out of the network until it is restarted or
reloaded. Use it before a host goes away for good.

  $ leno lease release
  $ leno lease release blue`,
		flags: f.register, predict: predictNetworks(m),
		run: func(ctx context.Context, args []string) error {
			return f.call(ctx, onNetwork(firstArg(args), func(ctx context.Context, c *api.Client, name string) error {
				if err := c.ReleaseLease(ctx, name); err != nil {
					return err
				}
				printf(m.Stdout, "Released this host's lease of network %s.", name)
				printf(m.Stdout, "The agent stays out of it until it is restarted or reloaded.")
				return nil
			}))
		},
	}
}
