package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// CleanupOptions say what Cleanup takes away. Zero fields take the real thing.
type CleanupOptions struct {
	Network   string // only what is of this network; "" for everything
	DryRun    bool   // find, remove nothing
	KeepLease bool   // leave what is in the store, and the node id that finds it again

	Logger         hclog.Logger
	Registry       registry.Registry
	SelectUnderlay func(c config.Underlay, pools []netip.Prefix, peers []netip.Addr) (underlay.Choice, error)
}

// What a Remnant can be.
const (
	RemnantDevice   = "device"
	RemnantRoute    = "route"
	RemnantFirewall = "firewall" // chains and jumps, or a table
	RemnantFile     = "file"
	RemnantLease    = "lease"
	RemnantSession  = "session"
	RemnantService  = "service"
)

// Remnant is one thing that leno left on this host or in the store.
type Remnant struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Network string `json:"network,omitempty"` // where it is known
	Detail  string `json:"detail,omitempty"`
	// Reason is why it was not removed, or why it is not leno's though it looks
	// like it.
	Reason string `json:"reason,omitempty"`

	remove func(context.Context) error
}

// CleanupReport is what Cleanup found.
type CleanupReport struct {
	DataDir string `json:"data_dir"`
	DryRun  bool   `json:"dry_run"`
	// Removed is gone, or would be. The order is that of removing.
	Removed []Remnant `json:"removed"`
	// Left is ours and still there, with the reason.
	Left []Remnant `json:"left"`
	// Foreign looks like ours and is not, with the reason.
	Foreign []Remnant `json:"foreign"`
}

// Cleanup takes everything of leno's off this host, and what is this host's out of
// the store: also what an earlier version or an agent that was killed left. It
// finds it by the kernel and the files; a file that is broken or missing only
// makes it know less. Packets stop first, then rules and files go, then the lease,
// so that nobody gets the subnet while packets still flow here.
//
// The error says that nothing was touched: an agent runs here, or the rights are
// missing. What could not be removed is in the report.
func Cleanup(ctx context.Context, c config.Config, o CleanupOptions) (CleanupReport, error) {
	s := newSweep(c, o)
	if os.Geteuid() != 0 {
		return s.report, errors.New("only root can do this: devices, routes and firewall rules of the whole host are looked at and removed")
	}
	unlock, err := s.alone(ctx)
	if err != nil {
		return s.report, err
	}
	s.closers = append(s.closers, unlock)
	s.knowFiles()
	s.findKernel(ctx)
	s.findRules(ctx)
	s.findFiles()
	if !o.KeepLease {
		s.findStored(ctx)
	}
	s.findIdentity()
	if o.DryRun {
		s.report.Removed = append(s.report.Removed, s.found...)
	} else {
		s.removeAll(ctx)
	}
	var errs []error
	for _, end := range s.closers {
		errs = append(errs, end())
	}
	return s.report, errors.Join(errs...)
}

// sweep is one Cleanup.
type sweep struct {
	config config.Config
	o      CleanupOptions
	log    hclog.Logger

	nodeID   string // "" when it is not known
	proven   bool   // the data_dir has a node id: it is leno's
	networks []trace
	found    []Remnant
	closers  []func() error
	report   CleanupReport
}

func newSweep(c config.Config, o CleanupOptions) *sweep {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.SelectUnderlay == nil {
		o.SelectUnderlay = selectUnderlay
	}
	return &sweep{config: c, o: o, log: o.Logger, report: CleanupReport{DataDir: c.DataDir, DryRun: o.DryRun,
		Removed: []Remnant{}, Left: []Remnant{}, Foreign: []Remnant{}}}
}

// add is something of ours that remove takes away. Its own error says all; one of
// os.ErrNotExist that it was gone already.
func (s *sweep) add(r Remnant, remove func(context.Context) error) {
	r.remove = remove
	s.found = append(s.found, r)
}

// left is something of ours that cannot be removed, or looked for.
func (s *sweep) left(r Remnant, err error) {
	r.Reason = err.Error()
	s.report.Left = append(s.report.Left, r)
}

func (s *sweep) foreign(r Remnant, format string, args ...any) {
	r.Reason = fmt.Sprintf(format, args...)
	s.report.Foreign = append(s.report.Foreign, r)
}

// removeAll goes on past failures.
func (s *sweep) removeAll(ctx context.Context) {
	for _, r := range s.found {
		err := r.remove(ctx)
		switch {
		case err == nil:
			s.log.Info("removed", "kind", r.Kind, "name", r.Name)
			s.report.Removed = append(s.report.Removed, r)
		case !errors.Is(err, os.ErrNotExist):
			s.left(r, err)
		}
	}
}

// wants says whether the network is one to clean up.
func (s *sweep) wants(network string) bool { return s.o.Network == "" || s.o.Network == network }

// alone makes sure that no agent works on what is to go, and keeps one from
// starting. To look, nobody needs to be kept away. One network may go while an
// agent runs that takes no part in it.
func (s *sweep) alone(ctx context.Context) (unlock func() error, err error) {
	unlock = func() error { return nil }
	if s.o.DryRun {
		return unlock, nil
	}
	busy := false
	if _, err := os.Stat(state.LockPath(s.config.DataDir)); err == nil {
		free, err := state.LockDataDir(s.config.DataDir)
		switch {
		case errors.Is(err, state.ErrLocked):
			busy = true
		case err != nil:
			return nil, err
		default:
			unlock = free
		}
	}
	self, answers := s.runningAgent(ctx)
	if s.o.Network == "" && !answers {
		host, err := state.LockHost()
		if err != nil {
			return nil, errors.Join(err, unlock())
		}
		data := unlock
		unlock = func() error { return errors.Join(data(), host()) }
	}
	switch {
	case answers && slices.Contains(self.Networks, s.o.Network):
		err = fmt.Errorf("the agent that runs here (pid %d) takes part in network %s: `leno lease release %s` makes it leave, or stop the agent first",
			self.PID, s.o.Network, s.o.Network)
	case answers && s.o.Network == "":
		err = fmt.Errorf("an agent runs here (pid %d, data_dir %s): stop it first", self.PID, self.DataDir)
	case !answers && busy:
		err = fmt.Errorf("an agent works on %s: stop it first", s.config.DataDir)
	default:
		return unlock, nil
	}
	return nil, errors.Join(err, unlock())
}

// runningAgent asks whoever listens where the agent does, which may be one with
// another data_dir: the kernel's tables are the same.
func (s *sweep) runningAgent(ctx context.Context) (api.Self, bool) {
	if s.config.HTTP.TLS.CertFile != "" {
		return api.Self{}, false // the lock has to do
	}
	client, err := api.New(api.Config{Address: s.config.HTTP.Address})
	if err != nil {
		return api.Self{}, false
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	self, err := client.Self(ctx)
	return self, err == nil && self.DataDir != ""
}

// findIdentity is what goes last: who this host is, and the directory.
func (s *sweep) findIdentity() {
	if s.o.Network != "" {
		return
	}
	dir := s.config.DataDir
	if !s.o.KeepLease {
		s.addFile(state.NodeIDPath(dir), "", "this host's identity", func(data []byte) bool { return s.proven || isEmpty(data) })
	}
	s.addFile(state.LockPath(dir), "", "", isEmpty)
	if others := s.addDir(dir); !s.o.KeepLease {
		s.keeps(dir, "", others)
	}
	s.addDir(runDir())
}
