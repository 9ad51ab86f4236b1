package command

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/posener/complete"

	"github.com/lenonet/leno/agent"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/internal/plural"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/transfer"
)

// withoutFlannelHosts is the name of a flag.
const withoutFlannelHosts = "without-flannel-hosts"

// storeCopy is `leno store copy`.
type storeCopy struct {
	meta             cli.Meta
	format           *cli.FormatFlag
	from, to         string // paths of configurations
	networks         cli.ListFlag
	dryRun           bool
	skipFlannelHosts bool // leave out the hosts that run flannel

	open openRegistry
}

// openRegistry is the type of agent.OpenRegistry.
type openRegistry func(config.Config, hclog.Logger, func(secret string)) (registry.Registry, string, error)

func storeCopySpec(m cli.Meta) cli.Spec { return newStoreCopy(m, agent.OpenRegistry).spec() }

func newStoreCopy(m cli.Meta, open openRegistry) *storeCopy {
	return &storeCopy{meta: m, format: cli.NewFormatFlag(m), open: open}
}

func (c *storeCopy) spec() cli.Spec {
	return cli.Spec{
		Name: "store copy", Synopsis: "Copy networks and leases to another store",
		Help: `
Copies networks, reservations and leases from one store to another, so that
you can move hosts one by one, each with its subnet. -from and -to name agent
configurations, one for each store. Their tokens or users need the right to
write all networks, leases, reservations and sessions.

In the destination, each lease is kept for its host for lease.hold of the
destination's configuration, 24 hours by default. Start every host with the
new configuration within that time, before other hosts may take its subnet.

Run the command again at any time. It adds what is missing, keeps the leases
of hosts that have not moved yet for another lease.hold, and changes neither
the source nor the leases of hosts that have moved.

Networks that differ in the destination, subnets that another host has there,
deleted networks and unusable records are listed and not copied. If there are
hosts that run flannel, nothing is copied.

Exits 1 if something could not be copied.

  $ leno store copy -from=etcd.hcl -to=consul.hcl -dry-run
  $ leno store copy -from=etcd.hcl -to=consul.hcl
  $ leno store copy -from=etcd.hcl -to=consul.hcl -network=default`,
		Flags: c.register, Predict: complete.PredictNothing,
		Values: complete.Flags{"-from": complete.PredictFiles("*"), "-to": complete.PredictFiles("*"),
			"-network": complete.PredictAnything},
		Run: func(ctx context.Context, _ []string) error { return c.run(ctx) },
	}
}

func (c *storeCopy) register(fs *flag.FlagSet) {
	fs.StringVar(&c.from, "from", "", "`path` of the configuration of an agent that uses the source")
	fs.StringVar(&c.to, "to", "", "`path` of the configuration of an agent that uses the destination")
	fs.Var(&c.networks, "network", "copy only the network of this `name`; may be repeated")
	fs.BoolVar(&c.dryRun, "dry-run", false, "only show what would be copied")
	fs.BoolVar(&c.skipFlannelHosts, withoutFlannelHosts, false, "leave out the hosts that run flannel, and copy the rest")
	c.format.Register(fs)
}

// storeCopyOutput is what the command prints as JSON.
type storeCopyOutput struct {
	From string `json:"from"` // such as "etcd at 10.0.0.1:2379"
	To   string `json:"to"`
	transfer.Report
}

func (c *storeCopy) run(ctx context.Context) error {
	asJSON, err := c.format.JSON()
	if err != nil {
		return err
	}
	switch {
	case c.from == "":
		return cli.UsageErrorf("-from is missing")
	case c.to == "":
		return cli.UsageErrorf("-to is missing")
	}
	for _, name := range c.networks {
		if err := registry.CheckNetworkName(name); err != nil {
			return cli.UsageErrorf("-network: %s", err)
		}
	}
	source, err := c.load("-from", c.from)
	if err != nil {
		return err
	}
	destination, err := c.load("-to", c.to)
	if err != nil {
		return err
	}
	if placeOf(source) == placeOf(destination) {
		return fmt.Errorf("%s and %s are configurations of the same store", c.from, c.to)
	}
	log := hclog.New(&hclog.LoggerOptions{Name: "leno", Level: hclog.Error, Output: c.meta.Stderr})
	from, fromName, err := c.open(source, log.Named("source"), nil)
	if err != nil {
		return fmt.Errorf("-from: %w", err)
	}
	defer closeStore(from)
	to, toName, err := c.open(destination, log.Named("destination"), nil)
	if err != nil {
		return fmt.Errorf("-to: %w", err)
	}
	defer closeStore(to)
	report, err := transfer.Copy(ctx, from, to, transfer.Options{
		Networks:       c.networks,
		Hold:           destination.Lease.Hold,
		DryRun:         c.dryRun,
		WithoutForeign: c.skipFlannelHosts,
		Normalize:      func(b registry.Backend) registry.Backend { return definition.WithDefaults(b, c.meta.Backends) },
	})
	foreign := &transfer.ForeignError{}
	switch {
	case errors.As(err, &foreign):
		report.DryRun = true
		err = fmt.Errorf("%s of hosts that run flannel cannot be copied, nothing was changed: %s "+
			"(-%s copies the rest)", plural.Count(len(foreign.Subnets), "lease"), strings.Join(foreign.Subnets, ", "),
			withoutFlannelHosts)
	case err == nil && report.Failures() > 0:
		err = fmt.Errorf("%s could not be copied", plural.Count(report.Failures(), "record"))
		if c.dryRun {
			err = fmt.Errorf("%s cannot be copied", plural.Count(report.Failures(), "record"))
		}
	case err != nil && len(report.Networks) == 0:
		return err
	}
	// Print what was done even if something failed.
	output := storeCopyOutput{From: fromName, To: toName, Report: report}
	if asJSON {
		return errors.Join(cli.WriteJSON(c.meta.Stdout, output), err)
	}
	writeStoreCopy(c.meta.Stdout, output)
	return err
}

