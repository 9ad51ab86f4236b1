package command

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/describe"
)

func leaseShowSpec(m cli.Meta) cli.Spec {
	s := cli.NewSession(m)
	return cli.Spec{
		Name: "lease show", Args: "[NETWORK] SUBNET|ADDRESS", Min: 1, Max: 2,
		Synopsis: "Show one lease",
		Help: `
Shows everything that a host has published in its lease on SUBNET. For an
ADDRESS, shows the lease of the host that has it: that of a container in the
subnet, or the public address of the host. It is searched for in all networks
unless you name one.

  $ leno lease show 10.5.34.0/24
  $ leno lease show 10.5.34.7
  $ leno lease show blue 10.9.4.0/24 -format=json`,
		Flags: s.Register, Predict: cli.PredictLeases(m),
		Run: func(ctx context.Context, args []string) error {
			if addr, err := netip.ParseAddr(args[len(args)-1]); err == nil {
				return s.Call(ctx, func(ctx context.Context, c *api.Client) error {
					network, lease, whose, err := leaseOfAddress(ctx, c, args[:len(args)-1], addr.Unmap())
					if err != nil {
						return err
					}
					return s.Print(lease, func(w io.Writer) { writeLease(w, network, lease, cli.Pair{"Address", whose}) })
				})
			}
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

// leaseOfAddress returns the lease of the host to which an address belongs, and how it does. given is empty to search
// all networks.
func leaseOfAddress(ctx context.Context, c *api.Client, given []string, addr netip.Addr) (
	network string, lease api.Lease, whose string, err error,
) {
	names := given
	if len(names) == 0 {
		list, err := c.Networks(ctx)
		if err != nil {
			return "", lease, "", err
		}
		for _, n := range list.Networks {
			names = append(names, n.Name)
		}
	}
	for _, name := range names {
		list, err := c.Leases(ctx, name)
		if err != nil {
			return "", lease, "", err
		}
		for _, l := range list.Leases {
			isInside := func(p netip.Prefix) bool { return p.Contains(addr) }
			if i := slices.IndexFunc(l.Subnets, isInside); i >= 0 {
				return name, l, fmt.Sprintf("%s, in %s of %s", addr, l.Subnets[i], l.Node), nil
			}
			switch {
			case !slices.Contains(l.PublicIPs, addr):
			case network == "":
				network, lease, whose = name, l, fmt.Sprintf("%s, the public address of %s", addr, l.Node)
			default:
				whose += ", also in network " + name
			}
		}
	}
	if network == "" {
		err = fmt.Errorf("no host has %s: no lease of %s contains it", addr, strings.Join(names, ", "))
	}
	return network, lease, whose, err
}

func writeLease(w io.Writer, network string, l api.Lease, more ...cli.Pair) {
	node := l.Node
	if l.Own {
		node += " (this host)"
	}
	cli.WritePairs(w, slices.Concat(more, []cli.Pair{
		{"Network", network},
		{"Subnets", cli.Join(l.Subnets)},
		{"State", describe.LeaseState(l)},
		{"Node", node},
		{"Node id", l.NodeID},
		{"Public IPs", cli.Join(l.PublicIPs)},
		{"MTU", strconv.Itoa(l.MTU)},
		{"Modify index", strconv.FormatUint(l.ModifyIndex, 10)},
	}, describe.BackendPairs(l.Backend)))
}
