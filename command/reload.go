package command

import (
	"context"
	"flag"
	"fmt"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
)

func reloadSpec(m cli.Meta) cli.Spec {
	f := cli.NewAgentFlags(m)
	force := false
	return cli.Spec{
		Name:     "reload",
		Synopsis: "Make the agent reload its configuration",
		Help: `
Does the same as SIGHUP, and prints which options changed. If the new
configuration is unusable, or changes options that need a restart, the agent
keeps the whole old configuration, and the reason is printed here.

A configuration that may have been cut off is refused too: one in which a file
is empty that had options when it was last read, or in which no network is
left. If that is what you want, give -force, which a signal cannot do.

  $ leno reload
  $ leno reload -force`,
		Flags: func(fs *flag.FlagSet) {
			f.Register(fs)
			fs.BoolVar(&force, "force", false, "accept it even if a file is empty now, or no network is left")
		},
		Run: func(ctx context.Context, _ []string) error {
			return f.Call(ctx, func(ctx context.Context, c *api.Client) error {
				done, err := c.Reload(ctx, force)
				if err != nil {
					return err
				}
				fmt.Fprintln(m.Stdout, "The agent has read its configuration again.")
				for _, change := range done.Changed {
					fmt.Fprintf(m.Stdout, "  %s: %s -> %s\n", cli.Escape(change.Field), cli.Escape(change.From), cli.Escape(change.To))
				}
				for _, warning := range done.Warnings {
					fmt.Fprintf(m.Stderr, "Warning: %s\n", cli.Escape(warning))
				}
				return nil
			})
		},
	}
}
