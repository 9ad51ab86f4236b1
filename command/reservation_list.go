package command

import (
	"context"
	"io"
	"time"

	"github.com/lenonet/leno/api"
)

func reservationListSpec(m Meta) spec {
	s := newSession(m)
	var watch watchFlag
	return spec{
		name: "reservation list", args: "[NETWORK]", max: 1,
		synopsis: "List the reservations of a network",
		help: `Lists the subnets that are kept for one host each, also those that an import
which was interrupted has left of a network that is not defined.

  $ leno reservation list
  $ leno reservation list blue -format=json`,
		flags: both(s.flags, watch.register), predict: predictNetworks(m),
		run: func(ctx context.Context, args []string) error {
			name := firstArg(args)
			read := ofNetwork(name, func(ctx context.Context, c *api.Client, found string, since api.Read) (api.ReservationList, uint64, error) {
				name = found
				list, err := c.Reservations(ctx, name, since)
				return list, list.Index, err
			})
			return show(ctx, s, watch, read, func(w io.Writer, list api.ReservationList, _ time.Time) { writeReservations(w, name, list) })
		},
	}
}

func writeReservations(w io.Writer, network string, list api.ReservationList) {
	if len(list.Reservations) == 0 {
		printf(w, "Network %s has no reservations.", network)
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
