package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"

	"github.com/lenonet/leno/api"
)

func networkDeleteSpec(m Meta) spec {
	f := &agentFlags{meta: m}
	force := false
	return spec{
		name: "network delete", args: "NETWORK", min: 1, max: 1,
		synopsis: "Delete a network and its reservations",
		help: `
Removes a network's definition and reservations from Consul. While hosts hold
leases in it, it is refused unless -force is given; with -force every host
takes its part of the network down. Of a network that is not defined it
removes the reservations, if an import that was interrupted has left any.

  $ leno network delete blue
  $ leno network delete blue -force`,
		flags: func(fs *flag.FlagSet) {
			f.register(fs)
			fs.BoolVar(&force, "force", false, "delete it although hosts hold leases")
		},
		predict: predictNetworks(m),
		run: func(ctx context.Context, args []string) error {
			return f.call(ctx, func(ctx context.Context, c *api.Client) error {
				err := c.DeleteNetwork(ctx, args[0], force)
				var refused *api.Error
				if errors.As(err, &refused) && refused.Code == http.StatusConflict && !force {
					return fmt.Errorf("%w (here: -force)", err)
				}
				if err != nil {
					return err
				}
				say(m.Stdout, "Deleted network %s.", args[0])
				return nil
			})
		},
	}
}
