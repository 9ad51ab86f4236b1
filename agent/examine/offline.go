package examine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// Offline describes a host on which no agent answers.
type Offline struct {
	Address string // where no agent answered
	Err     error  // why

	Config    config.Config // with which an agent would be started
	ConfigErr error         // why Config cannot be used, nil otherwise

	Backends map[string]backend.Type
	// Open opens the store, and returns the name that status shows for it.
	Open func(config.Config, hclog.Logger) (reg Registry, name string, err error)

	Logger hclog.Logger
	Now    func() time.Time
}

// ExamineOffline examines a host by its configuration, its files, the store and the kernel. It changes nothing, and
// sends packets only to the store. The findings name what this process has no right to see.
func ExamineOffline(ctx context.Context, o Offline, options api.DoctorOptions) api.Diagnosis {
	began := o.Now()
	c := o.Config
	facts := doctor.Facts{
		Node:    c.NodeName,
		Offline: &doctor.Offline{Address: o.Address, Err: o.Err, Files: c.Files, Config: o.ConfigErr},
	}
	if o.ConfigErr == nil && len(c.Files) > 0 {
		facts.Offline.Owner, facts.Offline.AddressProblem = findRivals(c)
		e := &offlineExaminer{o: o}
		ctx, cancel := context.WithTimeout(ctx, Timeout)
		e.examine(ctx, &facts, options.Network)
		cancel()
	}
	out := api.Diagnosis{Node: facts.Node, Findings: doctor.Judge(facts)}
	out.Took = o.Now().Sub(began)
	return out
}

// findRivals returns which other agent has this host or the state directory, and why the address of the API cannot be
// used. Both are "" if an agent could start.
func findRivals(c config.Config) (owner, taken string) {
	if o, err := state.HostOwner(); err == nil && o.MayRunAgents() {
		owner = fmt.Sprintf("an agent runs on this host, pid %d", o.PID)
	} else if _, err := os.Stat(state.LockPath(c.DataDir)); err == nil {
		switch free, err := state.LockDataDir(c.DataDir); {
		case errors.Is(err, state.ErrLocked):
			owner = "another agent has the state directory " + c.DataDir
		case err == nil:
			_ = free()
		}
	}
	if strings.HasPrefix(c.HTTP.Address, "unix:") {
		return owner, ""
	}
	l, err := net.Listen("tcp", c.HTTP.Address)
	switch {
	case err == nil:
		_ = l.Close()
	case errors.Is(err, unix.EADDRINUSE), errors.Is(err, unix.EADDRNOTAVAIL):
		taken = err.Error()
	}
	return owner, taken
}

// An offlineExaminer is one examination without an agent.
type offlineExaminer struct {
	o        Offline
	registry Registry // nil if it could not be opened
	storeErr error    // why it cannot be used
}

// examine adds the facts about the network only, or about all networks if only is "".
func (e *offlineExaminer) examine(ctx context.Context, facts *doctor.Facts, only string) {
	c, names := e.o.Config, e.networkNames()
	reg, storeName, err := e.o.Open(c, e.o.Logger)
	if err != nil {
		facts.Store = doctor.Store{Name: c.Store(), Err: err}
	} else {
		e.registry = reg
		can := reg.Abilities()
		if can.Close != nil {
			defer func() { _ = can.Close() }() // nothing was written
		}
		if node, err := state.NodeName(ctx, c.NodeName, can.NodeName); err == nil {
			facts.Node = node
		}
		facts.Store = storeFacts(ctx, reg, storeName, requiredRights(c, facts.Node, names))
	}
	facts.Store.Kind = c.Store()
	facts.Connections = forwarding.ReadConnections()
	e.storeErr = facts.Store.Err

	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return only != "" && n != only })
	var work errgroup.Group
	facts.Networks = make([]doctor.Network, len(names))
	networkPaths := make([]*paths, len(names))
	for i, n := range names {
		work.Go(func() error {
			facts.Networks[i], networkPaths[i] = e.networkFacts(ctx, n)
			return nil
		})
	}
	_ = work.Wait() // none of them fails as a whole
	readRules(ctx, readRulesAsRoot, facts.Networks, networkPaths)
	facts.FlannelChains, _ = foreign.FlannelChains() // without the right to list them, less is known
}

