package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// undoTime bounds undoing, which also runs when the call's own time is over.
const undoTime = 30 * time.Second

// add gives a container an interface: it reads the facts, writes a record, then calls the plugin.
func (p *plugin) add(ctx context.Context, args *skel.CmdArgs) error {
	c, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	if err := checkNamespace(args); err != nil {
		return err
	}
	if err := makeDataDir(c.DataDir); err != nil {
		return internal(err)
	}
	f, err := p.waitForFacts(ctx, c, true)
	if err != nil {
		return err
	}
	unlock, err := lockPath(ctx, args.Netns)
	if err != nil {
		return internal(err)
	}
	defer unlock()
	records := records{dataDir: c.DataDir, name: c.Name}
	if err := p.clear(ctx, args, records, f); err != nil {
		return internal(err)
	}
	result, err := p.give(ctx, args, c, f)
	if err != nil {
		return err
	}
	// The host may have got another subnet in the meantime, and the bridge the old gateway.
	if now, err := p.waitForFacts(ctx, c, false); err == nil && !slices.Equal(now.Gateways, f.Gateways) {
		if result, err = p.giveAgain(ctx, args, c, now); err != nil {
			return err
		}
	}
	return types.PrintResult(result, c.CNIVersion)
}

// giveAgain gives a container addresses of the subnet that the host has now.
func (p *plugin) giveAgain(ctx context.Context, args *skel.CmdArgs, c networkConf, f facts) (*current.Result, error) {
	records := records{dataDir: c.DataDir, name: c.Name}
	forget := func() error {
		found, err := records.find(attachment(args))
		for _, k := range found {
			err = errors.Join(p.undo(ctx, args, k.Record), records.remove(k))
		}
		return internal(err)
	}
	if err := forget(); err != nil {
		return nil, err
	}
	result, err := p.give(ctx, args, c, f)
	if err != nil {
		return nil, err
	}
	if now, err := p.waitForFacts(ctx, c, false); err == nil && !slices.Equal(now.Gateways, f.Gateways) {
		if err := forget(); err != nil {
			return nil, err
		}
		return nil, notReady(fmt.Sprintf("network %s: this host got another subnet twice while the container was given an address: try again", f.Network))
	}
	return result, nil
}

// clear prepares an ADD: it undoes what a crash left unfinished. It refuses an interface that the
// container already has, because undoing a failed ADD would remove it.
func (p *plugin) clear(ctx context.Context, args *skel.CmdArgs, records records, f facts) error {
	before, err := records.find(attachment(args))
	if err != nil {
		return err
	}
	for _, k := range before {
		switch {
		case k.Readable && k.gave() && k.Record.Done:
			if k.Name != records.name {
				refused := newRecord(records.name, attachment(args), args.Netns, k.Record.delegation())
				refused.Refused = true
				if err := records.write(refused); err != nil {
					return err
				}
			}
			return types.NewError(codeAttached, fmt.Sprintf("container %s has interface %s in network %s already, by configuration %s: DEL it first", args.ContainerID, args.IfName, k.Record.Network, k.Name), "")
		case k.Readable && k.gave():
			err = p.undo(ctx, args, k.Record)
		case k.gave(): // the container is searched for what it gave
			continue
		}
		if err == nil {
			err = records.remove(k)
		}
		if err != nil {
			return err
		}
	}
	if err := checkInterface(args); err != nil {
		return err
	}
	for _, k := range before {
		if !k.Readable {
			if err := errors.Join(releaseAddresses(records.dataDir, ownedBy(attachment(args))), records.remove(k)); err != nil {
				return err
			}
		}
	}
	return nil
}

// give records the delegation, runs the plugin, and undoes it on failure.
func (p *plugin) give(ctx context.Context, args *skel.CmdArgs, c networkConf, f facts) (*current.Result, error) {
	d, err := newDelegation(c, f)
	if err == nil {
		err = checkForwarding(d, f, true)
	}
	if err != nil {
		return nil, err
	}
	records := records{dataDir: c.DataDir, name: c.Name}
	record := newRecord(c.Name, attachment(args), args.Netns, d)
	if err := records.write(record); err != nil {
		return nil, internal(err)
	}
	result, err := p.attach(ctx, args, d, f)
	if isExhaustedError(err) && p.reap(ctx, args, c, f.Network) {
		// bridge leaves its interface in the container when host-local has no address.
		if err = p.undo(ctx, args, record); err == nil {
			result, err = p.attach(ctx, args, d, f)
		}
	}
	if err == nil {
		record.Done = true
		record.Link, record.MAC = hostLink(result, d.Bridge)
		err = internal(records.write(record))
	}
	if err == nil {
		return result, nil
	}
	// Remove everything that a failed ADD made, so that the runtime can try again without a DEL.
	if undone := p.undo(ctx, args, record); undone == nil {
		err = errors.Join(err, records.remove(record.inFile()))
	}
	return nil, err
}

