package command

import (
	"context"
	"io"
	"strconv"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
)

func leaseShowSpec(m cli.Meta) cli.Spec {
	s := cli.NewSession(m)
	return cli.Spec{
		Name: "lease show", Args: "[NETWORK] SUBNET", Min: 1, Max: 2,
		Synopsis: "Show one lease",
		Help: `
Shows everything that a host has published in its lease on SUBNET.

  $ leno lease show 10.5.34.0/24
  $ leno lease show blue 10.9.4.0/24 -format=json`,
		Flags: s.Register, Predict: cli.PredictLeases(m),
		Run: func(ctx context.Context, args []string) error {
			given, subnet, err := cli.SubnetArgs(args)
			if err != nil {
				return err
			}
			return s.Call(ctx, cli.OnNetwork(given, func(ctx context.Context, c *api.Client, name string) error {
				lease, err := c.Lease(ctx, name, subnet)
				if err != nil {
					return err
				}
				return s.Print(lease, func(w io.Writer) { writeLease(w, name, lease) })
			}))
		},
	}
}

func writeLease(w io.Writer, network string, l api.Lease) {
	node := l.Node
	if l.Own {
		node += " (this host)"
	}
	cli.WritePairs(w, append([]cli.Pair{
		{"Network", network},
		{"Subnets", cli.Join(l.Subnets, ", ")},
		{"State", leaseState(l)},
		{"Node", node},
		{"Node id", l.NodeID},
		{"Public IPs", cli.Join(l.PublicIPs, ", ")},
		{"MTU", strconv.Itoa(l.MTU)},
		{"Modify index", strconv.FormatUint(l.ModifyIndex, 10)},
	}, backendPairs(l.Backend)...))
}
