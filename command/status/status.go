// Package status contains the command status: whether this host is healthy, on one screen.
package status

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/describe"
	"github.com/lenonet/leno/internal/plural"
)

// Output is the output of `leno status -format=json`.
type Output struct {
	Agent    api.Self      `json:"agent"`
	Health   api.Health    `json:"health"`
	Networks []api.Network `json:"networks"`
}

// Spec returns the command status.
func Spec(m cli.Meta) cli.Spec {
	s := cli.NewSession(m)
	var watch cli.WatchFlag
	var wait cli.WaitFlag
	return cli.Spec{
		Name:     "status",
		Synopsis: "Show the agent, its networks and failing checks",
		Help: `
Shows the health of this host: failing checks first, each with what to do,
then each network. Exits 1 if the agent is critical, and 0 if it has a
warning.

To find out why packets do not reach other hosts, use leno doctor.

With -wait it waits for the agent to respond and for this host to be ready
and passing, and exits 1 if the time is up before. It does not wait for other
hosts: a warning that packets to them are lost does not count.

  $ leno status
  $ leno status -watch
  $ leno status -wait=30s
  $ leno status -format=json`,
		Flags: cli.CombineFlags(s.Register, watch.Register,
			func(fs *flag.FlagSet) { wait.Register(fs, "this host is ready and passing") }),
		Run: func(ctx context.Context, _ []string) error {
			read := func(ctx context.Context, c *api.Client, _ api.Read) (Output, uint64, error) {
				out, err := readOutput(ctx, c)
				return out, 0, err
			}
			switch {
			case watch.On && wait.Limit > 0:
				return cli.UsageErrorf("-watch and -wait cannot be used together")
			case watch.On:
				return cli.Show(ctx, s, watch, read, write)
			}
			var out Output
			show := func(v Output) error {
				out = v
				return s.Print(v, func(w io.Writer) { write(w, v, m.Now()) })
			}
			err := await(ctx, s, wait.Limit, show)
			switch {
			case err != nil:
				return err
			case out.Health.Status == api.Critical, wait.Limit > 0 && !isHealthy(out.Health):
				return cli.ErrReported
			}
			return nil
		},
	}
}

// isHealthy reports whether this host is ready and its checks are passing. A warning that packets to other hosts are
// lost does not count: a host that is down must not stop the deployment of the others.
func isHealthy(h api.Health) bool {
	return h.Ready && !slices.ContainsFunc(faultsOf(h), func(f fault) bool {
		return f.Status != api.Warning || f.Name != health.Paths
	})
}

// await shows the status once, when everything passes or after the limit.
func await(ctx context.Context, s *cli.Session, limit time.Duration, show func(Output) error) error {
	read := func(ctx context.Context) (out Output, err error) {
		err = s.Call(ctx, func(ctx context.Context, c *api.Client) (err error) {
			out, err = readOutput(ctx, c)
			return err
		})
		return out, err
	}
	if limit == 0 {
		out, err := read(ctx)
		if err != nil {
			return err
		}
		return show(out)
	}
	if _, err := s.Format.JSON(); err != nil {
		return err
	}
	var out Output
	var answered bool // out is complete
	var wrong error
	err := cli.Await(ctx, limit, func(ctx context.Context) error {
		now, err := read(ctx)
		switch {
		case cli.IsUsageError(err):
			wrong = err
			return nil
		case err != nil && ctx.Err() != nil:
			return err // the limit is over during the read: the answer before says more
		}
		out, answered = now, err == nil
		if answered && !isHealthy(out.Health) {
			return cli.ErrReported
		}
		return err
	})
	switch {
	case wrong != nil:
		return wrong
	case err != nil && !answered:
		return err
	}
	return show(out)
}

func readOutput(ctx context.Context, c *api.Client) (Output, error) {
	var out Output
	var err error
	if out.Agent, err = c.Self(ctx); err != nil {
		return out, err
	}
	if out.Health, err = c.Health(ctx); err != nil {
		return out, err
	}
	out.Networks = []api.Network{}
	list, err := c.Networks(ctx)
	if refused, ok := errors.AsType[*api.Error](err); ok && refused.Code == http.StatusServiceUnavailable {
		return out, nil // the checks show why the agent has not read them
	}
	for _, n := range list.Networks {
		if n.Local != nil {
			out.Networks = append(out.Networks, n)
		}
	}
	return out, err
}

