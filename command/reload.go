package command

import (
	"context"
	"fmt"

	"github.com/lenonet/leno/api"
)

func reloadSpec(m Meta) spec {
	f := &agentFlags{meta: m}
	return spec{
		name:     "reload",
		synopsis: "Make the agent read its configuration again",
		help: `
Does what SIGHUP does. When the new configuration is unusable the agent keeps
the old one and the reason is printed here.

  $ leno reload`,
		flags: f.register,
		run: func(ctx context.Context, _ []string) error {
			return f.call(ctx, func(ctx context.Context, c *api.Client) error {
				if err := c.Reload(ctx); err != nil {
					return err
				}
				fmt.Fprintln(m.Stdout, "The agent has read its configuration again.")
				return nil
			})
		},
	}
}
