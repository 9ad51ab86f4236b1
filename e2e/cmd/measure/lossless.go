package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/restarts"
)

const (
	targetBoot = 1   // s
	targetGap  = 0.2 // s
)

// crossed is the effect of a number of restarts of one kind on the traffic, both families together.
type crossed struct {
	Backend    string   `json:"backend"`
	Way        string   `json:"way"` // "none" is the same traffic without a restart
	Restarts   int      `json:"restarts"`
	Sent       int      `json:"sent"`
	Lost       int      `json:"lost"`
	Losses     []string `json:"losses,omitempty"` // by restart
	Duplicates int      `json:"duplicates"`
	Reordered  int      `json:"reordered"`
	Rate       float64  `json:"rate"`       // pings sent per second and family, the lower of both
	Gap        float64  `json:"gap"`        // longest time between two answers, s
	Pause      float64  `json:"pause"`      // longest time without sending, s
	TCPPause   float64  `json:"tcp_pause"`  // longest time without data, s
	TCPResent  int      `json:"tcp_resent"` // retransmitted segments
	TCPLives   bool     `json:"tcp_lives"`  // until the end
	Ready      float64  `json:"ready"`      // longest time from the end of a process until the next one is ready, s
	Took       float64  `json:"took"`       // s
}

// lossless restarts agents in every way with the backends whose packets the kernel forwards, with a
// control run of the same traffic.
func (m *measurement) lossless(ctx context.Context) error {
	for _, backend := range []string{"vxlan", "host-gw"} {
		if err := m.onSite(ctx, backend, m.losslessOf); err != nil {
			return fmt.Errorf("%s: %w", backend, err)
		}
	}
	return nil
}

// onSite calls do with a site in a lab of its own, because sites need different things on the hosts.
func (m *measurement) onSite(ctx context.Context, backend string, do func(context.Context, *restarts.Site) error) (err error) {
	l, err := lab.New(ctx, lab.Options{Name: "measure", Hosts: 2, Leno: m.leno, Consul: m.consul})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	site, err := restarts.NewSite(ctx, l, backend)
	if err != nil {
		return err
	}
	site.Rest = time.Second // for what a start does later
	return do(ctx, site)
}

// restarts measures the effect of an agent's restart on packets that the agent itself forwards:
// udp's. A TCP connection must survive it.
func (m *measurement) restarts(ctx context.Context) error {
	return m.onSite(ctx, "udp", func(ctx context.Context, site *restarts.Site) error {
		for _, way := range restarts.Ways(site.Backend)[:2] { // SIGTERM and kill -9
			what := "udp, " + way.Name + " and a start: "
			for range 2 * m.runs {
				report, err := site.Run(ctx, restarts.Step{Way: way, Rounds: 1})
				if err != nil {
					return err
				}
				sum := report.Sum()
				m.result.seconds(what+"longest time without an answer", targetGap, sum.Gap)
				m.result.add(what+"pings lost, at 1,000 a second", "pings", 0, float64(sum.Lost()))
				m.result.seconds(what+"longest pause of a TCP connection", 0, report.Pause)
			}
		}
		return nil
	})
}

func (m *measurement) losslessOf(ctx context.Context, site *restarts.Site) error {
	backend := site.Backend
	var steps []restarts.Step
	for _, way := range restarts.Ways(backend) {
		steps = append(steps, restarts.Step{Way: way, Rounds: 2 * m.runs})
	}
	if m.older != "" {
		steps = append(steps, restarts.Step{Way: restarts.Replacement(m.older), Rounds: 2 * m.runs})
	}
	steps = append(steps, restarts.Step{Way: restarts.ConsulAway(), Rounds: m.runs}) // these rounds take long
	var longest time.Duration
	for _, step := range steps {
		report, err := site.Run(ctx, step)
		m.result.cross(backend, step.Name, report, err)
		if ctx.Err() != nil {
			return err
		}
		longest = max(longest, report.Took)
	}
	report, err := site.Undisturbed(ctx, longest)
	m.result.cross(backend, "none", report, err)
	if err != nil {
		return err
	}
	for range m.runs {
		for _, lost := range []bool{false, true} {
			state := "kept"
			if lost {
				state = "lost"
			}
			took, err := site.Boot(ctx, lost)
			if err != nil {
				return fmt.Errorf("boot, state %s: %w", state, err)
			}
			m.result.seconds(fmt.Sprintf("%s: start of the agent of a host that was booted, state %s, to the first answer", backend, state), targetBoot, took)
		}
	}
	return nil
}

// cross records one report.
func (r *result) cross(backend, way string, report restarts.Report, err error) {
	sum := report.Sum()
	c := crossed{
		Backend: backend, Way: way, Restarts: len(report.Rounds), Sent: sum.Sent, Lost: sum.Lost(), Losses: report.Losses(),
		Duplicates: sum.Duplicates, Reordered: sum.Reordered, Rate: sum.Rate, Gap: sum.Gap.Seconds(), Pause: sum.Pause.Seconds(),
		TCPPause: report.Pause.Seconds(), TCPResent: report.Resent, TCPLives: err == nil, Took: report.Took.Seconds(),
	}
	for _, round := range report.Rounds {
		c.Ready = max(c.Ready, round.Took.Seconds())
	}
	if err != nil {
		c.Losses = append(c.Losses, err.Error())
	}
	r.Crossings = append(r.Crossings, c)
}

// crossings prints the table of the restarts.
func (r *result) crossings(out io.Writer) error {
	if len(r.Crossings) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "BACKEND\tRESTARTS\t\tPINGS\tA SECOND\tLOST\tTWICE\tLATE\tLONGEST GAP\tSENDER'S PAUSE\tTCP PAUSE\tRESENT")
	for _, c := range r.Crossings {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%.0f\t%d\t%d\t%d\t%.0f ms\t%.0f ms\t%.0f ms\t%d\n", c.Backend, c.Way, c.Restarts,
			c.Sent, c.Rate, c.Lost, c.Duplicates, c.Reordered, c.Gap*1000, c.Pause*1000, c.TCPPause*1000, c.TCPResent)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, c := range r.Crossings {
		if len(c.Losses) > 0 {
			fmt.Fprintf(out, "%s, %s: %s\n", c.Backend, c.Way, strings.Join(c.Losses, ", "))
		}
	}
	return nil
}
