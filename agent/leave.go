package agent

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/agent/state"
)

// leaveUnwanted makes this host leave the networks in which an earlier process took part and which the configuration no
// longer wants. Without this host's name, no lease can be given up. A development agent leaves none: they belong to the
// agent whose directory it shares. They also stay if the configuration looks cut off: see unmanaged.
func (ns *networks) leaveUnwanted(ctx context.Context) {
	now := ns.settings.get()
	if !ns.env.Identity.IsSettled() || now.Dev || len(ns.settings.unmanaged(now)) > 0 {
		return
	}
	ns.rememberFiles(now)
	for _, name := range state.Networks(now.DataDir) {
		c, depart, departed := ns.beginDeparture(name)
		if depart && ctx.Err() == nil {
			ns.keepFormer(name)
			ns.leaveSaved(ctx, c, name, "network is not configured any more, leaving it")
		}
		departed()
	}
}

// beginDeparture reports whether a network is to be left under the configuration in force, which it returns. If so, a
// reload does not start the network until departed is called.
func (ns *networks) beginDeparture(name string) (c config.Config, depart bool, departed func()) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	c = ns.settings.get()
	_, wanted := ns.settings.wantedBy(c, name)
	if _, runs := ns.running[name]; runs || wanted {
		return c, false, func() {}
	}
	done := make(chan struct{})
	ns.departures[name] = done
	return c, true, func() {
		ns.mu.Lock()
		defer ns.mu.Unlock()
		delete(ns.departures, name)
		close(done)
	}
}

// awaitDeparture blocks while a network is being left. The error is ctx's.
func (ns *networks) awaitDeparture(ctx context.Context, name string) error {
	ns.mu.Lock()
	done := ns.departures[name]
	ns.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leaveSaved removes what an earlier process left of a network. It does nothing if the state file is broken, because
// the file then says too little.
func (ns *networks) leaveSaved(ctx context.Context, c config.Config, name, why string) {
	before, err := state.Load(c.DataDir, name)
	if err != nil {
		return
	}
	ns.log.Warn(why, "network", name)
	local := ns.settings.watchedNetwork(name)
	local.SubnetFile = cmp.Or(before.SubnetFile, local.SubnetFile)
	network.LeaveSaved(ctx, ns.env, c, local)
}

// keepFormer stores the subnet that this host has in a network that its configuration no longer wants. If the network
// comes back, the host asks for the same subnet.
func (ns *networks) keepFormer(network string) {
	subnet := netip.Prefix{}
	if run, ok := ns.get(network); ok {
		if lease, held := run.Lease(); held {
			subnet = lease.Subnet()
		}
	}
	if !subnet.IsValid() {
		before, err := state.Load(ns.settings.get().DataDir, network)
		if err == nil && len(before.Subnets) > 0 && before.Subnets[0] != before.Revoked && before.Refused == nil {
			subnet = before.Subnets[0]
		}
	}
	if !subnet.IsValid() {
		return
	}
	if err := ns.env.Former.Put(network, subnet); err != nil {
		ns.log.Warn("subnet of the network being left could not be saved",
			"network", network, "subnet", subnet, "error", err)
	}
}

// rememberFiles writes the list of files with options for emptied.
func (ns *networks) rememberFiles(c config.Config) {
	var files []string
	for _, file := range c.Files {
		if !slices.Contains(c.Empty, file) {
			files = append(files, absolute(file))
		}
	}
	if err := state.SaveConfigFiles(c.DataDir, files); err != nil {
		ns.log.Warn("list of configuration files could not be saved",
			"path", state.ConfigFilesPath(c.DataDir), "error", err)
	}
}
