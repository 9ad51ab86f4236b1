package command

import (
	"context"
	"io"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/describe"
)

func reservationListSpec(m cli.Meta) cli.Spec {
	s := cli.NewSession(m)
	var watch cli.WatchFlag
	return cli.Spec{
		Name: "reservation list", Args: "[NETWORK]", Max: 1,
		Synopsis: "List the reservations of a network",
		Help: `
Lists the subnets that are reserved for one host each. This includes the
reservations that an interrupted leno store copy left behind for a network
that is not defined.

  $ leno reservation list
  $ leno reservation list blue -format=json`,
		Flags: cli.CombineFlags(s.Register, watch.Register), Predict: cli.PredictNetworks(m),
		Run: func(ctx context.Context, args []string) error {
			name := cli.FirstArg(args)
			read := cli.NetworkReader(&name, func(ctx context.Context, c *api.Client,
				since api.Read) (api.ReservationList, uint64, error) {
				list, err := c.Reservations(ctx, name, since)
				return list, list.Index, err
			})
			return cli.Show(ctx, s, watch, read, func(w io.Writer, list api.ReservationList, _ time.Time) {
				writeReservations(w, name, list)
			})
		},
	}
}

func writeReservations(w io.Writer, network string, list api.ReservationList) {
	if len(list.Reservations) == 0 {
		cli.Printf(w, "Network %s has no reservations.", network)
	} else {
		var rows [][]string
		for _, r := range list.Reservations {
			rows = append(rows, []string{r.Subnet.String(), r.Host()})
		}
		cli.WriteTable(w, []cli.Column{{Title: "SUBNET"}, {Title: "KEPT FOR", Cut: true}}, rows)
	}
	describe.WriteSkipped(w, list.Skipped)
}
