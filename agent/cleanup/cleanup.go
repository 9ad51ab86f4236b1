// Package cleanup removes everything that leno left on this host, and the records of this host in the store. It finds
// leftovers by looking at the kernel, the files and the store, and does not depend on what an agent remembers.
package cleanup

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/registry"
)

// Options say what Run removes.
type Options struct {
	Network   string // only leftovers of this network; "" for everything
	DryRun    bool   // find, remove nothing
	KeepLease bool   // keep the records in the store, and the node id that finds them again

	// RunDir is the directory of the subnet files that are not configured otherwise; "" for the default.
	RunDir string
	// CNIDir has the records of leno-cni; "" for the default.
	CNIDir string
	// WireGuardDir has the sockets by which wg(8) finds devices in processes; "" for the default.
	WireGuardDir string

	Logger hclog.Logger // nil for no log

	// Open opens the store. It is called at most once, when the store is needed.
	Open func(c config.Config, log hclog.Logger) (Registry, error)

	// SelectUnderlay returns the addresses by which other hosts know this one. nil looks at this host.
	SelectUnderlay func(config.Underlay) (underlay.Choice, error)

	// AgentElsewhere returns a process in whose network namespace another agent runs that has the directory. nil looks at
	// this host.
	AgentElsewhere func(dir string) (pid int, found bool)
}

// A Registry is the store.
type Registry interface {
	Abilities() registry.Abilities
	Network(ctx context.Context, name string) (registry.Network, error)
	Release(ctx context.Context, l registry.Lease) error
}

// Run removes leno's leftovers from this host, and this host's records from the store, including those of an agent that
// was killed and of earlier versions. If a file is broken or missing, Run may find less. It stops packets first, then
// removes rules and files, and releases the lease last, so that no other host gets the subnet while packets still flow
// here. If a device or a route stays, the lease does, too.
//
// An error says that nothing was removed, because an agent runs here or rights are missing. The report contains what
// could not be removed.
func Run(ctx context.Context, c config.Config, o Options) (Report, error) {
	o = o.withDefaults()
	list := newLeftovers(c.DataDir, o)
	if os.Geteuid() != 0 {
		return list.report, errors.New(
			"only root can do this: devices, routes and firewall rules of the whole host are looked at and removed")
	}
	unlock, err := lock(ctx, c, o)
	if err != nil {
		return list.report, err
	}
	h := readHost(c, o)
	records := &recordFinder{host: h, list: list}
	kernel := &kernelFinder{host: h, list: list, poolsInStore: records.pools}
	kernel.findAll(ctx)
	findRules(ctx, o.Network, list)
	files := &fileFinder{host: h, list: list}
	files.findAll()
	if !o.KeepLease {
		records.findAll(ctx)
	}
	files.findIdentity()
	list.removeAll(ctx)
	return list.report, errors.Join(unlock(), kernel.close(), records.close())
}

// withDefaults returns options with the defaults in place of what is not set.
func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	o.CNIDir = cmp.Or(o.CNIDir, config.CNIDir)
	o.WireGuardDir = cmp.Or(o.WireGuardDir, "/var/run/wireguard")
	if o.RunDir == "" {
		o.RunDir = filepath.Dir(config.WatchedNetwork("any").SubnetFile)
	}
	if o.AgentElsewhere == nil {
		o.AgentElsewhere = state.AgentElsewhere
	}
	if o.SelectUnderlay == nil {
		o.SelectUnderlay = func(c config.Underlay) (underlay.Choice, error) {
			return underlay.Select(c, underlay.Need{IPv4: true, IPv6: true})
		}
	}
	return o
}
