package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/lenonet/leno/api"
)

// statusOutput is the agent's whole answer to `leno status -format=json`.
type statusOutput struct {
	Agent    api.Self      `json:"agent"`
	Health   api.Health    `json:"health"`
	Networks []api.Network `json:"networks"`
}

func statusSpec(m Meta) spec {
	s := newSession(m)
	return spec{
		name:     "status",
		synopsis: "Show the agent, its networks and what is not well",
		help: `
Shows the agent, its part in every network, and each check that is not
passing with its reason. Exits 0 when the agent is passing or has a warning
(packets flow), and 1 when it is critical.

  $ leno status
  $ leno status -format=json`,
		flags: s.flags,
		run: func(ctx context.Context, _ []string) error {
			return s.call(ctx, func(ctx context.Context, c *api.Client) error {
				out, err := status(ctx, c)
				if err != nil {
					return err
				}
				if err := s.print(out, func(w io.Writer) { writeStatus(w, out, m.Now()) }); err != nil {
					return err
				}
				if out.Health.Status == api.Critical {
					return errReported
				}
				return nil
			})
		},
	}
}

func status(ctx context.Context, c *api.Client) (statusOutput, error) {
	var out statusOutput
	var err error
	if out.Agent, err = c.Self(ctx); err != nil {
		return out, err
	}
	if out.Health, err = c.Health(ctx); err != nil {
		return out, err
	}
	out.Networks = []api.Network{}
	list, err := c.Networks(ctx)
	var refused *api.Error
	if errors.As(err, &refused) && refused.Code == http.StatusServiceUnavailable {
		return out, nil // the checks say why the agent has not read them
	}
	for _, n := range list.Networks {
		if n.Local != nil {
			out.Networks = append(out.Networks, n)
		}
	}
	return out, err
}

func writeStatus(w io.Writer, out statusOutput, now time.Time) {
	ready := ", ready"
	if !out.Health.Ready {
		ready = ", not ready"
	}
	rules := ""
	if f := out.Agent.Firewall; f != nil {
		rules = f.Kind + ": " + f.Reason
	}
	pairs(w, []pair{
		{"Status", out.Health.Status + ready},
		{"Node", fmt.Sprintf("%s (id %s)", out.Agent.NodeName, out.Agent.NodeID)},
		{"Agent", fmt.Sprintf("leno %s, pid %d, up %s", out.Agent.Version, out.Agent.PID, age(now.Sub(out.Agent.Started)))},
		{"Registry", out.Agent.Registry},
		{"Firewall", rules},
	})
	writeStatusNetworks(w, out)
	writeStanding(w, out.Networks)
	writeChecks(w, out.Health, now)
}

// writeStatusNetworks has a line for each network health knows, also for those
// that are not in the store yet.
func writeStatusNetworks(w io.Writer, out statusOutput) {
	fmt.Fprintln(w)
	if len(out.Health.Networks) == 0 {
		fmt.Fprintln(w, "This host takes part in no network.")
		return
	}
	var rows [][]string
	for _, h := range out.Health.Networks {
		row := []string{h.Network, h.Status, "-", "-", "-", "-", "-"}
		for _, n := range out.Networks {
			if n.Name == h.Network {
				l := n.Local
				row = []string{n.Name, h.Status, firstSubnet(l.Subnets), dash(l.Backend), dash(l.Link), dash(number(l.MTU)), strconv.Itoa(l.Peers)}
			}
		}
		rows = append(rows, row)
	}
	table(w, []column{{title: "NETWORK", cut: true}, {title: "STATUS"}, {title: "SUBNET"}, {title: "BACKEND", cut: true},
		{title: "DEVICE", cut: true}, {title: "MTU"}, {title: "PEERS"}}, rows)
}

// writeStanding explains where each network stands: its underlay, its MTU, and
// what the backend chose by itself.
func writeStanding(w io.Writer, networks []api.Network) {
	for i, n := range networks {
		if i == 0 {
			fmt.Fprintln(w)
		}
		if text := describeUnderlay(n.Local.Underlay); text != "" {
			note(w, "", fmt.Sprintf("%s: underlay %s", n.Name, text))
		}
		if n.Local.MTUReason != "" {
			note(w, "", fmt.Sprintf("%s: MTU %s", n.Name, n.Local.MTUReason))
		}
		for _, text := range n.Local.Notes {
			note(w, "", fmt.Sprintf("%s: %s", n.Name, text))
		}
	}
}

// writeChecks names what is not passing and why.
func writeChecks(w io.Writer, h api.Health, now time.Time) {
	first := true
	write := func(scope string, checks []api.Check) {
		for _, c := range checks {
			if c.Status == api.Passing {
				continue
			}
			if first {
				fmt.Fprintln(w)
				first = false
			}
			since := ""
			if !c.Since.IsZero() {
				since = " for " + age(now.Sub(c.Since))
			}
			note(w, "", fmt.Sprintf("%s%s is %s%s: %s", scope, c.Name, c.Status, since, c.Reason))
		}
	}
	write("", h.Checks)
	for _, n := range h.Networks {
		write(n.Network+": ", n.Checks)
	}
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
