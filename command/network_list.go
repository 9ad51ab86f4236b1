package command

import (
	"context"
	"fmt"
	"io"

	"github.com/lenonet/leno/api"
)

func networkListSpec(m Meta) spec {
	s := newSession(m)
	return spec{
		name:     "network list",
		synopsis: "List the networks in Consul",
		help: `
Lists every network that is defined in Consul, the subnet this host has in
it, and what this host is doing about it.

  $ leno network list
  $ leno network list -format=json`,
		flags: s.flags,
		run: func(ctx context.Context, _ []string) error {
			return s.call(ctx, func(ctx context.Context, c *api.Client) error {
				list, err := c.Networks(ctx)
				if err != nil {
					return err
				}
				return s.print(list, func(w io.Writer) { writeNetworks(w, list) })
			})
		},
	}
}

func writeNetworks(w io.Writer, list api.NetworkList) {
	if len(list.Networks) == 0 {
		fmt.Fprintln(w, "There is no network yet; `leno network apply` defines one.")
	} else {
		var rows [][]string
		for _, n := range list.Networks {
			subnet, state := "-", "not joined"
			if n.Local != nil {
				subnet, state = firstSubnet(n.Local.Subnets), n.Local.State
			}
			rows = append(rows, []string{n.Name, poolPrefixes(n.Pools), backendType(n.Backend), subnet, state})
		}
		table(w, []column{{title: "NAME", cut: true}, {title: "POOLS"}, {title: "BACKEND", cut: true},
			{title: "SUBNET"}, {title: "STATE", cut: true}}, rows)
	}
	writeSkipped(w, list.Skipped)
}
