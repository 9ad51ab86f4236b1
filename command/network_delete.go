package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
)

func networkDeleteSpec(m cli.Meta) cli.Spec {
	f := cli.NewAgentFlags(m)
	force := false
	return cli.Spec{
		Name: "network delete", Args: "NETWORK", Min: 1, Max: 1,
		Synopsis: "Delete a network and its reservations",
		Help: `
Deletes a network and its reservations. While hosts hold leases in it, this is
refused unless you give -force; with -force every host removes its part of the
network. A record of the deletion stays in Consul, so that hosts whose agent
is not running leave the network after their next start, and no agent defines
it again; leno network apply does.

For a network that is not defined, it removes the reservations that an
interrupted leno store copy left behind.

  $ leno network delete blue
  $ leno network delete blue -force`,
		Flags: func(fs *flag.FlagSet) {
			f.Register(fs)
			fs.BoolVar(&force, "force", false, "delete it even if hosts hold leases")
		},
		Predict: cli.PredictNetworks(m),
		Run: func(ctx context.Context, args []string) error {
			return f.Call(ctx, func(ctx context.Context, c *api.Client) error {
				err := c.DeleteNetwork(ctx, args[0], force)
				if refused, ok := errors.AsType[*api.Error](err); ok && refused.Code == http.StatusConflict && !force {
					return fmt.Errorf("%w (here: -force)", err)
				}
				if err != nil {
					return err
				}
				cli.Printf(m.Stdout, "Deleted network %s.", args[0])
				return nil
			})
		},
	}
}