// maxNetworks is how many networks get a line each. Ten networks without problems fit a
// terminal of 24 lines.
const maxNetworks = 10

// testedPaths returns what the continuous tests say, for each of the first networks in which they run.
func testedPaths(h api.Health) (out []string) {
	for _, n := range h.Networks[:min(len(h.Networks), maxNetworks)] {
		for _, c := range n.Checks {
			if c.Name == health.Paths && len(h.Networks) > 1 {
				out = append(out, n.Network+": "+c.Reason)
			} else if c.Name == health.Paths {
				out = append(out, c.Reason)
			}
		}
	}
	return out
}

// write prints one screen: the verdict, this host, its networks, and the checks that are not
// passing.
func write(w io.Writer, out Output, now time.Time) {
	faults := faultsOf(out.Health)
	fmt.Fprintln(w, cli.Paint(w, overall(out.Health), verdict(out, faults)))
	if len(faults) > 0 {
		cli.WriteNote(w, "", "First: "+faults[0].text(now))
		faults = faults[1:]
	} else if tested := testedPaths(out.Health); len(tested) > 0 {
		cli.Printf(w, "Paths: %s", strings.Join(tested, "; "))
	} else if slices.ContainsFunc(out.Networks, func(n api.Network) bool { return n.Local.Peers > 0 }) {
		cli.Printf(w, "Not tested: paths to other hosts. Run `leno peers -probe` or `leno doctor`.")
	}
	fmt.Fprintln(w)
	rules := ""
	if f := out.Agent.Firewall; f != nil {
		rules = f.Kind + ": " + f.Reason
	}
	ready := ", ready"
	if !out.Health.Ready {
		ready = ", not ready"
	}
	cli.WritePairs(w, []cli.Pair{
		{"Status", out.Health.Status + ready},
		{"Node", fmt.Sprintf("%s (id %s)", out.Agent.NodeName, out.Agent.NodeID)},
		{"Agent", fmt.Sprintf("leno %s, pid %d, up %s", out.Agent.Version, out.Agent.PID,
			cli.Age(now.Sub(out.Agent.Started)))},
		{"Registry", out.Agent.Registry},
		{"Firewall", rules},
	})
	fmt.Fprintln(w)
	writeNetworks(w, out)
	if len(out.Networks) <= maxNoted {
		writeNetworkNotes(w, out.Networks)
	}
	writeDiffering(w, out)
	if len(faults) > 0 {
		fmt.Fprintln(w)
	}
	for _, f := range faults {
		cli.WriteNote(w, "", f.text(now))
	}
	if overall(out.Health) != api.Passing {
		fmt.Fprintln(w, "\nRun leno doctor to find the causes and to test the paths to the other hosts.")
	}
}

// overall returns the status of the whole host. A host that is not ready does not pass.
func overall(h api.Health) string {
	if h.Status == api.Passing && !h.Ready {
		return api.Warning
	}
	return h.Status
}

// verdict returns the first line: the health of this host.
func verdict(out Output, faults []fault) string {
	of := plural.Count(len(out.Health.Networks), "network")
	switch {
	case out.Health.Status == api.Critical:
		return "This host is NOT healthy: " + plural.Count(countStatus(faults, api.Critical), "critical check") + "."
	case out.Health.Status == api.Warning && !out.Health.Ready:
		return "This host is not ready yet: " + plural.Count(len(faults), "warning") + "."
	case out.Health.Status == api.Warning:
		return plural.Count(len(faults), "warning") + "."
	case !out.Health.Ready:
		return "This host is not ready yet: " + of + "."
	case len(out.Health.Networks) == 0:
		return "Healthy. This host takes part in no network."
	}
	return "Healthy: " + of + " ready."
}

// fault is one check that is not passing.
type fault struct {
	network string // "" for the agent itself
	api.Check
}

