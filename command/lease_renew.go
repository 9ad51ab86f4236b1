package command

import (
	"context"
	"io"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
)

func leaseRenewSpec(m cli.Meta) cli.Spec {
	s := cli.NewSession(m)
	return cli.Spec{
		Name: "lease renew", Args: "[NETWORK]", Max: 1,
		Synopsis: "Renew this host's lease now",
		Help: `
Makes the agent renew its session in Consul now, before its time, and prints
how long the lease is safe without another renewal. Use it, for example,
before you take Consul down for maintenance. The agent continues to renew the
lease by itself.

The token must be allowed to write this host's session in Consul.

  $ leno lease renew
  $ leno lease renew blue -token-file=admin.token`,
		Flags: s.Register, Predict: cli.PredictNetworks(m),
		Run: func(ctx context.Context, args []string) error {
			return s.Call(ctx, cli.OnNetwork(cli.FirstArg(args), func(ctx context.Context, c *api.Client, name string) error {
				r, err := c.RenewLease(ctx, name)
				if err != nil {
					return err
				}
				return s.Print(r, func(w io.Writer) { writeRenewal(w, name, r, m.Now()) })
			}))
		},
	}
}

func writeRenewal(w io.Writer, network string, r api.Renewal, now time.Time) {
	cli.Printf(w, "Renewed this host's lease on %s of network %s.", r.Subnet, network)
	cli.Printf(w, "It is safe until %s, %s from now.", r.SafeUntil.UTC().Format(time.RFC3339),
		cli.Age(r.SafeUntil.Sub(now)))
}
