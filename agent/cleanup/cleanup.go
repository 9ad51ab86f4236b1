// Package cleanup removes everything that leno left on this host, and the records of this host in the store. It finds
// leftovers by looking at the kernel, the files and the store, and does not depend on what an agent remembers.
package cleanup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

// The kinds of leftovers.
const (
	Device   = "device"
	Bridge   = "bridge" // of leno-cni
	Route    = "route"
	Rule     = "rule"     // that chooses a routing table
	Firewall = "firewall" // chains and jumps, or a table
	File     = "file"
	Lease    = "lease"
	Session  = "session"
	Service  = "service"
)

// A Leftover is one thing that leno left on this host or in the store.
type Leftover struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Network string `json:"network,omitempty"` // if it is known
	Detail  string `json:"detail,omitempty"`
	// Reason is why it was not removed, or why it is not leno's although it looks like it.
	Reason string `json:"reason,omitempty"`

	remove func(context.Context) error
}

// A Report says what Run found.
type Report struct {
	DataDir string `json:"data_dir"`
	DryRun  bool   `json:"dry_run"`
	// Removed was removed in this order, or would be.
	Removed []Leftover `json:"removed"`
	// Left is leno's and still exists, with the reason.
	Left []Leftover `json:"left"`
	// Foreign looks like leno's and is not, with the reason.
	Foreign []Leftover `json:"foreign"`
}

// Run removes leno's leftovers from this host, and this host's records from the store, including those of an agent that
// was killed and of earlier versions. If a file is broken or missing, Run may find less. It stops packets first, then
// removes rules and files, and releases the lease last, so that no other host gets the subnet while packets still flow
// here. If a device or a route stays, the lease does, too.
//
// An error says that nothing was removed, because an agent runs here or rights are missing. The report contains what
// could not be removed.
func Run(ctx context.Context, c config.Config, o Options) (Report, error) {
	cl := newCleaner(c, o)
	if os.Geteuid() != 0 {
		return cl.report, errors.New(
			"only root can do this: devices, routes and firewall rules of the whole host are looked at and removed")
	}
	unlock, err := cl.lock(ctx)
	if err != nil {
		return cl.report, err
	}
	cl.closers = append(cl.closers, unlock)
	cl.readTraces()
	cl.findKernel(ctx)
	cl.findRules(ctx)
	cl.findFiles()
	if !o.KeepLease {
		cl.findRecords(ctx)
	}
	cl.findIdentity()
	cl.removeAll(ctx)
	var errs []error
	for _, end := range cl.closers {
		errs = append(errs, end())
	}
	return cl.report, errors.Join(errs...)
}

// A cleaner finds leftovers and removes them, once.
type cleaner struct {
	config config.Config
	o      Options
	log    hclog.Logger

	nodeID   string // "" if it is not known
	isOwn    bool   // the data_dir is leno's, because it has a node id
	networks []networkTraces
	registry Registry // nil before it is needed
	found    []Leftover
	closers  []func() error
	report   Report
}

func newCleaner(c config.Config, o Options) *cleaner {
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
	return &cleaner{
		config: c,
		o:      o,
		log:    o.Logger,
		report: Report{
			DataDir: c.DataDir,
			DryRun:  o.DryRun,
			Removed: []Leftover{},
			Left:    []Leftover{},
			Foreign: []Leftover{},
		},
	}
}

// add notes a leftover that remove can remove. If it has gone by itself, remove returns os.ErrNotExist.
func (c *cleaner) add(l Leftover, remove func(context.Context) error) {
	l.remove = remove
	c.found = append(c.found, l)
}

// addLeft reports a leftover that cannot be removed, or of which err says that it cannot be found.
func (c *cleaner) addLeft(l Leftover, err error) {
	l.Reason = err.Error()
	c.report.Left = append(c.report.Left, l)
}

func (c *cleaner) addForeign(l Leftover, format string, args ...any) {
	l.Reason = fmt.Sprintf(format, args...)
	c.report.Foreign = append(c.report.Foreign, l)
}

// removeAll removes what was found, and continues after failures. A dry run only lists it.
func (c *cleaner) removeAll(ctx context.Context) {
	for _, l := range c.found {
		err := whyKept(l, c.report.Left)
		if err == nil && !c.o.DryRun {
			err = l.remove(ctx)
		}
		switch {
		case err == nil && c.o.DryRun:
			c.report.Removed = append(c.report.Removed, l)
		case err == nil:
			c.log.Info("removed", "kind", l.Kind, "name", l.Name)
			c.report.Removed = append(c.report.Removed, l)
		case !errors.Is(err, os.ErrNotExist):
			c.addLeft(l, err)
		}
	}
}

// whyKept returns why a leftover must not be removed: a lease stays as long as a device or a route of its network is
// left, also one of which the network is not known.
func whyKept(l Leftover, left []Leftover) error {
	if l.Kind != Lease {
		return nil
	}
	for _, other := range left {
		carries := other.Kind == Device || other.Kind == Route
		if carries && (other.Network == "" || other.Network == l.Network) {
			return fmt.Errorf("packets may still flow here, so no other host may get the subnet: remove the %s %s first",
				other.Kind, other.Name)
		}
	}
	return nil
}

// isWanted reports whether the leftovers of a network are to be removed.
func (c *cleaner) isWanted(network string) bool { return c.o.Network == "" || c.o.Network == network }

// findIdentity finds what is removed last: the host's identity and the state directory.
func (c *cleaner) findIdentity() {
	if c.o.Network != "" {
		return
	}
	dir := c.config.DataDir
	if !c.o.KeepLease {
		c.addFile(state.NodeIDPath(dir), "", "this host's identity",
			func(data []byte) bool { return c.isOwn || isEmpty(data) })
	}
	c.addFile(state.LockPath(dir), "", "", isEmpty)
	if others := c.addDir(dir); !c.o.KeepLease {
		c.addForeignDir(dir, "", others)
	}
	dev := filepath.Join(c.o.RunDir, filepath.Base(config.DevDataDir))
	if _, err := os.Stat(state.LockPath(dev)); err == nil {
		c.add(Leftover{Kind: File, Name: dev, Detail: "state of a development agent"}, func(context.Context) error {
			unlock, err := state.LockDataDir(dev) // it may run in another network namespace
			if err != nil {
				return err
			}
			return errors.Join(os.RemoveAll(dev), unlock())
		})
	}
	c.addDir(c.o.RunDir)
}
