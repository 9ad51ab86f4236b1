package command

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/lenonet/leno/api"
)

func eventsSpec(m Meta) spec {
	s := newSession(m)
	var watch watchFlag
	return spec{
		name: "events", args: "[NETWORK]", max: 1,
		synopsis: "List what happened on this host lately",
		help: `
Lists what happened in a network, or without NETWORK in all of them and to
the agent itself, oldest first: checks that failed and were mended, leases
taken and lost, hosts that came, moved and fell silent, what somebody else
changed and leno healed. The agent remembers the last 512 until it ends.

  $ leno events
  $ leno events default -watch
  $ leno events -format=json`,
		flags: both(s.flags, watch.register), predict: predictNetworks(m),
		run: func(ctx context.Context, args []string) error {
			network := firstArg(args)
			return show(ctx, s, watch, func(ctx context.Context, c *api.Client, since api.Read) (api.EventList, uint64, error) {
				if since.Index > 0 { // with an index, the agent returns only the new events
					if _, err := c.Events(ctx, network, since); err != nil {
						return api.EventList{}, 0, err
					}
				}
				list, err := c.Events(ctx, network)
				return list, list.Index, err
			}, writeEvents)
		},
	}
}

// writeEvents prints a header and a line per event, or several if its message is long.
func writeEvents(w io.Writer, list api.EventList, now time.Time) {
	if len(list.Events) == 0 {
		printf(w, "Nothing has happened yet.")
		return
	}
	const ago, severity = 9, 10 // columns
	fmt.Fprintf(w, "%-*s%-*s%s\n", ago, "AGO", severity, "SEVERITY", "EVENT")
	for _, e := range list.Events {
		text := e.Message
		if e.Network != "" {
			text = e.Network + ": " + text
		}
		before := fmt.Sprintf("%-*s%s", ago, age(now.Sub(e.Time)), paint(w, e.Severity, fmt.Sprintf("%-*s", severity, e.Severity)))
		for _, line := range wrap(oneLine(text), width-ago-severity) {
			fmt.Fprintln(w, before+line)
			before = fmt.Sprintf("%*s", ago+severity, "")
		}
	}
}
