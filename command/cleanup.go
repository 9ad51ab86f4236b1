package command

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"

	"github.com/hashicorp/go-hclog"
	"github.com/posener/complete"

	"github.com/lenonet/leno/agent/cleanup"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/registry"
)

func cleanupSpec(m cli.Meta) cli.Spec {
	c := &cleanupCommand{meta: m, format: cli.NewFormatFlag(m), overrides: overrides{}}
	return cli.Spec{
		Name: "cleanup", Synopsis: "Remove everything that leno created on this host",
		Help: `
Removes every device, route, neighbour, routing rule, firewall rule and file
that leno created on this host, and this host's leases, sessions and service
from the store. Objects that only look like leno's are listed and kept.

Stop the agent first. Pass its configuration files if they exist: they name
the state directory and the store. Configuration files, log files and
ip_forward stay. To make a running agent leave one network, use
leno lease release.

  $ leno cleanup -dry-run -config-dir /etc/leno.d
  $ leno cleanup -config-dir /etc/leno.d
  $ leno cleanup -network blue -config-dir /etc/leno.d   only network blue
  $ leno cleanup -keep-lease    does not need the store, and keeps the
                                subnet for this host

Needs root. Exits 1 if an agent is running, with -network one that takes part
in that network, or if something could not be removed, which it lists with
the reason. If a device or route stays, so does its network's lease.`,
		Flags: c.register, Predict: complete.PredictNothing,
		Run: func(ctx context.Context, _ []string) error { return c.run(ctx) },
	}
}

type cleanupCommand struct {
	meta      cli.Meta
	files     configFlags
	format    *cli.FormatFlag
	options   cleanup.Options
	token     string
	overrides overrides
}

func (c *cleanupCommand) register(fs *flag.FlagSet) {
	c.files.register(fs)
	fs.BoolVar(&c.options.DryRun, "dry-run", false, "only list what would be removed; an agent may be running")
	fs.StringVar(&c.options.Network, "network", "", "remove only what belongs to the network of this `name`")
	fs.BoolVar(&c.options.KeepLease, "keep-lease", false,
		"keep the records in the store and the node id: an agent that is started later takes the subnet back")
	fs.StringVar(&c.token, "token", "",
		"`token` for the store, instead of the agent's: a Consul ACL token, USER:PASSWORD of etcd, "+
			"or a bearer token of Kubernetes; LENO_TOKEN")
	c.overrides.register(c.meta, fs, "node_name", "data_dir", "consul.address", "consul.token_file", "http.address")
	c.format.Register(fs)
}

func (c *cleanupCommand) load() (config.Config, error) {
	options := configOptions(c.meta.Backends)
	options.Overrides = c.overrides
	return config.Load(c.files.sources, options)
}

func (c *cleanupCommand) run(ctx context.Context) error {
	asJSON, err := c.format.JSON()
	if err != nil {
		return err
	}
	if err := registry.CheckNetworkName(c.options.Network); err != nil && c.options.Network != "" {
		return cli.UsageErrorf("-network: %s", err)
	}
	conf, err := c.load()
	if err != nil {
		return err
	}
	c.options.Logger = hclog.New(&hclog.LoggerOptions{Name: "leno", Level: hclog.Error, Output: c.meta.Stderr})
	c.options.Open = func(conf config.Config, log hclog.Logger) (cleanup.Registry, error) {
		reg, _, err := openRegistryAs(conf, log, cmp.Or(c.token, c.meta.Getenv("LENO_TOKEN")))
		return reg, err
	}
	report, err := cleanup.Run(ctx, conf, c.options)
	if err != nil {
		return err
	}
	if asJSON {
		err = cli.WriteJSON(c.meta.Stdout, report)
	} else {
		writeCleanup(c.meta.Stdout, report)
	}
	if err == nil && len(report.Left) > 0 {
		return cli.ErrReported
	}
	return err
}

func writeCleanup(w io.Writer, r cleanup.Report) {
	parts := []struct {
		title string
		list  []cleanup.Leftover
	}{
		{"Removed:", r.Removed},
		{"Could not be removed:", r.Left},
		{"Not removed, not created by leno:", r.Foreign},
	}
	if r.DryRun {
		parts[0].title = "Would be removed:"
	}
	if len(r.Removed)+len(r.Left) == 0 {
		fmt.Fprintln(w, "Nothing found.")
	}
	for _, part := range parts {
		if len(part.list) == 0 {
			continue
		}
		fmt.Fprintln(w, part.title)
		for _, l := range part.list {
			fmt.Fprintln(w, "  "+cli.EscapeLine(leftoverText(l)))
			if l.Reason != "" {
				cli.WriteNote(w, "      ", l.Reason)
			}
		}
	}
}

// leftoverText describes a leftover in words, for example "route 10.5.77.0/24 of network blue".
func leftoverText(l cleanup.Leftover) string {
	text := l.Kind + " " + l.Name
	if l.Network != "" {
		text += " of network " + l.Network
	}
	if l.Detail != "" {
		text += " (" + l.Detail + ")"
	}
	return text
}
