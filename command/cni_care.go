package command

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cni"
)

// gc takes back what was given to attachments that are not valid: of this
// configuration, for the runtime speaks of no other. The reference plugins do not
// know GC yet (their 1.9.0 answers and does nothing), so it is done here; it is passed
// on for those that come to know it.
func (p *cniPlugin) gc(ctx context.Context, args *skel.CmdArgs) error {
	c, err := cni.Parse(args.StdinData)
	if err != nil {
		return err
	}
	if c.Valid == nil { // not even an empty list
		return types.NewError(types.ErrInvalidNetworkConfig, "cni.dev/valid-attachments is missing: GC needs the runtime to say which containers there are", "")
	}
	mine, err := cniRecords{dataDir: c.DataDir, name: c.Name}.all()
	if err != nil {
		return internal(err)
	}
	var errs []error
	for _, r := range cni.Garbage(mine, c.Valid) {
		errs = append(errs, p.collect(ctx, args, c.DataDir, r))
	}
	all, err := cniRecords{dataDir: c.DataDir}.all()
	if err != nil {
		return internal(errors.Join(append(errs, err)...))
	}
	errs = append(errs, releaseAddresses(c.DataDir, func(s cni.Reserved) bool {
		return len(cni.Orphans([]cni.Reserved{s}, all, c.Valid)) > 0
	}))
	errs = append(errs, p.passGC(ctx, args, c, all))
	return internal(errors.Join(errs...))
}

// collect undoes one attachment. The container's namespace is left out: its name may
// be another container's by now.
func (p *cniPlugin) collect(ctx context.Context, args *skel.CmdArgs, dataDir string, r cni.Record) error {
	if err := cutOff(r); err != nil {
		return err
	}
	err := p.call(ctx, r.Delegation(), r.Config, &invoke.Args{Command: "DEL", ContainerID: r.ContainerID, IfName: r.IfName, Path: args.Path})
	if err != nil {
		return err
	}
	return cniRecords{dataDir: dataDir, name: r.Name}.remove(r)
}

// reap gives back what containers of the network have that are certainly gone: for
// runtimes that crash and know no GC. It says whether there were any.
func (p *cniPlugin) reap(ctx context.Context, args *skel.CmdArgs, c cni.Conf, network string) bool {
	all, err := cniRecords{dataDir: c.DataDir}.all()
	if err != nil {
		return false
	}
	some := false
	for _, r := range all {
		if r.Network == network && containerGone(r) {
			some = p.collect(ctx, args, c.DataDir, r) == nil || some
		}
	}
	return some
}

// passGC tells the plugins of each network which attachments are valid: of whichever
// configuration, for they have one store a network.
func (p *cniPlugin) passGC(ctx context.Context, args *skel.CmdArgs, c cni.Conf, records []cni.Record) error {
	valid := append([]types.GCAttachment{}, c.Valid...)
	for _, r := range records {
		valid = append(valid, r.Attachment())
	}
	var errs []error
	told := map[[2]string]bool{}
	for _, r := range records {
		key := [2]string{r.Plugin, r.Network}
		if told[key] {
			continue
		}
		told[key] = true
		conf, err := r.Delegation().With(map[string]any{"cniVersion": c.CNIVersion, "cni.dev/valid-attachments": valid})
		if err == nil {
			err = p.call(ctx, r.Delegation(), conf, &invoke.Args{Command: "GC", Path: args.Path})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// status says whether an ADD would succeed now.
func (p *cniPlugin) status(ctx context.Context, args *skel.CmdArgs) error {
	c, err := cni.Parse(args.StdinData)
	if err != nil {
		return err
	}
	f, err := p.facts(ctx, c, false)
	if cni.IsNotReady(err) {
		return cni.NotAvailable(err)
	}
	if err != nil {
		return err
	}
	d, err := cni.Delegate(c, f)
	if err != nil {
		return err
	}
	for _, plugin := range []string{d.Plugin, cni.IPAM} {
		if _, err := invoke.FindInPath(plugin, strings.Split(args.Path, ":")); err != nil {
			return cni.NotAvailable(cni.Explain(d, args.Path, err))
		}
	}
	if c.SubnetFile == "" && p.silent == nil {
		if err := p.limits(ctx, c, f.Network); err != nil {
			return err
		}
	}
	return p.call(ctx, d, d.Config, &invoke.Args{Command: "STATUS", Path: args.Path})
}

// limits says what keeps packets from a network that this host has a subnet in. That
// no agent answers is none: packets pass without it.
func (p *cniPlugin) limits(ctx context.Context, c cni.Conf, network string) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var health api.Health
	err := p.agent(c).call(ctx, func(ctx context.Context, client *api.Client) (err error) {
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
	return cni.Limited(network, strings.Join(reasons, "; "))
}
