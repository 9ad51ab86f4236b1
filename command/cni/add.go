package cni

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// add gives a container an interface. If it fails, the DEL that follows leaves other configurations' interfaces alone.
func (p *plugin) add(ctx context.Context, args *skel.CmdArgs) error {
	err := p.attach(ctx, args)
	if err != nil {
		markRefused(ctx, args)
	}
	return err
}

// markRefused writes the record that DEL needs to leave an interface of another configuration alone. Errors need no
// report: ADD has failed with its own.
func markRefused(ctx context.Context, args *skel.CmdArgs) {
	c, err := parseForDel(args.StdinData)
	if err != nil || checkDataDir(c.DataDir) != nil {
		return
	}
	if _, err := os.Stat(c.DataDir); err != nil { // nothing was ever attached
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	unlock, err := lockContainer(ctx, c.DataDir, args.ContainerID, true)
	if err != nil {
		return
	}
	defer unlock()
	a := newAttachment(args, c)
	if found, err := a.records.findAll(a.key()); err == nil {
		_ = a.writeRefusal(found)
	}
}

// attach attaches a container: it reads the facts, writes a record, then calls the plugin.
func (p *plugin) attach(ctx context.Context, args *skel.CmdArgs) error {
	c, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	if err := checkNamespace(args); err != nil {
		return err
	}
	if err := makeDataDir(c.DataDir); err != nil {
		return internalError(err)
	}
	f, err := p.waitForFacts(ctx, c, true)
	if err != nil {
		return err
	}
	unlock, err := lockContainer(ctx, c.DataDir, args.ContainerID, false)
	if err != nil {
		return internalError(err)
	}
	defer unlock()
	a := newAttachment(args, c)
	if err := a.prepare(ctx); err != nil {
		return internalError(err)
	}
	result, err := a.attach(ctx, c, f)
	if err != nil {
		return err
	}
	// The host may have got another subnet while the other plugin ran, and the bridge the old
	// gateway.
	if now, err := p.waitForFacts(ctx, c, false); err == nil && !slices.Equal(now.Gateways, f.Gateways) {
		if result, err = p.reattach(ctx, a, c, now); err != nil {
			return err
		}
	}
	return types.PrintResult(result, c.CNIVersion)
}

// reattach attaches a container again, with addresses of the subnet that the host has now.
func (p *plugin) reattach(ctx context.Context, a attachment, c networkConf, f facts) (*current.Result, error) {
	if err := a.undoAll(ctx); err != nil {
		return nil, internalError(err)
	}
	result, err := a.attach(ctx, c, f)
	if err != nil {
		return nil, err
	}
	if now, err := p.waitForFacts(ctx, c, false); err == nil && !slices.Equal(now.Gateways, f.Gateways) {
		if err := a.undoAll(ctx); err != nil {
			return nil, internalError(err)
		}
		return nil, notReadyError(fmt.Sprintf("network %s: this host's subnet changed twice "+
			"while the container was attached: try again", f.Network))
	}
	return result, nil
}
