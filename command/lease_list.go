package command

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/describe"
	"github.com/lenonet/leno/registry"
)

func leaseListSpec(m cli.Meta) cli.Spec {
	s := cli.NewSession(m)
	var watch cli.WatchFlag
	return cli.Spec{
		Name: "lease list", Args: "[NETWORK]", Max: 1,
		Synopsis: "List the leases of a network",
		Help: `
Lists which host has which subnet. A lease is held while its host renews it,
and lapsed after that. A lapsed lease is kept for its host for the time set by
lease.hold, and routes to it stay.

Names that do not fit into 80 columns are shortened; -format=json prints them
in full.

  $ leno lease list
  $ leno lease list blue
  $ leno lease list default -format=json
  $ leno lease list -watch`,
		Flags: cli.CombineFlags(s.Register, watch.Register), Predict: cli.PredictNetworks(m),
		Run: func(ctx context.Context, args []string) error {
			name := cli.FirstArg(args)
			read := cli.NetworkReader(&name, func(ctx context.Context, c *api.Client,
				since api.Read) (api.LeaseList, uint64, error) {
				list, err := c.Leases(ctx, name, since)
				return list, list.Index, err
			})
			return cli.Show(ctx, s, watch, read, func(w io.Writer, list api.LeaseList, _ time.Time) {
				writeLeases(w, name, list)
			})
		},
	}
}

func writeLeases(w io.Writer, network string, list api.LeaseList) {
	if len(list.Leases) == 0 {
		cli.Printf(w, "Network %s has no leases.", network)
	} else {
		var rows [][]string
		for _, l := range list.Leases {
			state := describe.LeaseState(l)
			if l.Own {
				state += ", this host"
			}
			rows = append(rows, []string{l.Subnet.String(), l.Node, describe.First(l.PublicIPs),
				describe.BackendType(l.Backend), state})
		}
		cli.WriteTable(w, []cli.Column{{Title: "SUBNET"}, {Title: "NODE", Cut: true}, {Title: "PUBLIC IP"},
			{Title: "BACKEND", Cut: true}, {Title: "STATE"}}, rows)
	}
	writeDuplicates(w, list.Leases)
	describe.WriteSkipped(w, list.Skipped)
}

// maxDuplicates is how many duplicates a table names.
const maxDuplicates = 10

// writeDuplicates names live leases of two hosts that share a name or an address: at most one of
// the hosts can be reached by it.
func writeDuplicates(w io.Writer, leases []api.Lease) {
	first := map[string]api.Lease{} // by the value that should be unique to a host
	var notes []string
	for _, l := range leases {
		if !l.Held {
			continue
		}
		claims := []string{"the name " + l.Node}
		host := registry.Lease{PublicIPs: l.PublicIPs, Backend: registry.Backend{Object: l.Backend}}
		for _, e := range host.Endpoints() {
			claims = append(claims, "the address "+registry.EndpointText(e))
		}
		for _, c := range claims {
			other, found := first[c]
			switch {
			case !found:
				first[c] = l
			case other.NodeID != l.NodeID:
				notes = append(notes, fmt.Sprintf("%s of %s and %s of %s both have %s.", other.Node, other.Subnet, l.Node,
					l.Subnet, c))
			}
		}
	}
	describe.WriteNotes(w, notes[:min(len(notes), maxDuplicates)])
	if more := len(notes) - maxDuplicates; more > 0 {
		fmt.Fprintf(w, "And %d more.\n", more)
	}
}
