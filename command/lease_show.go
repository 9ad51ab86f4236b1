package command

import (
	"context"
	"io"
	"strconv"

	"github.com/lenonet/leno/api"
)

func leaseShowSpec(m Meta) spec {
	s := newSession(m)
	return spec{
		name: "lease show", args: "[NETWORK] SUBNET", min: 1, max: 2,
		synopsis: "Show one lease",
		help: `Shows everything a host has published in its lease on SUBNET.

  $ leno lease show 10.5.34.0/24
  $ leno lease show blue 10.9.4.0/24 -format=json`,
		flags: s.flags, predict: predictSubnets(m, leased),
		run: func(ctx context.Context, args []string) error {
			given, subnet, err := subnetArgs(args)
			if err != nil {
				return err
			}
			return s.call(ctx, onNetwork(given, func(ctx context.Context, c *api.Client, name string) error {
				lease, err := c.Lease(ctx, name, subnet)
				if err != nil {
					return err
				}
				return s.print(lease, func(w io.Writer) { writeLease(w, name, lease) })
			}))
		},
	}
}

func writeLease(w io.Writer, network string, l api.Lease) {
	node := l.Node
	if l.Own {
		node += " (this host)"
	}
	pairs(w, append([]pair{
		{"Network", network},
		{"Subnets", join(l.Subnets, ", ")},
		{"State", leaseState(l)},
		{"Node", node},
		{"Node id", l.NodeID},
		{"Public IPs", join(l.PublicIPs, ", ")},
		{"MTU", strconv.Itoa(l.MTU)},
		{"Modify index", strconv.FormatUint(l.ModifyIndex, 10)},
	}, backendPairs(l.Backend)...))
}
