package command

import (
	"context"
	"errors"
	"flag"
	"io"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
)

func monitorSpec(m cli.Meta) cli.Spec {
	f := cli.NewAgentFlags(m)
	var level string
	var asJSON bool
	return cli.Spec{
		Name:     "monitor",
		Synopsis: "Follow the agent's log",
		Help: `
Prints the lines of the agent's log as they are written, until you press
Ctrl-C or the agent stops. The level applies to this command only; the agent's
own log does not change.

  $ leno monitor
  $ leno monitor -log-level=debug`,
		Flags: func(fs *flag.FlagSet) {
			f.Register(fs)
			fs.StringVar(&level, "log-level", "info", cli.LogLevelUsage())
			fs.BoolVar(&asJSON, "log-json", false, "print one JSON object per line")
		},
		Run: func(ctx context.Context, _ []string) error {
			if !slices.Contains(api.LogLevels(), strings.ToLower(level)) {
				return cli.UsageErrorf("-log-level: %q is not one of %s", level, strings.Join(api.LogLevels(), ", "))
			}
			ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return followLog(ctx, f, m.Stdout, api.Monitor{Level: level, JSON: asJSON})
		},
	}
}

// followLog copies the agent's log to w until ctx ends.
func followLog(ctx context.Context, agent *cli.AgentFlags, w io.Writer, what api.Monitor) error {
	client, err := agent.Open()
	if err != nil {
		return err
	}
	defer client.Close()
	lines, err := client.Monitor(ctx, what)
	if err == nil {
		defer lines.Close()
		_, err = io.Copy(w, lines)
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return agent.Explain(err)
	}
	return errors.New("the agent ended the stream: it stopped, or this command read too slowly")
}