// load reads a configuration. Its overrides from the environment do not count: they would be those of both stores.
func (c *storeCopy) load(name, path string) (config.Config, error) {
	conf, err := config.Load([]string{path}, configOptions(c.meta.Backends))
	if err == nil && conf.Store() == config.StoreMemory {
		err = fmt.Errorf("%s: %s is the configuration of a development agent, which has no store", name, path)
	}
	return conf, err
}

// placeOf tells the stores of two configurations apart.
func placeOf(c config.Config) string {
	if c.Store() == config.StoreEtcd {
		return fmt.Sprintf("%q %s", c.Etcd.Endpoints, c.StoreLocation())
	}
	address := c.Consul.ServerAddress()
	if _, rest, found := strings.Cut(address, "://"); found {
		address = rest
	}
	if port, found := strings.CutPrefix(address, "localhost:"); found {
		address = "127.0.0.1:" + port
	}
	return fmt.Sprintf("%q %s", address, c.StoreLocation())
}

// closeStore ends the connections of a store that has some.
func closeStore(r registry.Registry) {
	if end := r.Abilities().Close; end != nil {
		_ = end() // everything has been written
	}
}

func writeStoreCopy(w io.Writer, o storeCopyOutput) {
	verb := "Copied"
	if o.DryRun {
		verb = "Would copy"
	}
	cli.Printf(w, "%s from %s to %s:", verb, o.From, o.To)
	fmt.Fprintln(w)
	var rows [][]string
	var notes, faults []string
	add := func(result transfer.Result, reason, network, kind, subnet, host string) {
		rows = append(rows, []string{network, kind, cmp.Or(subnet, "-"), cmp.Or(host, "-"), resultText(result)})
		what := kind + " " + cmp.Or(subnet, network)
		if subnet != "" {
			what += " of network " + network
		}
		switch {
		case reason == "":
		case result == transfer.Failed:
			faults = append(faults, what+": "+reason)
		default:
			notes = append(notes, what+": "+reason)
		}
	}
	moves := false // some host has to be started with the new configuration
	for _, n := range o.Networks {
		add(n.Result, n.Reason, n.Name, "network", "", "")
		for _, r := range n.Reservations {
			if n.Result == transfer.Failed {
				r.Reason = "" // it is the network's
			}
			add(r.Result, r.Reason, n.Name, "reservation", r.Subnet, r.Host)
		}
		for _, l := range n.Leases {
			if n.Result == transfer.Failed {
				l.Reason = ""
			}
			moves = moves || l.Result == transfer.Copied || l.Result == transfer.Present
			add(l.Result, l.Reason, n.Name, "lease", l.Subnet, l.Node)
		}
	}
	for _, r := range o.Records {
		switch what := cmp.Or(r.Key, "network "+r.Network) + ": " + r.Reason; r.Result {
		case transfer.Failed:
			faults = append(faults, what)
		default:
			notes = append(notes, what)
		}
	}
	if len(rows) == 0 {
		fmt.Fprintln(w, "No networks.")
	} else {
		cli.WriteTable(w, []cli.Column{{Title: "NETWORK", Cut: true}, {Title: "RECORD"}, {Title: "SUBNET"},
			{Title: "HOST", Cut: true}, {Title: "RESULT"}}, rows)
	}
	if len(notes)+len(faults) > 0 {
		fmt.Fprintln(w)
	}
	for _, text := range notes {
		cli.WriteItem(w, "-", text)
	}
	for _, text := range faults {
		cli.WriteItem(w, "!", text)
	}
	if moves && !o.DryRun {
		fmt.Fprintln(w)
		cli.Printf(w, "Start every host with the configuration of %s within %s (lease.hold). The subnets of hosts "+
			"that have not moved are kept until then, or until %s after you run this again.", o.To, holdText(o.Hold),
			holdText(o.Hold))
	}
}

// resultText returns a result as it is shown in the table.
func resultText(r transfer.Result) string {
	switch r {
	case transfer.ToCopy:
		return "to be copied"
	case transfer.Present:
		return "exists already"
	case transfer.Skipped:
		return "left out"
	case transfer.Failed:
		return "not copied"
	}
	return string(r)
}

// holdText returns a time such as "24h0m0s" as a person would write it.
func holdText(text string) string {
	d, err := time.ParseDuration(text)
	if err != nil {
		return text
	}
	return config.FormatDuration(d)
}
