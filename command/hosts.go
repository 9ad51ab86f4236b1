package command

import (
	"context"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/hosts"
	"github.com/lenonet/leno/internal/plural"
)

func hostsSpec(m cli.Meta) cli.Spec {
	s := cli.NewSession(m)
	var watch cli.WatchFlag
	var verbose bool
	return cli.Spec{
		Name: "hosts", Args: "[NETWORK]", Max: 1,
		Synopsis: "List the hosts of a network and their health",
		Help: `
Lists all hosts of a network, those with a problem first. HEALTH is the worst
that this host knows of each: "failed (consul)" if Consul's agents do not
reach the host's Consul agent, "lost", "short" or "lossy" for the path to it,
"lapsed" if its lease is not held, otherwise what its agent says of its own
checks. PATHS shows how many other hosts it reaches, by its own tests. A host
whose agent sent no summary has "-" there. What all hosts have in common is
above the table, and the reasons are below it.

  $ leno hosts
  $ leno hosts blue -format=json
  $ leno hosts -watch
  $ leno hosts -verbose   with all columns, paths and reasons`,
		Flags: cli.CombineFlags(s.Register, watch.Register, func(fs *flag.FlagSet) {
			fs.BoolVar(&verbose, "verbose", false, "show all columns, the path to each host and all reasons")
		}), Predict: cli.PredictNetworks(m),
		Run: func(ctx context.Context, args []string) error {
			name := cli.FirstArg(args)
			read := cli.NetworkReader(&name, func(ctx context.Context, c *api.Client,
				since api.Read) (api.HostList, uint64, error) {
				list, err := c.Hosts(ctx, name, since)
				return list, list.Index, err
			})
			return cli.Show(ctx, s, watch, read, func(w io.Writer, list api.HostList, now time.Time) {
				hosts.Write(w, name, list.Hosts, verbose, now)
			})
		},
	}
}

// diagnoseAll examines the hosts of this host's networks.
func (d *doctorCommand) diagnoseAll(ctx context.Context) error {
	if err := hosts.CheckAddress(d.others); err != nil {
		return cli.UsageErrorf("-peer-address %q %s", d.others, err)
	}
	if _, err := d.Format.JSON(); err != nil {
		return err
	}
	var out hosts.Diagnosis
	const limit, until = hosts.Longest + cli.CallTimeout, "until the hosts have been examined"
	err := d.Agent.CallWithin(ctx, limit, until, func(ctx context.Context, c *api.Client) (err error) {
		out, err = hosts.Examine(ctx, c, hosts.Options{
			Network: d.options.Network, Passive: d.options.Passive, Address: d.others, Now: d.Meta.Now,
			Open: d.Agent.OpenOther,
		})
		return err
	})
	if err != nil {
		return err
	}
	if err := d.Print(out, func(w io.Writer) { writeFleet(w, out) }); err != nil {
		return err
	}
	for _, f := range out.Findings {
		if f.Status == api.FindingFault {
			return cli.ErrReported
		}
	}
	return nil
}

// maxNotAsked is how many hosts are named whose agents did not answer.
const maxNotAsked = 5

// writeFleet prints the causes, and whom the examination asked.
func writeFleet(w io.Writer, out hosts.Diagnosis) {
	counts := map[string]int{}
	for _, f := range out.Findings {
		counts[f.Status]++
	}
	verdict := api.Diagnosis{Node: fmt.Sprintf("%s, %d of them asked", plural.Count(out.Hosts, "host"), out.Asked),
		Took: out.Took}
	cli.WriteNote(w, "", verdictLine(verdict, counts))
	for _, f := range out.Findings {
		cli.WriteFinding(w, api.Finding{Check: f.Check, Status: f.Status, Network: f.Network, Saw: f.Saw, Do: f.Do,
			Docs: f.Docs})
	}
	switch {
	case len(out.NotAsked) > 0:
		fmt.Fprintln(w)
		cli.WriteNote(w, "", "Judged by their summaries, because their agents were not asked:")
	case out.Asked < out.Hosts:
		fmt.Fprintln(w)
		cli.WriteNote(w, "", "The other hosts are judged by the summaries that they send. Give the addresses of their "+
			"agents to ask these: `-peer-address='{ip}:5366'`")
	}
	for _, n := range out.NotAsked[:min(len(out.NotAsked), maxNotAsked)] {
		cli.WriteNote(w, "  ", n.Node+": "+n.Reason)
	}
	if more := len(out.NotAsked) - maxNotAsked; more > 0 {
		fmt.Fprintf(w, "  and %d more: -format=json names all\n", more)
	}
}
