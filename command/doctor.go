package command

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/posener/complete"

	"github.com/lenonet/leno/agent"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/examine"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/packettrace"
	"github.com/lenonet/leno/internal/plural"
)

// usualConfigDir is the configuration directory of the packages and the systemd unit.
const usualConfigDir = "/etc/leno.d"

func doctorSpec(m cli.Meta) cli.Spec {
	d := &doctorCommand{Session: cli.NewSession(m)}
	return cli.Spec{
		Name: "doctor", Args: "[ADDRESS]", Max: 1, Synopsis: "Diagnose this host and suggest fixes",
		Help: `
Examines this host, its part in each network, its records in Consul and the
paths to the other hosts, over which it sends small and full-size packets. For
each fault it prints what was tried, what was seen and what to do, causes
first. It changes nothing.

With -all it examines all hosts: those whose agents answer, the others by the
summaries that they send. It prints one finding for each cause.

With the address of a container or of another host, it follows packets from
this host to that address, and prints only where they are lost: the short form
of leno trace. For a container of this host, it follows packets from the
container to this host.

  $ leno doctor
  $ leno doctor -network blue -passive   sends no packets to other hosts
  $ leno doctor 10.5.35.2                why packets do not reach this address
  $ leno doctor -all
  $ leno doctor -all -peer-address='{ip}:5366'

If no agent responds on this host, the command examines what it can by itself,
best as root.

Exits 1 if there is a fault.`,
		Flags: d.register, Predict: complete.PredictNothing,
		Run: func(ctx context.Context, args []string) error {
			if len(args) == 1 {
				if d.options != (api.DoctorOptions{}) || len(d.files.sources) > 0 || d.all || d.others != "" {
					return cli.UsageErrorf("-network, -passive, -all and configuration files cannot be used with an address")
				}
				return packettrace.RunAddress(ctx, d.Session, args[0])
			}
			return d.run(ctx)
		},
	}
}

type doctorCommand struct {
	*cli.Session
	files   configFlags
	options api.DoctorOptions
	all     bool
	others  string // address of the agents on other hosts
}

func (d *doctorCommand) register(fs *flag.FlagSet) {
	d.Session.Register(fs)
	d.files.register(fs)
	fs.StringVar(&d.options.Network, "network", "", "examine only the network of this `name`, and the whole host")
	fs.BoolVar(&d.options.Passive, "passive", false, "send no packets to other hosts; the paths to them are not tested")
	fs.BoolVar(&d.all, "all", false, "examine all hosts of the networks of this host")
	fs.StringVar(&d.others, "peer-address", "",
		"with -all, `address` of the agents on other hosts, with {ip} for the public address "+
			"of each or {node} for its name; default: the port of this host's agent if others reach that")
}

func (d *doctorCommand) run(ctx context.Context) error {
	if d.all {
		return d.diagnoseAll(ctx)
	}
	if d.others != "" {
		return cli.UsageErrorf("-peer-address needs -all")
	}
	var out api.Diagnosis
	err := d.Call(ctx, func(ctx context.Context, c *api.Client) (err error) {
		out, err = c.Doctor(ctx, d.options)
		return err
	})
	var answered *api.Error
	switch {
	case err == nil:
	case errors.As(err, &answered), cli.IsUsageError(err), !d.Agent.IsLocal():
		return err
	default:
		out = d.diagnoseOffline(ctx, err)
	}
	if err := d.Print(out, func(w io.Writer) { writeDiagnosis(w, out) }); err != nil {
		return err
	}
	for _, f := range out.Findings {
		if f.Status == api.FindingFault {
			return cli.ErrReported
		}
	}
	return nil
}

// diagnoseOffline returns what this process can find out without an agent. err is why no agent responded.
func (d *doctorCommand) diagnoseOffline(ctx context.Context, err error) api.Diagnosis {
	sources := d.files.sources
	if info, statErr := os.Stat(usualConfigDir); len(sources) == 0 && statErr == nil && info.IsDir() {
		sources = []string{usualConfigDir}
	}
	var conf config.Config
	var confErr error
	if len(sources) > 0 {
		conf, confErr = config.Load(sources, configOptions(d.Meta.Backends))
	}
	if cause := errors.Unwrap(err); cause != nil {
		err = cause
	}
	return examine.ExamineOffline(ctx, examine.Offline{
		Address:   d.Agent.Address(),
		Err:       err,
		Config:    conf,
		ConfigErr: confErr,
		Backends:  agent.Backends(),
		Open: func(c config.Config, log hclog.Logger) (examine.Registry, string, error) {
			token, err := d.Agent.Token()
			if err != nil {
				return nil, "", err
			}
			return openRegistryAs(c, log, token)
		},
		Logger: hclog.New(&hclog.LoggerOptions{Name: "leno", Level: hclog.Error, Output: d.Meta.Stderr}),
		Now:    d.Meta.Now,
	}, d.options)
}

// writeDiagnosis prints the verdict, the problems in detail, and one line for each passed check.
func writeDiagnosis(w io.Writer, out api.Diagnosis) {
	counts := map[string]int{}
	for _, f := range out.Findings {
		counts[f.Status]++
	}
	fmt.Fprintln(w, cli.EscapeLine(verdictLine(out, counts)))
	for _, f := range out.Findings {
		if f.Status != api.FindingOK {
			cli.WriteFinding(w, f)
		}
	}
	if counts[api.FindingOK] == 0 {
		return
	}
	fmt.Fprintln(w)
	var rows [][]string
	for _, f := range out.Findings {
		if f.Status == api.FindingOK {
			rows = append(rows, []string{"ok", f.Check, cmp.Or(f.Network, "-"), f.Saw})
		}
	}
	cli.WriteTable(w, []cli.Column{{Title: "STATUS"}, {Title: "CHECK"}, {Title: "NETWORK", Cut: true},
		{Title: "SAW", Cut: true}}, rows)
}

func verdictLine(out api.Diagnosis, counts map[string]int) string {
	var parts []string
	for _, of := range []struct{ status, what string }{
		{api.FindingFault, "fault"}, {api.FindingWarning, "warning"}, {api.FindingUnknown, "check without a result"},
	} {
		n := counts[of.status]
		switch {
		case n == 0:
		case of.status == api.FindingUnknown && n > 1:
			parts = append(parts, fmt.Sprintf("%d checks without a result", n))
		default:
			parts = append(parts, plural.Count(n, of.what))
		}
	}
	return fmt.Sprintf("%s: %s (%s)", cmp.Or(out.Node, "this host"), cmp.Or(strings.Join(parts, ", "), "healthy"),
		out.Took.Round(10*time.Millisecond))
}
