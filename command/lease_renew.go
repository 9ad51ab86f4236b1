package command

import (
	"context"
	"io"
	"time"

	"github.com/lenonet/leno/api"
)

func leaseRenewSpec(m Meta) spec {
	s := newSession(m)
	return spec{
		name: "lease renew", args: "[NETWORK]", max: 1,
		synopsis: "Renew this host's lease now",
		help: `
Makes the agent renew its session in Consul now, before its time, and says
until when the lease is safe though nobody renews it again: before Consul is
taken down for maintenance, say. The agent renews by itself all the same.

The token must be allowed to write this host's session in Consul.

  $ leno lease renew
  $ leno lease renew blue -token-file=admin.token`,
		flags: s.flags, predict: predictNetworks(m),
		run: func(ctx context.Context, args []string) error {
			return s.call(ctx, onNetwork(firstArg(args), func(ctx context.Context, c *api.Client, name string) error {
				r, err := c.RenewLease(ctx, name)
				if err != nil {
					return err
				}
				return s.print(r, func(w io.Writer) { writeRenewal(w, name, r, m.Now()) })
			}))
		},
	}
}

func writeRenewal(w io.Writer, network string, r api.Renewal, now time.Time) {
	printf(w, "Renewed this host's lease on %s of network %s.", r.Subnet, network)
	printf(w, "It is safe until %s, %s from now.", r.SafeUntil.UTC().Format(time.RFC3339), age(r.SafeUntil.Sub(now)))
}
