package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/describe"
)

func networkShowSpec(m cli.Meta) cli.Spec {
	s := cli.NewSession(m)
	return cli.Spec{
		Name: "network show", Args: "[NETWORK]", Max: 1,
		Synopsis: "Show a network and this host's part in it",
		Help: `
Shows the address plan and the backend as stored in Consul, and this host's
part: its subnets, device, MTU, the underlay and why it was chosen, and where
the agent's configuration file differs from Consul.

  $ leno network show
  $ leno network show blue -format=json`,
		Flags: s.Register, Predict: cli.PredictNetworks(m),
		Run: func(ctx context.Context, args []string) error {
			return s.Call(ctx, cli.OnNetwork(cli.FirstArg(args), func(ctx context.Context, c *api.Client, name string) error {
				n, err := c.Network(ctx, name)
				if err != nil {
					return err
				}
				store := storeName(ctx, c)
				return s.Print(n, func(w io.Writer) { writeNetwork(w, n, store, m.Now()) })
			}))
		},
	}
}

// writeNetwork prints a network and this host's part in it. store is the name of the store.
func writeNetwork(w io.Writer, n api.Network, store string, now time.Time) {
	list := append([]cli.Pair{{"Network", n.Name}}, describe.PoolPairs(n.Pools)...)
	list = append(append(list, describe.BackendPairs(n.Backend)...), cli.Pair{"Encryption", n.Encryption})
	cli.WritePairs(w, append(list, cli.Pair{"Modify index", strconv.FormatUint(n.ModifyIndex, 10)}))
	l := n.Local
	if l == nil {
		fmt.Fprintln(w, "\nThis host takes no part in it.")
		return
	}
	fmt.Fprintln(w, "\nThis host:")
	cli.WritePairs(w, []cli.Pair{
		{"State", l.State},
		{"Subnets", cli.Join(l.Subnets)},
		{"MTU", cmp.Or(l.MTUReason, describe.Number(l.MTU))},
		{"Device", l.Link},
		{"Underlay", describe.Underlay(l.Underlay)},
		{"Subnet file", l.SubnetFile},
		{"Peers", strconv.Itoa(l.Peers)},
		{"Last applied", timeAgo(l.Applied, now)},
		{"Last renewed", timeAgo(l.Renewed, now)},
	})
	if l.Switch != nil {
		fmt.Fprintln(w)
		writeLocalSwitch(w, *l.Switch)
	}
	describe.WriteNotes(w, l.Notes)
	if len(l.Differs) > 0 {
		fmt.Fprintf(w, "\nThe agent's configuration differs from %s, which wins;\n"+
			"leno network apply FILE changes the network on all hosts:\n", store)
		for _, d := range l.Differs {
			cli.WriteNote(w, "  ", d)
		}
	}
}

// writeLocalSwitch prints how far this host has switched the network to another backend.
func writeLocalSwitch(w io.Writer, s api.Switch) {
	state := ""
	if s.Stopped {
		state = ", and is stopped"
	}
	cli.WriteNote(w, "", fmt.Sprintf("The network is being switched from %s to %s%s. This host sends over %s to %d of %d "+
		"peers.", s.From, s.To, state, s.To, s.Moved, s.Moved+len(s.Waiting)))
	if s.Fault != "" {
		cli.WriteItem(w, "!", fmt.Sprintf("it cannot use %s: %s", s.To, s.Fault))
	}
	for _, p := range s.Waiting {
		cli.WriteItem(w, ">", p.Node+" waits: "+p.Reason)
	}
}

// timeAgo returns a text such as "5s ago", or "never".
func timeAgo(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return cli.Age(now.Sub(t)) + " ago"
}