// attachment returns the attachment that a call is about.
func attachment(args *skel.CmdArgs) types.GCAttachment {
	return types.GCAttachment{ContainerID: args.ContainerID, IfName: args.IfName}
}

// attach prepares the bridge and calls the plugin.
func (p *plugin) attach(ctx context.Context, args *skel.CmdArgs, d delegation, f facts) (*current.Result, error) {
	if err := prepareBridge(d, f); err != nil {
		return nil, internal(err)
	}
	restore, err := keepAcceptRA(ctx, d)
	if err != nil {
		return nil, internal(err)
	}
	answer, err := invoke.DelegateAdd(ctx, d.Plugin, d.Config, &executor{})
	restored := restore()
	if err != nil {
		return nil, explain(d, args.Path, err)
	}
	if restored != nil {
		return nil, internal(restored)
	}
	result, err := current.NewResultFromResult(answer)
	if err != nil {
		return nil, explain(d, args.Path, err)
	}
	if err := settleBridge(d, f); err != nil {
		return nil, internal(err)
	}
	return result, nil
}

// undo makes the plugin undo what it did, even when the call is being cancelled.
func (p *plugin) undo(ctx context.Context, args *skel.CmdArgs, r record) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	call := &invoke.Args{
		Command: "DEL", ContainerID: args.ContainerID, NetNS: args.Netns, IfName: args.IfName, PluginArgsStr: args.Args, Path: args.Path,
	}
	return p.call(ctx, r.delegation(), r.Config, call)
}

// call runs the plugin for a command that returns no result.
func (p *plugin) call(ctx context.Context, d delegation, conf []byte, args *invoke.Args) error {
	path, err := invoke.FindInPath(d.Plugin, strings.Split(args.Path, string(os.PathListSeparator)))
	if err == nil {
		err = invoke.ExecPluginWithoutResult(ctx, path, conf, args, &executor{})
	}
	if err != nil {
		return explain(d, args.Path, err)
	}
	return nil
}

// hostLink returns the host's end of the container's interface: the one that is neither in the
// container nor the bridge.
func hostLink(r *current.Result, bridge string) (name, mac string) {
	for _, i := range r.Interfaces {
		if i.Sandbox == "" && i.Name != bridge {
			return i.Name, i.Mac
		}
	}
	return "", ""
}

// del removes the interface. It succeeds if there is nothing to remove, because the call may be
// repeated and also follows a failed ADD.
func (p *plugin) del(ctx context.Context, args *skel.CmdArgs) error {
	c, err := parseForDel(args.StdinData)
	if err != nil {
		return err
	}
	if err := checkDataDir(c.DataDir); err != nil {
		return internal(err)
	}
	if isHostNamespace(args.Netns) && !overridesNetns(args) {
		args.Netns = "" // the container's namespace is gone; package skel would also reject this one
	}
	there := namespaceExists(args.Netns)
	if there {
		if err := checkNamespace(args); err != nil {
			return err
		}
		unlock, err := lockPath(ctx, args.Netns)
		if err != nil {
			return internal(err)
		}
		defer unlock()
	}
	records := records{dataDir: c.DataDir, name: c.Name}
	found, err := records.find(attachment(args))
	if err != nil {
		return internal(err)
	}
	for _, k := range found {
		if !k.gave() {
			return internal(records.remove(k))
		}
		if err := p.takeBack(ctx, args, k, there); err != nil {
			return internal(err)
		}
	}
	if err := releaseAddresses(c.DataDir, ownedBy(attachment(args))); err != nil {
		return internal(err)
	}
	for _, k := range found {
		if err := records.remove(k); err != nil {
			return internal(err)
		}
	}
	return nil
}

// takeBack undoes one attachment; its namespace may be gone.
func (p *plugin) takeBack(ctx context.Context, args *skel.CmdArgs, k recordFile, there bool) error {
	switch {
	case !k.Readable && there:
		return removeInterface(args)
	case !k.Readable:
		return nil
	case there:
		return p.undo(ctx, args, k.Record)
	}
	return p.detach(ctx, args, k.Record)
}

// parseForDel reads what DEL needs from a configuration. Errors in the rest must not prevent a
// container from being removed.
func parseForDel(data []byte) (networkConf, error) {
	c, err := parseConf(data)
	if err == nil {
		return c, nil
	}
	some := networkConf{DataDir: defaultDataDir}
	var min struct {
		Name    string `json:"name"`
		DataDir string `json:"dataDir"`
	}
	if json.Unmarshal(data, &min) != nil || min.Name == "" {
		return networkConf{}, err
	}
	some.Name = min.Name
	if filepath.IsAbs(min.DataDir) { // ADD accepts no other
		some.DataDir = min.DataDir
	}
	return some, nil
}
