package command

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/describe"
	"github.com/lenonet/leno/command/hosts"
)

func peersSpec(m cli.Meta) cli.Spec {
	s, probe := cli.NewSession(m), &probeFlags{}
	var watch cli.WatchFlag
	return cli.Spec{
		Name: "peers", Args: "[NETWORK]", Max: 1,
		Synopsis: "List the other hosts in this host's datapath",
		Help: `
Lists every other host of a network: its subnet and address, whether its lease
is held, and, if the backend counts it, the traffic since the agent started or
the device was created.
If packets are encrypted, HANDSHAKE shows how long ago the two hosts last
agreed on keys: packets to a host with "never" are lost. ENDPOINT shows where
packets to hosts behind the same NAT go. A host that is ignored is listed with
the reason. PATH is the state of the path to the host: "reached" with the
round-trip time, "lossy" with the share of lost packets, "short" with the
largest packet that arrives, or "lost". LEASE says "failed (consul)" if
Consul's agents do not reach that of the host.

With -probe the agent sends small and full-size packets to each of them,
through the overlay and through the underlay, and prints losses, round-trip
time, the largest packet that arrived, and each fault with what to do. Exits 1
if packets were lost, or if a host that holds its lease cannot be reached.

  $ leno peers
  $ leno peers blue -format=json
  $ leno peers -watch
  $ leno peers -probe
  $ leno peers -probe -peer=host-b -count=20`,
		Flags: cli.CombineFlags(s.Register, watch.Register, probe.register), Predict: cli.PredictNetworks(m),
		Run: func(ctx context.Context, args []string) error {
			name := cli.FirstArg(args)
			if err := probe.check(s.Agent.Given); err != nil {
				return err
			}
			if probe.probe {
				return runProbe(ctx, s, probe, name)
			}
			read := cli.NetworkReader(&name, func(ctx context.Context, c *api.Client,
				since api.Read) (api.PeerList, uint64, error) {
				list, err := c.Peers(ctx, name, since)
				return list, list.Index, err
			})
			return cli.Show(ctx, s, watch, read, func(w io.Writer, list api.PeerList, now time.Time) {
				writePeers(w, name, list, now)
			})
		},
	}
}

func writePeers(w io.Writer, network string, list api.PeerList, now time.Time) {
	peers := list.Peers
	notes := dropNotes("unknown hosts", list.Drops)
	if t := list.Totals; t != nil && t.RxPackets+t.TxPackets+t.RxBytes+t.TxBytes > 0 {
		notes = append(notes, fmt.Sprintf("total: %s received, %s sent", cli.ByteCount(t.RxBytes),
			cli.ByteCount(t.TxBytes)))
	}
	if len(peers) == 0 {
		cli.Printf(w, "Network %s has no other hosts.", network)
	}
	counted := slices.ContainsFunc(peers, func(p api.Peer) bool { return p.Counters != nil })
	encrypted := slices.ContainsFunc(peers, func(p api.Peer) bool { return p.Encrypted })
	elsewhere := slices.ContainsFunc(peers, func(p api.Peer) bool {
		return p.Endpoint.IsValid() && !slices.Contains(p.PublicIPs, p.Endpoint.Addr())
	})
	tested := slices.ContainsFunc(peers, func(p api.Peer) bool { return p.Path != nil })
	columns := []cli.Column{{Title: "NODE", Cut: true}, {Title: "SUBNET"}, {Title: "PUBLIC IP"},
		{Title: "BACKEND", Cut: true}, {Title: "LEASE"}}
	if elsewhere {
		columns = slices.Insert(columns, 3, cli.Column{Title: "ENDPOINT"})
	}
	if counted {
		columns = append(columns, cli.Column{Title: "RECEIVED"}, cli.Column{Title: "SENT"})
	}
	if encrypted {
		columns = append(columns, cli.Column{Title: "HANDSHAKE"})
	}
	if tested {
		columns = append(columns, cli.Column{Title: "PATH"})
	}
	var rows [][]string
	for _, p := range peers {
		row := []string{p.Node, describe.First(p.Subnets), describe.First(p.PublicIPs), p.Backend, peerLease(p)}
		switch {
		case elsewhere && p.Endpoint.IsValid():
			row = slices.Insert(row, 3, p.Endpoint.String())
		case elsewhere:
			row = slices.Insert(row, 3, "-")
		}
		switch {
		case counted && p.Counters != nil:
			row = append(row, cli.ByteCount(p.Counters.RxBytes), cli.ByteCount(p.Counters.TxBytes))
			notes = append(notes, dropNotes(p.Node, p.Counters.Drops)...)
		case counted:
			row = append(row, "-", "-")
		}
		switch {
		case encrypted && p.Encrypted:
			row = append(row, timeAgo(p.LastHandshake, now))
		case encrypted:
			row = append(row, "-")
		}
		if tested {
			row = append(row, p.Path.Summary())
		}
		rows = append(rows, row)
		if p.Skipped != "" {
			notes = append(notes, fmt.Sprintf("%s is not in the datapath: %s", p.Node, p.Skipped))
		}
		if p.Path != nil && p.Path.Reason != "" && p.Path.State == api.PathReached {
			notes = append(notes, p.Node+": "+p.Path.Reason)
		} else if p.Path != nil && p.Path.Reason != "" {
			notes = append(notes, fmt.Sprintf("%s: %s, for %s", p.Node, p.Path.Reason, cli.Age(now.Sub(p.Path.Since))))
		}
	}
	if len(rows) > 0 {
		cli.WriteTable(w, columns, rows)
	}
	if len(rows) > 0 && !tested {
		notes = append(notes, "Not tested: whether packets arrive. Run `leno peers -probe` to test it.")
	}
	describe.WriteNotes(w, notes)
}

func peerLease(p api.Peer) string {
	state := "lapsed"
	if p.Held {
		state = "held"
	}
	if p.Member == api.MemberFailed {
		state += ", " + hosts.Failed
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
