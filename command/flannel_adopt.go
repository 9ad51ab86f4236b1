package command

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"

	"github.com/hashicorp/go-hclog"
	"github.com/posener/complete"

	"github.com/lenonet/leno/agent"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/handover"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/registry"
)

func flannelAdoptSpec(m cli.Meta) cli.Spec {
	h := newFlannelHandover(m, handover.Adopt)
	h.canRenumber = true
	return h.spec(cli.Spec{
		Name: "flannel adopt", Synopsis: "Hand flannel's devices and routes on this host to leno",
		Help: `
Lets leno continue with flannel's devices and routes on this host, so that no
packet is lost when the host moves from flannel to leno. Both must use the
same network in the same store: see etcd and kubernetes in the configuration.
Stop flanneld first, then run this, then start the agent.

With vxlan, the device keeps its MAC address, which is in the host's lease,
and the agent renames it when it starts. With vxlan and host-gw, the routes to
other hosts become leno's. With udp, flannel's device ends with flanneld, so
there is nothing to hand over. Flannel's firewall rules stay.

Packets keep flowing. To start flanneld again instead of the agent, run
leno flannel return first.

flannel chooses the IPv4 and the IPv6 subnet of a host independently, and leno
needs the same position in both pools. If this host's differ, the command is
refused, and the agent takes no lease. With -renumber-ipv6, the host keeps its
IPv4 subnet, gets another IPv6 subnet when the agent starts, and its
containers have to be restarted.

  $ leno flannel adopt -dry-run -config-dir=/etc/leno.d
  $ leno flannel adopt -config-dir=/etc/leno.d

Needs root, and the store to read the network. Run it as often as you like.`,
	})
}

// flannelHandover is `leno flannel adopt` or `leno flannel return`.
type flannelHandover struct {
	meta    cli.Meta
	files   configFlags
	format  *cli.FormatFlag
	network string
	dryRun  bool

	canRenumber, renumberIPv6 bool

	open openRegistry
	run  func(context.Context, handover.Options) (handover.Report, error)
}

func newFlannelHandover(
	m cli.Meta, run func(context.Context, handover.Options) (handover.Report, error),
) *flannelHandover {
	return &flannelHandover{meta: m, format: cli.NewFormatFlag(m), open: agent.OpenRegistry, run: run}
}

func (c *flannelHandover) spec(s cli.Spec) cli.Spec {
	s.Flags, s.Predict = c.register, complete.PredictNothing
	s.Run = func(ctx context.Context, _ []string) error { return c.handOver(ctx) }
	return s
}

func (c *flannelHandover) register(fs *flag.FlagSet) {
	c.files.register(fs)
	fs.BoolVar(&c.dryRun, "dry-run", false, "only show what would be changed")
	if c.canRenumber {
		fs.BoolVar(&c.renumberIPv6, "renumber-ipv6", false,
			"let this host get another IPv6 subnet if its subnets differ in their position")
	}
	fs.StringVar(&c.network, "network", "",
		"`name` of the network (default: the one that the configuration shares with flannel)")
	c.format.Register(fs)
}

func (c *flannelHandover) handOver(ctx context.Context) error {
	asJSON, err := c.format.JSON()
	if err != nil {
		return err
	}
	if c.network != "" {
		if err := registry.CheckNetworkName(c.network); err != nil {
			return cli.UsageErrorf("-network: %s", err)
		}
	}
	conf, err := config.Load(c.files.sources, configOptions(c.meta.Backends))
	if err != nil {
		return err
	}
	name := c.networkName(conf)
	if name == "" {
		return fmt.Errorf("the configuration has neither an etcd nor a kubernetes block: " +
			"only with these stores does leno share a network with flannel")
	}
	log := hclog.New(&hclog.LoggerOptions{Name: "leno", Level: hclog.Error, Output: c.meta.Stderr})
	reg, where, err := c.open(conf, log, nil)
	if err != nil {
		return err
	}
	defer closeStore(reg)
	options, err := c.read(ctx, reg, name)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	options.Reserve = func(ctx context.Context, l registry.Lease) error {
		return reserveFor(ctx, reg, conf, options.Network, l)
	}
	report, err := c.run(ctx, options)
	if len(report.Changes) == 0 && err != nil {
		return err
	}
	if asJSON {
		return cmp.Or(cli.WriteJSON(c.meta.Stdout, report), err)
	}
	writeHandover(c.meta.Stdout, report)
	return err
}

func (c *flannelHandover) networkName(conf config.Config) string {
	return cmp.Or(c.network, conf.Etcd.Network, conf.Kubernetes.Network)
}

// read reads the network and its leases from the store.
func (c *flannelHandover) read(ctx context.Context, reg registry.Registry,
	name string) (o handover.Options, err error) {
	n, err := reg.Network(ctx, name)
	if err != nil {
		return o, err
	}
	set, _, err := reg.WatchLeases(ctx, n, 0)
	return handover.Options{Network: n, Leases: set.Leases, DryRun: c.dryRun, RenumberIPv6: c.renumberIPv6}, err
}

// reserveFor reserves the first subnet of a lease for this host, under the name that its agent has.
func reserveFor(
	ctx context.Context, reg registry.Registry, conf config.Config, n registry.Network, l registry.Lease,
) error {
	node, err := state.NodeName(ctx, conf.NodeName, reg.Abilities().NodeName)
	if err != nil {
		return err
	}
	return reg.AddReservation(ctx, n, registry.Reservation{Network: n.Name, Slot: l.Slot, Subnet: l.Subnet(), Node: node},
		true)
}

func writeHandover(w io.Writer, r handover.Report) {
	switch {
	case len(r.Changes) == 0:
		cli.Printf(w, "There is nothing to hand over for network %s.", r.Network)
	case r.DryRun:
		fmt.Fprintln(w, "Would be changed:")
	default:
		fmt.Fprintln(w, "Changed:")
	}
	for _, c := range r.Changes {
		text := c.Kind + " " + c.Name
		switch {
		case c.Removed:
			text += " is removed"
		case c.Detail != "":
			text += ": " + c.Detail
		}
		fmt.Fprintln(w, "  "+cli.EscapeLine(text))
	}
}
