package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/posener/complete"

	"github.com/lenonet/leno/agent"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/examine"
	"github.com/lenonet/leno/api"
)

// usualConfigDir is the configuration directory of the packages and the systemd unit.
const usualConfigDir = "/etc/leno.d"

func doctorSpec(m Meta) spec {
	d := &doctorCommand{session: newSession(m)}
	return spec{
		name: "doctor", synopsis: "Find out what is wrong with this host and what to do",
		help: `
Examines this host, its part in each network, what it has in Consul and the
ways to the other hosts: rights, rules, routes, devices, records, and packets
through the overlay and plainly, small and of the full size. Of each fault it
says what was tried, what was seen and what to do, causes first. Nothing is
changed.

  $ leno doctor
  $ leno doctor -network blue -passive   sends no packets to other hosts

The agent does it. When none answers on this host, the command says so and
examines what it can by itself, best as root: the configuration, Consul and
its rights, kernel modules, rules, what the last agent left.

Exit code 1 when there is a fault.`,
		flags: d.register, predict: complete.PredictNothing,
		run: func(ctx context.Context, _ []string) error { return d.run(ctx) },
	}
}

type doctorCommand struct {
	*session
	files   configFlags
	options api.DoctorOptions
}

func (d *doctorCommand) register(fs *flag.FlagSet) {
	d.session.flags(fs)
	d.files.register(fs)
	fs.StringVar(&d.options.Network, "network", "", "only what is of the network of this `name`, and of the whole host")
	fs.BoolVar(&d.options.Passive, "passive", false, "send no packets to other hosts; the paths to them are not tested then")
}

func (d *doctorCommand) run(ctx context.Context) error {
	var out api.Diagnosis
	err := d.call(ctx, func(ctx context.Context, c *api.Client) (err error) {
		out, err = c.Doctor(ctx, d.options)
		return err
	})
	var answered *api.Error
	switch {
	case err == nil:
	case errors.As(err, &answered), isUsageError(err), !here(d.agent.where()):
		return err
	default:
		out = d.alone(ctx, err)
	}
	if err := d.print(out, func(w io.Writer) { writeDiagnosis(w, out) }); err != nil {
		return err
	}
	for _, f := range out.Findings {
		if f.Status == api.FindingFault {
			return errReported
		}
	}
	return nil
}

// here reports whether an agent's address is on this host.
func here(address string) bool {
	rest := address
	if scheme, after, ok := strings.Cut(address, "://"); ok {
		if scheme == "unix" {
			return true
		}
		rest = after
	}
	host, _, _ := strings.Cut(rest, "/")
	if a, err := netip.ParseAddrPort(host); err == nil {
		return a.Addr().IsLoopback()
	}
	return strings.HasPrefix(host, "localhost:")
}

// alone returns what this process can find out without an agent. err is why no agent responded.
func (d *doctorCommand) alone(ctx context.Context, err error) api.Diagnosis {
	sources := d.files.sources
	if info, statErr := os.Stat(usualConfigDir); len(sources) == 0 && statErr == nil && info.IsDir() {
		sources = []string{usualConfigDir}
	}
	var conf config.Config
	var confErr error
	if len(sources) > 0 {
		conf, confErr = config.Load(sources, configOptions(d.meta.Backends))
	}
	if token, tokenErr := d.agent.resolveToken(); tokenErr == nil && token != "" {
		conf.Consul.Token, conf.Consul.TokenFile = token, ""
	}
	if cause := errors.Unwrap(err); cause != nil {
		err = cause
	}
	return examine.ExamineOffline(ctx, examine.Offline{
		Address:   d.agent.where(),
		Err:       err,
		Config:    conf,
		ConfigErr: confErr,
		Backends:  agent.Backends(),
		Open: func(c config.Config, log hclog.Logger) (examine.Registry, string, error) {
			return agent.OpenRegistry(c, log, nil)
		},
		Logger: hclog.New(&hclog.LoggerOptions{Name: "leno", Level: hclog.Error, Output: d.meta.Stderr}),
		Now:    d.meta.Now,
	}, d.options)
}

// writeDiagnosis prints the verdict, the problems in detail, and one line for each passed check.
func writeDiagnosis(w io.Writer, out api.Diagnosis) {
	counts := map[string]int{}
	for _, f := range out.Findings {
		counts[f.Status]++
	}
	fmt.Fprintln(w, oneLine(verdictLine(out, counts)))
	for _, f := range out.Findings {
		if f.Status != api.FindingOK {
			writeFinding(w, f)
		}
	}
	if counts[api.FindingOK] == 0 {
		return
	}
	fmt.Fprintln(w)
	var rows [][]string
	for _, f := range out.Findings {
		if f.Status == api.FindingOK {
			rows = append(rows, []string{"ok", f.Check, dash(f.Network), f.Saw})
		}
	}
	table(w, []column{{title: "STATUS"}, {title: "CHECK"}, {title: "NETWORK", cut: true}, {title: "SAW", cut: true}}, rows)
}

func verdictLine(out api.Diagnosis, counts map[string]int) string {
	var parts []string
	for _, of := range []struct{ status, what string }{
		{api.FindingFault, "fault"}, {api.FindingWarning, "warning"}, {api.FindingUnknown, "question left open"},
	} {
		n := counts[of.status]
		switch {
		case n == 0:
		case of.status == api.FindingUnknown && n > 1:
			parts = append(parts, fmt.Sprintf("%d questions left open", n))
		default:
			parts = append(parts, plural(n, of.what))
		}
	}
	verdict := strings.Join(parts, ", ")
	if verdict == "" {
		verdict = "nothing is wrong"
	}
	node := out.Node
	if node == "" {
		node = "this host"
	}
	return fmt.Sprintf("%s: %s (%s)", node, verdict, out.Took.Round(10*time.Millisecond))
}

// writeFinding prints the parts of a finding that is not ok.
func writeFinding(w io.Writer, f api.Finding) {
	colours := map[string]string{api.FindingFault: api.Critical, api.FindingWarning: api.Warning}
	title := strings.ToUpper(f.Status) + " " + f.Check
	if f.Network != "" {
		title += ", network " + f.Network
	}
	if f.Peer != "" {
		title += ", host " + f.Peer
	}
	fmt.Fprintln(w)
	for _, line := range wrap(oneLine(title), width) {
		fmt.Fprintln(w, paint(w, colours[f.Status], line))
	}
	for _, part := range []pair{{"tried", f.Tried}, {"saw", f.Saw}, {"do", f.Do}} {
		if part.value == "" {
			continue
		}
		lead := fmt.Sprintf("  %-7s", part.name)
		for _, line := range wrap(oneLine(part.value), width-len(lead)) {
			fmt.Fprintln(w, lead+line)
			lead = strings.Repeat(" ", len(lead))
		}
	}
}