// faultsOf returns the checks that are not passing, the worst first. The agent's own come before
// those of networks, which are often their consequence.
func faultsOf(h api.Health) []fault {
	var list []fault
	add := func(network string, checks []api.Check) {
		for _, c := range checks {
			if c.Status != api.Passing {
				list = append(list, fault{network, c})
			}
		}
	}
	add("", h.Checks)
	for _, n := range h.Networks {
		add(n.Network, n.Checks)
	}
	slices.SortStableFunc(list, func(a, b fault) int { return health.Severity(b.Status) - health.Severity(a.Status) })
	return list
}

func countStatus(faults []fault, status string) int {
	n := 0
	for _, f := range faults {
		if f.Status == status {
			n++
		}
	}
	return n
}

func (f fault) text(now time.Time) string {
	scope, since := "", ""
	if f.network != "" {
		scope = f.network + ": "
	}
	if !f.Since.IsZero() {
		since = " for " + cli.Age(now.Sub(f.Since))
	}
	return fmt.Sprintf("%s%s is %s%s: %s", scope, f.Name, f.Status, since, f.Reason)
}

// writeNetworks prints a line for each network that health reports, including those that are
// not in the store yet. If there are many, networks with problems come first.
func writeNetworks(w io.Writer, out Output) {
	if len(out.Health.Networks) == 0 {
		fmt.Fprintln(w, "This host takes part in no network.")
		return
	}
	list := slices.Clone(out.Health.Networks)
	if len(list) > maxNetworks {
		slices.SortStableFunc(list, func(a, b api.NetworkHealth) int {
			return health.Severity(b.Status) - health.Severity(a.Status)
		})
	}
	var rows [][]string
	for _, h := range list[:min(len(list), maxNetworks)] {
		row := []string{h.Network, h.Status, "-", "-", "-", "-", "-"}
		for _, n := range out.Networks {
			if n.Name == h.Network {
				l := n.Local
				row = []string{n.Name, h.Status, describe.First(l.Subnets), cmp.Or(l.Backend, "-"), cmp.Or(l.Link, "-"),
					cmp.Or(describe.Number(l.MTU), "-"), strconv.Itoa(l.Peers)}
			}
		}
		rows = append(rows, row)
	}
	cli.WriteTable(w, []cli.Column{{Title: "NETWORK", Cut: true}, {Title: "STATUS"}, {Title: "SUBNET"},
		{Title: "BACKEND", Cut: true}, {Title: "DEVICE", Cut: true}, {Title: "MTU"}, {Title: "PEERS"}}, rows)
	if rest := list[min(len(list), maxNetworks):]; len(rest) > 0 {
		all := "all passing"
		if rest[0].Status != api.Passing {
			all = "not all passing"
		}
		fmt.Fprintf(w, "And %s, %s: leno network list\n", plural.Count(len(rest), "more network"), all)
	}
}

// maxNoted is how many networks are explained; leno network show explains each.
const maxNoted = 2

// writeNetworkNotes explains each network: its underlay, its MTU, and what the backend chose
// automatically.
func writeNetworkNotes(w io.Writer, networks []api.Network) {
	for i, n := range networks {
		if i == 0 {
			fmt.Fprintln(w)
		}
		if text := describe.Underlay(n.Local.Underlay); text != "" {
			cli.WriteNote(w, "", fmt.Sprintf("%s: underlay %s", n.Name, text))
		}
		if n.Local.MTUReason != "" {
			cli.WriteNote(w, "", fmt.Sprintf("%s: MTU %s", n.Name, n.Local.MTUReason))
		}
		for _, text := range n.Local.Notes {
			cli.WriteNote(w, "", fmt.Sprintf("%s: %s", n.Name, text))
		}
	}
}

// writeDiffering names the networks whose block in the agent's configuration has no effect, with
// the agent's explanation. A check that is not passing is printed anyway.
func writeDiffering(w io.Writer, out Output) {
	for _, n := range out.Networks {
		if len(n.Local.Differs) == 0 {
			continue
		}
		for _, h := range out.Health.Networks {
			for _, c := range h.Checks {
				if h.Network == n.Name && c.Name == "network" && c.Status == api.Passing {
					text, command, found := strings.Cut(c.Reason, ": leno network apply ")
					cli.WriteNote(w, "", fmt.Sprintf("%s: %s", n.Name, text))
					if found {
						fmt.Fprintln(w, "    leno network apply "+cli.Escape(command)) // on one line, so that it can be copied
					}
				}
			}
		}
	}
}
