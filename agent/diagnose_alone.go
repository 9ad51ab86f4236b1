package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// Alone is a host that is to be examined without its agent.
type Alone struct {
	Address string // where none answers
	Err     error  // why

	Config    config.Config // as the agent would be started with
	ConfigErr error         // why it cannot be

	Logger hclog.Logger
	Now    func() time.Time
}

// DiagnoseAlone examines a host on which no agent answers, by its configuration, its
// files, the store and the kernel. It changes nothing, sends packets to the store
// alone, and what this process may not see it says.
func DiagnoseAlone(ctx context.Context, o Alone, options api.DoctorOptions) api.Diagnosis {
	began := o.Now()
	c := o.Config
	facts := doctor.Facts{Node: c.NodeName,
		Alone: &doctor.Alone{Address: o.Address, Err: o.Err, Files: c.Files, Config: o.ConfigErr}}
	if o.ConfigErr == nil && len(c.Files) > 0 {
		facts.Alone.Owner, facts.Alone.Taken = occupied(c)
		s := &surgery{o: o, log: o.Logger}
		ctx, cancel := context.WithTimeout(ctx, doctorTime)
		s.examine(ctx, &facts, options.Network)
		cancel()
	}
	out := api.Diagnosis{Node: facts.Node, Findings: doctor.Judge(facts)}
	out.Took = o.Now().Sub(began)
	return out
}

// occupied says who has what an agent needs for itself: this host or its state
// directory, and the address of its API.
func occupied(c config.Config) (owner, taken string) {
	if cred, err := state.HostOwner(); err == nil && state.MayRunAgents(cred.Uid, os.Geteuid()) {
		owner = fmt.Sprintf("an agent runs on this host, pid %d", cred.Pid)
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

// surgery is one examination without an agent.
type surgery struct {
	o        Alone
	log      hclog.Logger
	registry registry.Registry
	node     string
}

func (s *surgery) examine(ctx context.Context, facts *doctor.Facts, only string) {
	c := s.o.Config
	var name string
	var err error
	if s.registry, name, err = OpenRegistry(c, s.log, nil); err != nil {
		facts.Store = doctor.Store{Name: "consul", Err: err}
	} else {
		self := api.Self{NodeName: c.NodeName}
		if host, err := state.NodeName(ctx, c.NodeName, s.registry); err == nil {
			self.NodeName = host
		}
		facts.Node, s.node = self.NodeName, self.NodeName
		self.Networks = s.networks()
		facts.Store = storeFacts(ctx, s.registry, name, wish(self, c))
	}
	var work errgroup.Group
	names := slices.DeleteFunc(s.networks(), func(n string) bool { return only != "" && n != only })
	facts.Networks = make([]doctor.Network, len(names))
	passages := make([]*passage, len(names))
	for i, n := range names {
		work.Go(func() error {
			facts.Networks[i], passages[i] = s.network(ctx, n, facts.Store.Err)
			return nil
		})
	}
	_ = work.Wait() // nothing in it fails as a whole
	rulesFacts(ctx, rulesAlone, facts.Networks, passages)
}

// rulesAlone reads this host's rules where this process may.
func rulesAlone(ctx context.Context, crossings []firewall.Crossing, lanes []firewall.Lane) ([]firewall.Obstacle, []firewall.Blockade, error) {
	if os.Geteuid() != 0 {
		return nil, nil, errors.New("only root may read them: run this as root, or ask a running agent")
	}
	return firewall.InTheWay(ctx, crossings, lanes)
}

// networks are those of the configuration, and those that an agent left.
func (s *surgery) networks() []string {
	var out []string
	for _, n := range s.o.Config.Networks {
		out = append(out, n.Name)
	}
	out = append(out, state.Networks(s.o.Config.DataDir)...)
	slices.Sort(out)
	return slices.Compact(out)
}

// network is what can be seen of one.
func (s *surgery) network(ctx context.Context, name string, away error) (doctor.Network, *passage) {
	definition, local, err := s.definition(ctx, name, away)
	before, _ := state.Load(s.o.Config.DataDir, name) // of a host that never had it nothing
	kind := Backends()[definition.Backend.Type]
	n := doctor.Network{Name: name, Backend: definition.Backend.Type, Pools: definition.Plan.Prefixes(), Subnets: before.Subnets, Link: backend.LinkName(name)}
	if err != nil {
		n.Checks.Network = api.Check{Name: health.Network, Status: api.Warning, Reason: err.Error()}
		return n, nil
	}
	n.Lease = doctor.Lease{Now: s.o.Now(), TTL: s.o.Config.Lease.TTL}
	choice, err := selectUnderlay(s.o.Config.Underlay, n.Pools, nil)
	if err != nil {
		n.Checks.Underlay = api.Check{Name: health.Underlay, Status: api.Critical, Reason: err.Error()}
	} else {
		n.Underlay = doctor.Underlay{Interface: choice.Interface, MTU: choice.MTU, Public: choice.Addrs, Own: choice.Own}
	}
	n.See(kind.Device, definition.Backend.Type == "udp", definition.Plan)
	if kind.Device && !n.Device.Exists && n.Device.TUN == nil && definition.Backend.Type == "vxlan" {
		n.Device.Module = doctor.LookModule("vxlan")
	}
	n.Port, n.Same = carrierPort(definition.Backend)
	if len(before.Subnets) > 0 && away == nil && s.registry != nil {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		record, _, err := s.registry.WatchLease(call, definition, before.Subnets[0], 0)
		cancel()
		if err == nil && record.NodeID != before.NodeID && before.NodeID != "" {
			err = fmt.Errorf("%s is %s's by now: %w", before.Subnets[0], record.Node, registry.ErrHeld)
		}
		n.Lease.Recorded(record, err)
	}
	if len(before.Subnets) == 0 || n.Backend == "alloc" {
		return n, nil
	}
	return n, passageOf(definition, firewallNetwork(local, n.Pools, n.Subnets), &n, new(forwarding.Switch).Ensure)
}

// definition is the network's, of the store or, where that is away, of the
// configuration or of what the last agent wrote down.
func (s *surgery) definition(ctx context.Context, name string, away error) (registry.Network, config.Network, error) {
	n := registry.Network{Name: name}
	local := config.WatchedNetwork(name)
	if i := slices.IndexFunc(s.o.Config.Networks, func(c config.Network) bool { return c.Name == name }); i >= 0 {
		local = s.o.Config.Networks[i]
	}
	if away == nil && s.registry != nil {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		found, err := s.registry.Network(call, name)
		if err == nil || !errors.Is(err, registry.ErrNetworkNotFound) || local.Backend == nil {
			return found, local, err
		}
	}
	if local.Backend != nil {
		for _, p := range local.Pools {
			n.Plan = append(n.Plan, registry.Pool(p))
		}
		var err, bad error
		n.Plan, err = n.Plan.Normalize()
		n.Backend, bad = registry.NewBackend(local.Backend.Type, local.Backend.Options)
		return n, local, errors.Join(err, bad)
	}
	return n, local, errors.New("its definition is in Consul alone, which does not answer")
}

// overlaySubnet is the peer's subnet that the address is in.
func overlaySubnet(p doctor.Peer, a netip.Addr) netip.Prefix {
	for _, s := range p.Subnets {
		if s.Contains(a) {
			return s
		}
	}
	return netip.PrefixFrom(a, a.BitLen())
}
