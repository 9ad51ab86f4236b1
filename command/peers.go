package command

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/lenonet/leno/api"
)

func peersSpec(m Meta) spec {
	s, probe := newSession(m), &probeFlags{}
	var watch watchFlag
	return spec{
		name: "peers", args: "[NETWORK]", max: 1,
		synopsis: "List the other hosts as this host's datapath has them",
		help: `
Lists every other host of a network as this host's datapath has it: its
subnet and address, whether its lease is held, and what passed since the agent
started where the backend counts it. A host that is left out of the datapath
is named with the reason. Whether packets arrive is not tested.

With -probe the agent sends packets to each of them, small ones of 64 bytes
and full ones of the MTU, through the overlay and through the underlay, and
tells how many were lost, how long an answer took, the largest packet that
got there whole, and what is wrong and what to do, as leno doctor tells it.
It exits 1 when packets got lost, all, some, or those of one size, or a host
that holds its lease cannot be reached.

  $ leno peers
  $ leno peers blue -format=json
  $ leno peers -watch
  $ leno peers -probe
  $ leno peers -probe -peer=host-b -count=20`,
		flags: both(s.flags, watch.register, probe.register), predict: predictNetworks(m),
		run: func(ctx context.Context, args []string) error {
			name := firstArg(args)
			if err := probe.check(s.agent.given); err != nil {
				return err
			}
			if probe.probe {
				return runProbe(ctx, s, probe, name)
			}
			read := ofNetwork(name, func(ctx context.Context, c *api.Client, found string, since api.Read) (api.PeerList, uint64, error) {
				name = found
				list, err := c.Peers(ctx, name, since)
				return list, list.Index, err
			})
			return show(ctx, s, watch, read, func(w io.Writer, list api.PeerList, _ time.Time) { writePeers(w, name, list) })
		},
	}
}

func writePeers(w io.Writer, network string, list api.PeerList) {
	peers := list.Peers
	notes := dropNotes("packets of no peer", list.Drops)
	if t := list.Totals; t != nil && t.RxPackets+t.TxPackets+t.RxBytes+t.TxBytes > 0 {
		notes = append(notes, fmt.Sprintf("all together: %s received, %s sent", byteCount(t.RxBytes), byteCount(t.TxBytes)))
	}
	if len(peers) == 0 {
		printf(w, "Network %s has no other hosts.", network)
	}
	counted := slices.ContainsFunc(peers, func(p api.Peer) bool { return p.Counters != nil })
	columns := []column{{title: "NODE", cut: true}, {title: "SUBNET"}, {title: "PUBLIC IP"}, {title: "BACKEND", cut: true}, {title: "LEASE"}}
	if counted {
		columns = append(columns, column{title: "RECEIVED"}, column{title: "SENT"})
	}
	var rows [][]string
	for _, p := range peers {
		row := []string{p.Node, firstSubnet(p.Subnets), firstAddr(p.PublicIPs), p.Backend, peerLease(p)}
		switch {
		case counted && p.Counters != nil:
			row = append(row, byteCount(p.Counters.RxBytes), byteCount(p.Counters.TxBytes))
			notes = append(notes, dropNotes(p.Node, p.Counters.Drops)...)
		case counted:
			row = append(row, "-", "-")
		}
		rows = append(rows, row)
		if p.Skipped != "" {
			notes = append(notes, fmt.Sprintf("%s is left out of the datapath: %s", p.Node, p.Skipped))
		}
	}
	if len(rows) > 0 {
		table(w, columns, rows)
		notes = append(notes, "Not tested: whether packets arrive. Run `leno peers -probe` to test it.")
	}
	if len(notes) > 0 {
		fmt.Fprintln(w)
	}
	for _, n := range notes {
		note(w, "", n)
	}
}

func peerLease(p api.Peer) string {
	state := "lapsed"
	if p.Held {
		state = "held"
	}
	if p.Skipped != "" {
		state += ", left out"
	}
	return state
}

func dropNotes(of string, drops map[string]uint64) []string {
	var notes []string
	for _, reason := range slices.Sorted(maps.Keys(drops)) {
		if n := drops[reason]; n > 0 {
			notes = append(notes, fmt.Sprintf("%s: dropped %d (%s)", of, n, reason))
		}
	}
	return notes
}
