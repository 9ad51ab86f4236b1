package command

import (
	"context"
	"fmt"
	"io"

	"github.com/lenonet/leno/api"
)

func reservationListSpec(m Meta) spec {
	s := newSession(m)
	return spec{
		name: "reservation list", args: "[NETWORK]", max: 1,
		synopsis: "List the reservations of a network",
		help: `Lists the subnets that are kept for one host each.

  $ leno reservation list
  $ leno reservation list blue -format=json`,
		flags: s.flags, predict: predictNetworks(m),
		run: func(ctx context.Context, args []string) error {
			return s.call(ctx, onNetwork(firstArg(args), func(ctx context.Context, c *api.Client, name string) error {
				list, err := c.Reservations(ctx, name)
				if err != nil {
					return err
				}
				return s.print(list, func(w io.Writer) { writeReservations(w, name, list) })
			}))
		},
	}
}

func writeReservations(w io.Writer, network string, list api.ReservationList) {
	if len(list.Reservations) == 0 {
		fmt.Fprintf(w, "Network %s has no reservations.\n", network)
	} else {
		var rows [][]string
		for _, r := range list.Reservations {
			rows = append(rows, []string{r.Subnet.String(), keptFor(r)})
		}
		table(w, []column{{title: "SUBNET"}, {title: "KEPT FOR", cut: true}}, rows)
	}
	writeSkipped(w, list.Skipped)
}

func keptFor(r api.Reservation) string {
	if r.NodeID != "" {
		return "node id " + r.NodeID
	}
	return "node " + r.Node
}