// readRulesAsRoot reads this host's rules if this process may.
func readRulesAsRoot(ctx context.Context, overlay []foreign.OverlayPath, underlay []foreign.UnderlayPath) (
	[]foreign.Obstacle, []foreign.Blockade, error,
) {
	if os.Geteuid() != 0 {
		return nil, nil, errors.New("only root may read them: run this as root, or ask a running agent")
	}
	return foreign.Find(ctx, overlay, underlay)
}

// networkNames returns the networks of the configuration, and those of which the last agent left a state file.
func (e *offlineExaminer) networkNames() []string {
	var out []string
	for _, n := range e.o.Config.Networks {
		out = append(out, n.Name)
	}
	out = append(out, state.Networks(e.o.Config.DataDir)...)
	slices.Sort(out)
	return slices.Compact(out)
}

// networkFacts returns what can be seen of one network.
func (e *offlineExaminer) networkFacts(ctx context.Context, name string) (doctor.Network, *paths) {
	definition, local, err := e.definition(ctx, name)
	before, _ := state.Load(e.o.Config.DataDir, name) // zero on a host that never took part
	n := doctor.Network{
		Name:    name,
		Backend: definition.Backend.Type,
		Pools:   definition.Plan.Prefixes(),
		Subnets: before.Subnets,
		Link:    carriage.Of(definition.Carriage()).Links(name)[0],
	}
	if err != nil {
		n.Checks.Network = api.Check{Name: health.Network, Status: api.Warning, Reason: err.Error()}
		return n, nil
	}
	n.Lease = doctor.Lease{Now: e.o.Now(), TTL: e.o.Config.Lease.TTL}
	choice, err := underlay.Select(e.o.Config.Underlay, underlay.Need{IPv4: true, IPv6: true, Overlay: n.Pools})
	if err != nil {
		n.Checks.Underlay = api.Check{Name: health.Underlay, Status: api.Critical, Reason: err.Error()}
	} else {
		n.Underlay = doctor.Underlay{
			Interface: choice.Interface,
			MTU:       choice.MTU,
			Public:    choice.Addrs,
			Own:       choice.Own,
			Ports:     choice.Ports,
		}
	}
	driver := e.o.Backends[definition.Backend.Type]
	n.AddKernelFacts(driver.Device, driver.UsesTUN(), definition.Plan)
	if driver.Device && !n.Device.Exists && n.Device.TUN == nil && definition.Backend.Type == "vxlan" {
		n.Device.Module = doctor.FindModule("vxlan")
	}
	n.Port, n.SamePort = carriage.Of(definition.Carriage()).Current.Port(e.o.Backends).Number, driver.SamePort
	if len(before.Subnets) > 0 && e.canAsk() {
		call, cancel := context.WithTimeout(ctx, retry.CallTimeout)
		record, _, err := e.registry.WatchLease(call, definition, before.Subnets[0], 0)
		cancel()
		if err == nil && record.NodeID != before.NodeID && before.NodeID != "" {
			err = fmt.Errorf("%s is %s's by now: %w", before.Subnets[0], record.Node, registry.ErrHeld)
		}
		n.Lease.SetRecord(record, err)
	}
	if len(before.Subnets) == 0 || n.Backend == "alloc" {
		return n, nil
	}
	return n, findPaths(definition, local, &n, new(forwarding.Switch).Ensure)
}

// definition returns the network's definition from the store, or else from the configuration.
func (e *offlineExaminer) definition(ctx context.Context, name string) (registry.Network, config.Network, error) {
	local := config.WatchedNetwork(name)
	configured := e.o.Config.Networks
	if i := slices.IndexFunc(configured, func(c config.Network) bool { return c.Name == name }); i >= 0 {
		local = configured[i]
	}
	if e.canAsk() {
		call, cancel := context.WithTimeout(ctx, retry.CallTimeout)
		defer cancel()
		found, err := e.registry.Network(call, name)
		if err == nil || !errors.Is(err, registry.ErrNetworkNotFound) || local.Backend == nil {
			return found, local, err
		}
	}
	if local.Backend != nil {
		n, err := definition.FromBlock(local)
		return n, local, err
	}
	err := fmt.Errorf("its definition is in %s alone, which does not answer", e.o.Config.StoreName())
	return registry.Network{Name: name}, local, err
}

// canAsk reports whether the store answers.
func (e *offlineExaminer) canAsk() bool { return e.registry != nil && e.storeErr == nil }
