package agent

import (
	"context"
	"io"
	"net/netip"
	"path/filepath"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/agent/hello"
	"github.com/lenonet/leno/agent/logging"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/probe"
	"github.com/lenonet/leno/agent/rules"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/trace"
	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/registry"
)

// Options are what New builds an agent from in addition to the configuration. Fields with the zero value take the real
// implementation.
type Options struct {
	Logs    *logging.Log // nil to log nothing
	Version string

	Registry       registry.Registry
	RegistryName   string // the name that status shows
	Backends       map[string]backend.Type
	Firewall       rules.Firewall
	SelectUnderlay func(c config.Underlay, pools []netip.Prefix, peers []netip.Addr) (underlay.Choice, error)
	// WatchedNetwork returns this host's part in a network without a block.
	WatchedNetwork func(name string) config.Network

	// EnsureForwarding reports whether the kernel forwards packets of the family of subnet that arrive by those of the
	// devices that exist, and switches forwarding on if set is true. It may be called concurrently.
	EnsureForwarding func(subnet netip.Prefix, links []string, set bool) (forwarding.State, error)
	// RestoreForwarding switches off what EnsureForwarding has switched on.
	RestoreForwarding func() error

	// Guard, PreferMain, ReplacePools and FindDetours do what the functions of package kernel with these names do.
	Guard        func(ctx context.Context, owner kernel.Owner, wanted bool) error
	PreferMain   func(ctx context.Context, owner kernel.Owner, priority int, stood bool) ([]backend.Repair, error)
	ReplacePools func(ctx context.Context, before kernel.Owner, present []netip.Prefix, guards bool) error
	FindDetours  func(q kernel.PathQuery) ([]kernel.Detour, error)

	// Obstacles finds the rules of other programs that block containers' packets.
	Obstacles rules.Finder

	// Probe sends packets to peers and returns what they answered, as probe.Run does.
	Probe func(ctx context.Context, h probe.Host, peers []api.Peer, r api.ProbeRequest) (api.Probe, error)

	// Listen opens a socket for messages of other hosts' agents, as hello.ListenUDP does.
	Listen hello.Listen

	// InTheWay finds the rules of this host that block containers' packets or the datagrams between hosts, as
	// foreign.Find does.
	InTheWay func(ctx context.Context, overlay []foreign.OverlayPath, underlay []foreign.UnderlayPath) (
		[]foreign.Obstacle, []foreign.Blockade, error)

	// Datagrams reports whether UDP and TCP reach a peer that answers pings, as doctor.Datagrams does.
	Datagrams func(ctx context.Context, own netip.Addr, to netip.Prefix) doctor.Answer

	// Trace follows packets between two addresses through this host, as trace.Run does.
	Trace func(ctx context.Context, h trace.Host, r api.TraceRequest) (api.Trace, error)

	// LookupName returns the full name of a host and its addresses. name is one that the host itself uses: web1, for
	// example, for web1.example.org.
	LookupName func(ctx context.Context, name string) (full string, addrs []netip.Addr, err error)

	// LockHost makes this the only agent of its network namespace until unlock is called.
	LockHost func() (unlock func() error, err error)

	// ReadKernelState returns what the kernel has of a network's datapath: its device link, and its routes in pools.
	ReadKernelState func(ctx context.Context, link string, pools []netip.Prefix) (datapath.KernelState, error)

	// WatchKernel calls changed when the kernel's tables have changed. It blocks until ctx ends or it cannot watch any
	// longer. used reports whether the underlay depends on a device, and reaches whether a prefix contains addresses
	// that packets to other hosts are sent to.
	WatchKernel func(
		ctx context.Context, used func(link string) bool, reaches func(netip.Prefix) bool, changed func(),
	) error
}

// setDefaults fills in the real implementation of what is missing.
func (o *Options) setDefaults(c config.Config) error {
	if o.Logs == nil {
		none, err := logging.New(io.Discard, false, config.Defaults().Log)
		if err != nil {
			return err
		}
		o.Logs = none
	}
	log := o.Logs.Logger()
	if o.Backends == nil {
		o.Backends = Backends()
	}
	if o.Registry == nil {
		var err error
		if o.Registry, o.RegistryName, err = OpenRegistry(c, log, o.Logs.Hide); err != nil {
			return err
		}
	}
	if o.SelectUnderlay == nil {
		o.SelectUnderlay = selectUnderlay
	}
	if o.Firewall == nil {
		o.Firewall = firewall.New(log.Named("firewall"))
	}
	if o.EnsureForwarding == nil {
		s := new(forwarding.Switch)
		if c.Dev && c.DataDir == config.DevDataDir {
			s.Path = filepath.Join(c.DataDir, "forwarding")
		}
		o.EnsureForwarding, o.RestoreForwarding = s.Ensure, s.Restore
	}
	if o.Guard == nil {
		o.Guard = kernel.Guard
	}
	if o.PreferMain == nil {
		o.PreferMain = kernel.PreferMain
	}
	if o.ReplacePools == nil {
		o.ReplacePools = kernel.ReplacePools
	}
	if o.FindDetours == nil {
		o.FindDetours = kernel.FindDetours
	}
	if o.Obstacles == nil {
		o.Obstacles = foreign.NewReader().Obstacles
	}
	if o.WatchedNetwork == nil {
		o.WatchedNetwork = config.WatchedNetwork
	}
	if o.Probe == nil {
		o.Probe = probe.Run
	}
	if o.Listen == nil {
		o.Listen = hello.ListenUDP
	}
	if o.InTheWay == nil {
		o.InTheWay = foreign.Find
	}
	if o.Datagrams == nil {
		o.Datagrams = doctor.ProbeDatagrams
	}
	if o.Trace == nil {
		o.Trace = trace.Run
	}
	if o.LockHost == nil {
		o.LockHost = state.LockHost
	}
	if o.ReadKernelState == nil {
		o.ReadKernelState = readKernelState
	}
	if o.WatchKernel == nil {
		o.WatchKernel = watchKernel
	}
	return nil
}
