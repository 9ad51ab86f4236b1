// Package handover passes what carries the packets of a network on this host from flannel to leno, and back. It does
// not interrupt packets: devices keep their MAC address and their entries, and routes are changed in place. The
// programs then find everything under the marks of their own: leno a device with its alias and routes with its
// protocol, flannel a device with its name.
package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/registry"
)

// Options say what to hand over.
type Options struct {
	Network registry.Network
	Leases  []registry.Lease // of all hosts
	DryRun  bool             // change nothing

	// RenumberIPv6 accepts that this host gets another IPv6 subnet. Reserve then reserves the host's other subnet for it,
	// without which an agent does not take the lease over; it is not called in a dry run.
	RenumberIPv6 bool
	Reserve      func(context.Context, registry.Lease) error
}

// The kinds of what is handed over.
const (
	Device = "device"
	Route  = "route"
)

// A Change is a device or route that was handed over, or removed because the other program makes its own.
type Change struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Detail  string `json:"detail,omitempty"`
	Removed bool   `json:"removed,omitempty"`
}

// A Report says what was handed over, in this order.
type Report struct {
	Network string   `json:"network"`
	DryRun  bool     `json:"dry_run"`
	Changes []Change `json:"changes"`
}

// Adopt marks flannel's devices and routes of the network as leno's. An agent that is started afterwards uses them as
// they are. Routes of other programs stay as they are. Adopt can be repeated.
//
// An error says that flanneld or an agent is running here, or what could not be changed; the report contains what was.
func Adopt(ctx context.Context, o Options) (Report, error) { return handOver(ctx, o, (*host).adopt) }

// Return gives leno's devices and routes of the network to flannel, whether or not flannel has made them. flanneld uses
// them as they are when it is started afterwards. In a network with both families, routes for IPv6 are removed, because
// flannel has a device of its own for them. Return can be repeated. The error is as for Adopt.
func Return(ctx context.Context, o Options) (Report, error) {
	return handOver(ctx, o, (*host).giveBack)
}

func handOver(ctx context.Context, o Options, run func(*host, context.Context) error) (Report, error) {
	h := &host{Options: o, report: Report{Network: o.Network.Name, DryRun: o.DryRun, Changes: []Change{}}}
	if os.Geteuid() != 0 {
		return h.report, errors.New("only root can do this: devices and routes are changed")
	}
	pid, err := flanneld("/proc")
	switch {
	case err != nil:
		return h.report, err
	case pid != 0 && !o.DryRun:
		return h.report, fmt.Errorf("flanneld is running here (pid %d): stop it first", pid)
	}
	if !o.DryRun {
		unlock, err := state.LockHost()
		if err != nil {
			return h.report, fmt.Errorf("%w: stop the agent first", err)
		}
		defer func() { _ = unlock() }()
	}
	return h.report, run(h, ctx)
}

// checkPositions returns an error if flannel gave this host subnets at different positions of their pools, or reserves
// its first subnet if that is accepted. own are the addresses of this host.
func (o Options) checkPositions(ctx context.Context, own []netip.Addr) error {
	for _, l := range o.Leases {
		if len(l.Subnets) < 2 || !slices.ContainsFunc(l.PublicIPs, func(a netip.Addr) bool {
			return slices.Contains(own, a)
		}) {
			continue
		}
		first, firstErr := o.Network.Plan.Slot(l.Subnets[0])
		second, secondErr := o.Network.Plan.Slot(l.Subnets[1])
		if err := errors.Join(firstErr, secondErr); err != nil {
			return err
		}
		switch {
		case first == second:
		case o.RenumberIPv6 && o.DryRun:
		case o.RenumberIPv6:
			return o.Reserve(ctx, l)
		default:
			return fmt.Errorf("this host has %s and %s, which flannel chose independently: leno gives a host the same position "+
				"in both pools, so the containers here would lose their IPv6 subnet, and other hosts their routes to this one for "+
				"some time; -renumber-ipv6 accepts that, and the containers of this host have to be restarted then", l.Subnets[0],
				l.Subnets[1])
		}
	}
	return nil
}

// flanneld returns the process id of flanneld in this network namespace, 0 if it does not run. proc is the directory
// of processes.
func flanneld(proc string) (pid int, err error) {
	own, err := os.Readlink(filepath.Join(proc, "self/ns/net"))
	if err != nil {
		return 0, err
	}
	names, err := filepath.Glob(filepath.Join(proc, "[0-9]*/comm"))
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		comm, err := os.ReadFile(name)
		if err != nil || strings.TrimSpace(string(comm)) != "flanneld" {
			continue // processes end at any time
		}
		dir := filepath.Dir(name)
		switch ns, err := os.Readlink(filepath.Join(dir, "ns/net")); {
		case errors.Is(err, fs.ErrNotExist): // it has ended
		case err != nil:
			return 0, fmt.Errorf("flanneld may be running here: %w", err)
		case ns == own:
			return strconv.Atoi(filepath.Base(dir))
		}
	}
	return 0, nil
}

// vxlanOptions are the options of a vxlan network that its devices must have.
type vxlanOptions struct{ VNI, Port int }

// vxlanOf returns the options of a network's vxlan backend, and false for another backend.
func vxlanOf(n registry.Network) (o vxlanOptions, ok bool, err error) {
	if n.Backend.Type != "vxlan" {
		return o, false, nil
	}
	o = vxlanOptions{VNI: 1, Port: 8472}
	if err := json.Unmarshal(n.Backend.Options(), &o); err != nil {
		return o, false, fmt.Errorf("network %s: %w", n.Name, err)
	}
	return o, true, nil
}
