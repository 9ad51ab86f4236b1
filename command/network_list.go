package command

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/describe"
)

func networkListSpec(m cli.Meta) cli.Spec {
	s := cli.NewSession(m)
	var watch cli.WatchFlag
	return cli.Spec{
		Name:     "network list",
		Synopsis: "List the networks in Consul",
		Help: `
Lists every network that is defined in Consul, with the subnet that this host
has in it and this host's state.

  $ leno network list
  $ leno network list -format=json`,
		Flags: cli.CombineFlags(s.Register, watch.Register),
		Run: func(ctx context.Context, _ []string) error {
			read := func(ctx context.Context, c *api.Client, since api.Read) (api.NetworkList, uint64, error) {
				list, err := c.Networks(ctx, since)
				return list, list.Index, err
			}
			return cli.Show(ctx, s, watch, read, func(w io.Writer, list api.NetworkList, _ time.Time) { writeNetworks(w, list) })
		},
	}
}

func writeNetworks(w io.Writer, list api.NetworkList) {
	if len(list.Networks) == 0 {
		fmt.Fprintln(w, "No networks yet; `leno network apply` defines one.")
	} else {
		var rows [][]string
		for _, n := range list.Networks {
			subnet, state := "-", "not joined"
			if n.Local != nil {
				subnet, state = describe.First(n.Local.Subnets), n.Local.State
			}
			rows = append(rows, []string{n.Name, describe.PoolPrefixes(n.Pools), describe.BackendType(n.Backend), subnet, state})
		}
		cli.WriteTable(w, []cli.Column{{Title: "NAME", Cut: true}, {Title: "POOLS"}, {Title: "BACKEND", Cut: true},
			{Title: "SUBNET"}, {Title: "STATE", Cut: true}}, rows)
	}
	describe.WriteSkipped(w, list.Skipped)
}
