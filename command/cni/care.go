package cni

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/lenonet/leno/api"
)

// gc releases everything given to attachments that are not valid, for this configuration only,
// because the runtime lists only its attachments. The reference plugins do not implement GC yet
// (version 1.9.0 accepts it and does nothing), so gc does the work itself. It also passes GC on,
// for plugins that will implement it.
func (p *plugin) gc(ctx context.Context, args *skel.CmdArgs) error {
	c, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	if c.Valid == nil { // not even an empty list
		return types.NewError(types.ErrInvalidNetworkConfig, "cni.dev/valid-attachments is missing: GC needs the runtime to say which containers there are", "")
	}
	if err := checkDataDir(c.DataDir); err != nil {
		return internal(err)
	}
	records := records{dataDir: c.DataDir, name: c.Name}
	all, err := records.all()
	if err != nil {
		return internal(err)
	}
	var errs []error
	for _, k := range garbage(all, c.Name, c.Valid) {
		errs = append(errs, p.collect(ctx, args, records, k))
	}
	errs = append(errs, releaseAddresses(c.DataDir, records.orphans(c.Valid)), records.removeTemporary())
	if all, err = records.all(); err == nil {
		err = p.passGC(ctx, args, c, all)
	}
	return internal(errors.Join(append(errs, err)...))
}

// collect undoes one attachment and removes its record. If the record cannot be read, only its
// addresses are known, and they have no owner from then on.
func (p *plugin) collect(ctx context.Context, args *skel.CmdArgs, records records, k recordFile) error {
	if k.Readable && k.gave() {
		if err := p.detach(ctx, args, k.Record); err != nil {
			return err
		}
	}
	return records.remove(k)
}

// detach undoes an attachment without the container's namespace, which is gone or whose name may
// now belong to another container.
func (p *plugin) detach(ctx context.Context, args *skel.CmdArgs, r record) error {
	if err := removeHostLink(r); err != nil {
		return err
	}
	return p.call(ctx, r.delegation(), r.Config, &invoke.Args{Command: "DEL", ContainerID: r.ContainerID, IfName: r.IfName, Path: args.Path})
}

// reap releases what containers of the network hold that are certainly gone, and addresses without
// a record: for runtimes that crash and do not use GC. It reports whether it released anything.
func (p *plugin) reap(ctx context.Context, args *skel.CmdArgs, c networkConf, network string) bool {
	records := records{dataDir: c.DataDir, name: c.Name}
	all, err := records.all()
	if err != nil {
		return false
	}
	some := false
	for _, k := range all {
		if reapable(k, network) {
			some = p.collect(ctx, args, records, k) == nil || some
		}
	}
	n, _ := releaseFrom(filepath.Join(addressDir(c.DataDir), network), records.orphans(nil)) // ADD reports that none is left
	return some || n > 0
}

// passGC tells the plugins of each network which attachments are valid. It lists those of every
// configuration, because plugins have one store per network. While there is a record whose owner
// is unknown, it tells them nothing.
func (p *plugin) passGC(ctx context.Context, args *skel.CmdArgs, c networkConf, all []recordFile) error {
	valid := append([]types.GCAttachment{}, c.Valid...)
	for _, k := range all {
		a, known := k.attachment()
		if !known {
			return nil
		}
		valid = append(valid, a)
	}
	var errs []error
	told := map[[2]string]bool{}
	for _, k := range all {
		d := k.Record.delegation()
		key := [2]string{d.Plugin, d.Network}
		if !k.Readable || told[key] {
			continue
		}
		told[key] = true
		conf, err := d.with(map[string]any{"cniVersion": c.CNIVersion, "cni.dev/valid-attachments": valid})
		if err == nil {
			err = p.call(ctx, d, conf, &invoke.Args{Command: "GC", Path: args.Path})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// status returns an error if an ADD would fail now.
func (p *plugin) status(ctx context.Context, args *skel.CmdArgs) error {
	c, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	f, err := p.waitForFacts(ctx, c, false)
	if isNotReady(err) {
		return notAvailable(err)
	}
	if err != nil {
		return err
	}
	if err := checkDataDir(c.DataDir); err != nil {
		return notAvailable(err)
	}
	d, err := newDelegation(c, f)
	if err != nil {
		return err
	}
	if err := checkForwarding(d, f, false); err != nil {
		return notAvailable(err)
	}
	if full, err := isExhausted(c, f); err != nil {
		return notAvailable(err)
	} else if full {
		return notAvailable(exhaustedError(d))
	}
	for _, plugin := range []string{d.Plugin, ipamPlugin} {
		if _, err := invoke.FindInPath(plugin, strings.Split(args.Path, ":")); err != nil {
			return notAvailable(explain(d, args.Path, err))
		}
	}
	if c.SubnetFile == "" && p.agentError == nil {
		if err := p.limits(ctx, c, f.Network); err != nil {
			return err
		}
	}
	return p.call(ctx, d, d.Config, &invoke.Args{Command: "STATUS", Path: args.Path})
}

// isExhausted reports whether no address is left, not even one that an ADD would reap.
func isExhausted(c networkConf, f facts) (bool, error) {
	there, err := reservedIn(filepath.Join(addressDir(c.DataDir), f.Network))
	if err != nil {
		return false, err
	}
	taken := slices.Collect(maps.Values(there))
	if !isFull(f, taken) {
		return false, nil
	}
	all, err := records{dataDir: c.DataDir, name: c.Name}.all()
	if err != nil || len(orphans(taken, all, nil)) > 0 {
		return false, err
	}
	return !slices.ContainsFunc(all, func(k recordFile) bool { return reapable(k, f.Network) }), nil
}

// reapable reports whether a record's container is in the network and certainly gone.
func reapable(k recordFile, network string) bool {
	return k.Readable && k.gave() && k.Record.Network == network && containerGone(k.Record)
}

// limits returns an error if something keeps packets from a network in which this host has a
// subnet. An agent that does not respond is no such reason: packets pass without it.
func (p *plugin) limits(ctx context.Context, c networkConf, network string) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var health api.Health
	err := p.agent(c).Call(ctx, func(ctx context.Context, client *api.Client) (err error) {
		health, err = client.Health(ctx, network)
		return err
	})
	if err != nil {
		return nil
	}
	var reasons []string
	for _, n := range health.Networks {
		if n.Network != network || n.Status != api.Critical {
			continue
		}
		for _, check := range n.Checks {
			if check.Status == api.Critical {
				reasons = append(reasons, fmt.Sprintf("%s: %s", check.Name, check.Reason))
			}
		}
	}
	if len(reasons) == 0 {
		return nil
	}
	return limited(network, strings.Join(reasons, "; "))
}
