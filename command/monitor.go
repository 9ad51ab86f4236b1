package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/lenonet/leno/api"
)

func monitorSpec(m Meta) spec {
	f := &agentFlags{meta: m}
	var level string
	var asJSON bool
	return spec{
		name:     "monitor",
		synopsis: "Follow the agent's log",
		help: `
Prints the lines of the agent's log as they come, until Ctrl-C or the end of
the agent. The level is this command's own: the agent's log stays as it is.

  $ leno monitor
  $ leno monitor -log-level=debug`,
		flags: func(fs *flag.FlagSet) {
			f.register(fs)
			fs.StringVar(&level, "log-level", "info", logLevelUsage())
			fs.BoolVar(&asJSON, "log-json", false, "one JSON object a line")
		},
		run: func(ctx context.Context, _ []string) error {
			if !slices.Contains(api.LogLevels(), strings.ToLower(level)) {
				return wrongValue("log-level", level, fmt.Sprintf("-log-level: %q is not one of %s", level, strings.Join(api.LogLevels(), ", ")), api.LogLevels()...)
			}
			ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return f.follow(ctx, api.Monitor{Level: level, JSON: asJSON})
		},
	}
}

// logLevelUsage returns the usage text of -log-level, which also accepts upper case.
func logLevelUsage() string {
	levels := api.LogLevels()
	last := len(levels) - 1
	return "`level`: " + strings.Join(levels[:last], ", ") + " or " + levels[last]
}

// follow copies the log to standard output until ctx ends.
func (f *agentFlags) follow(ctx context.Context, what api.Monitor) error {
	client, err := f.open()
	if err != nil {
		return err
	}
	defer client.Close()
	lines, err := client.Monitor(ctx, what)
	if err == nil {
		defer lines.Close()
		_, err = io.Copy(f.meta.Stdout, lines)
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return f.explain(err)
	}
	return errors.New("the agent has ended the stream: it stopped, or this was too slow to read it")
}
