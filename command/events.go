package command

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
)

func eventsSpec(m cli.Meta) cli.Spec {
	s := cli.NewSession(m)
	var watch cli.WatchFlag
	return cli.Spec{
		Name: "events", Args: "[NETWORK]", Max: 1,
		Synopsis: "List recent events on this host",
		Help: `
Lists the recent events of a network, or without NETWORK those of all networks
and of the agent itself, oldest first: checks that failed and recovered,
leases acquired and lost, hosts that joined, moved or have problems, and
repairs. The agent keeps the last 512.

  $ leno events
  $ leno events default -watch
  $ leno events -format=json`,
		Flags: cli.CombineFlags(s.Register, watch.Register), Predict: cli.PredictNetworks(m),
		Run: func(ctx context.Context, args []string) error {
			network := cli.FirstArg(args)
			read := func(ctx context.Context, c *api.Client, since api.Read) (api.EventList, uint64, error) {
				if since.Index > 0 { // with an index, the agent returns only the new events
					if _, err := c.Events(ctx, network, since); err != nil {
						return api.EventList{}, 0, err
					}
				}
				list, err := c.Events(ctx, network)
				return list, list.Index, err
			}
			return cli.Show(ctx, s, watch, read, writeEvents)
		},
	}
}

// writeEvents prints a header and a line per event, or several if its message is long.
func writeEvents(w io.Writer, list api.EventList, now time.Time) {
	if len(list.Events) == 0 {
		cli.Printf(w, "No events yet.")
		return
	}
	const ago, severity = 9, 10 // columns
	fmt.Fprintf(w, "%-*s%-*s%s\n", ago, "AGO", severity, "SEVERITY", "EVENT")
	for _, e := range list.Events {
		text := e.Message
		if e.Network != "" {
			text = e.Network + ": " + text
		}
		before := fmt.Sprintf("%-*s%s", ago, cli.Age(now.Sub(e.Time)),
			cli.Paint(w, e.Severity, fmt.Sprintf("%-*s", severity, e.Severity)))
		for _, line := range cli.Wrap(cli.EscapeLine(text), cli.Width-ago-severity) {
			fmt.Fprintln(w, before+line)
			before = fmt.Sprintf("%*s", ago+severity, "")
		}
	}
}
