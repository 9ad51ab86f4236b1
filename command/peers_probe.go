package command

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/describe"
)

// probeTimeout bounds a probe: the agent's limit of 2 min, plus cli.CallTimeout.
const probeTimeout = 2*time.Minute + cli.CallTimeout

// probeFlags are those of `peers -probe`.
type probeFlags struct {
	probe bool
	peers []string
	count int
}

func (f *probeFlags) register(fs *flag.FlagSet) {
	fs.BoolVar(&f.probe, "probe", false,
		"send packets to each host through the overlay and the underlay, and print the result")
	fs.Func("peer", "with -probe, only to the host of that `name`; may be repeated", func(name string) error {
		f.peers = append(f.peers, name)
		return nil
	})
	fs.IntVar(&f.count, "count", 0, "with -probe, number of `packets` of each size on each path, 1 to 100; default 3")
}

// check rejects flags that would be ignored.
func (f *probeFlags) check(given func(name string) bool) error {
	switch {
	case f.probe && given("watch"):
		return cli.UsageErrorf("-probe and -watch cannot be used together")
	case given("count") && (f.count < 1 || f.count > 100):
		return cli.UsageErrorf("-count is %d, must be 1 to 100", f.count)
	case !f.probe && (given("peer") || given("count")):
		return cli.UsageErrorf("-peer and -count need -probe")
	}
	return nil
}

// runProbe prints the agent's result. Lost packets make the command fail.
func runProbe(ctx context.Context, s *cli.Session, f *probeFlags, network string) error {
	if _, err := s.Format.JSON(); err != nil {
		return err
	}
	call := cli.OnNetwork(network, func(ctx context.Context, c *api.Client, name string) error {
		out, err := c.ProbePeers(ctx, name, api.ProbeRequest{Peers: f.peers, Count: f.count})
		if err != nil {
			return err
		}
		if err := s.Print(out, func(w io.Writer) { writeProbe(w, out) }); err != nil {
			return err
		}
		isFault := func(f api.Finding) bool { return f.Status == api.FindingFault }
		if slices.ContainsFunc(out.Peers, hasLostPackets) || slices.ContainsFunc(out.Findings, isFault) {
			return cli.ErrReported
		}
		return nil
	})
	return s.Agent.CallWithin(ctx, probeTimeout, "until the agent has tested the paths to the other hosts", call)
}

// hasLostPackets reports whether packets to a host were lost: all, those of one size, or some. A host whose
// lease has lapsed need not respond. Echo requests that a host's rules drop are not lost if other
// packets pass.
func hasLostPackets(p api.PeerProbe) bool {
	if p.Held && !p.Reached {
		return true
	}
	return slices.ContainsFunc(p.Ways, func(way api.ProbedWay) bool {
		return way.NotProbed == "" && way.Small.Answered+way.Full.Answered > 0 && way.Small.Lost()+way.Full.Lost() > 0
	})
}

func writeProbe(w io.Writer, out api.Probe) {
	if len(out.Peers) == 0 {
		fmt.Fprintf(w, "Network %s has no other hosts.\n", out.Network)
		return
	}
	columns := []cli.Column{{Title: "NODE", Cut: true}, {Title: "PATH"}, {Title: "ADDRESS"}, {Title: "LOST"},
		{Title: "LOST FULL"}, {Title: "LATENCY"}, {Title: "LARGEST"}}
	var rows [][]string
	var notes []string
	for _, p := range out.Peers {
		for _, way := range p.Ways {
			rows = append(rows, probeRow(p.Node, way))
		}
		notes = append(notes, probeNotes(p)...)
	}
	notes = append(notes, unprobedNotes(out.Peers)...)
	if len(rows) > 0 {
		cli.WriteTable(w, columns, rows)
	}
	for _, f := range out.Findings {
		cli.WriteFinding(w, f)
	}
	describe.WriteNotes(w, notes)
}

// unprobedNotes names the paths that could not be probed, a few per reason.
func unprobedNotes(peers []api.PeerProbe) []string {
	const most = 3
	ways := map[string][]string{}
	var reasons []string
	for _, p := range peers {
		for _, way := range p.Ways {
			if way.NotProbed == "" || p.Skipped != "" {
				continue
			}
			if ways[way.NotProbed] == nil {
				reasons = append(reasons, way.NotProbed)
			}
			ways[way.NotProbed] = append(ways[way.NotProbed], fmt.Sprintf("%s of %s", way.To, p.Node))
		}
	}
	for i, reason := range reasons {
		list := ways[reason]
		if len(list) > most {
			list = append(list[:most], fmt.Sprintf("%d more", len(list)-most))
		}
		reasons[i] = fmt.Sprintf("not probed: %s: %s", strings.Join(list, ", "), reason)
	}
	return reasons
}

// probeRow returns a line for one path to a host.
func probeRow(node string, way api.ProbedWay) []string {
	row := []string{node, way.Path, way.To.String(), "-", "-", "-", "-"}
	if way.NotProbed != "" {
		return row
	}
	row[6] = "none"
	for i, s := range []api.ProbedSize{way.Small, way.Full} {
		if s.Sent > 0 {
			row[3+i] = formatLoss(s)
		}
		if s.Answered > 0 && row[5] == "-" {
			row[5] = formatLatency(s.AvgMS)
		}
	}
	if way.Largest > 0 {
		row[6] = strconv.Itoa(way.Largest)
	}
	return row
}

func formatLoss(s api.ProbedSize) string { return fmt.Sprintf("%d of %d", s.Lost(), s.Sent) }

// formatLatency formats a round trip in as much detail as matters: "0.09 ms", "12.3 ms".
func formatLatency(ms float64) string {
	if ms < 10 {
		return fmt.Sprintf("%.2f ms", ms)
	}
	return fmt.Sprintf("%.1f ms", ms)
}

// probeNotes returns notes that explain a host's rows and are not faults.
func probeNotes(p api.PeerProbe) []string {
	var out []string
	if !p.Held {
		out = append(out, p.Node+": its lease has lapsed, the host may be down")
	}
	if p.Skipped != "" {
		out = append(out, fmt.Sprintf("%s is not in the datapath: %s", p.Node, p.Skipped))
	}
	for _, way := range p.Ways {
		switch {
		case !p.Reached || way.NotProbed != "" || way.Largest > 0:
		case way.Path == api.PathOverlay:
			out = append(out, fmt.Sprintf("%s: %s does not answer echo requests, although packets for its containers pass: "+
				"full-size packets were not tested", p.Node, way.To))
		default:
			out = append(out, fmt.Sprintf("%s: %s does not answer echo requests over the underlay, although the overlay "+
				"works. "+
				"Let ICMP pass: path MTU discovery needs it", p.Node, way.To))
		}
	}
	return out
}
