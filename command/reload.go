package command

import (
	"context"
	"flag"
	"fmt"

	"github.com/lenonet/leno/api"
)

func reloadSpec(m Meta) spec {
	f := &agentFlags{meta: m}
	force := false
	return spec{
		name:     "reload",
		synopsis: "Make the agent read its configuration again",
		help: `
Does what SIGHUP does, and prints which options changed. When the new
configuration is unusable, or changes options that need a restart, the agent
keeps the old one, whole, and the reason is printed here.

A configuration that may have been cut off is refused, too: one in which a
file is empty that had options when it was read last, or no network is left.
Give -force if that is what you want; a signal cannot say so.

  $ leno reload
  $ leno reload -force`,
		flags: func(fs *flag.FlagSet) {
			f.register(fs)
			fs.BoolVar(&force, "force", false, "take it over although a file is empty now, or no network is left")
		},
		run: func(ctx context.Context, _ []string) error {
			return f.call(ctx, func(ctx context.Context, c *api.Client) error {
				done, err := c.Reload(ctx, force)
				if err != nil {
					return err
				}
				fmt.Fprintln(m.Stdout, "The agent has read its configuration again.")
				for _, change := range done.Changed {
					fmt.Fprintf(m.Stdout, "  %s: %s -> %s\n", printable(change.Field), printable(change.From), printable(change.To))
				}
				for _, warning := range done.Warnings {
					fmt.Fprintf(m.Stderr, "Warning: %s\n", printable(warning))
				}
				return nil
			})
		},
	}
}
