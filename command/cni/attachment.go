package cni

import (
	"context"
	"errors"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// An attachment is one interface of one container, as one call of the plugin sees it. Its record
// tells what has to be undone; it is written before the other plugin runs:
//
//	none     -- ADD writes the record ------------------------> begun
//	begun    -- the other plugin has given the interface -----> attached
//	begun    -- it failed, and what it did is undone ---------> none
//	begun    -- the next ADD undoes what a crash left --------> none
//	attached -- an ADD by another configuration is rejected --> attached, and refused for the other
//	refused  -- ADD or DEL ------------------------------------> none
//	any      -- DEL, or GC, undoes it ------------------------> none
//
// GC, and an ADD that finds no free address, change the records of all attachments: see collector.
type attachment struct {
	args    *skel.CmdArgs
	records records
}

func newAttachment(args *skel.CmdArgs, c networkConf) attachment {
	return attachment{args: args, records: records{dataDir: c.DataDir, name: c.Name}}
}

// key identifies the attachment.
func (a attachment) key() types.GCAttachment {
	return types.GCAttachment{ContainerID: a.args.ContainerID, IfName: a.args.IfName}
}

// find returns the attachment's records, more than one only after configurations were renamed.
func (a attachment) find() ([]recordFile, error) { return a.records.find(a.key()) }

// prepare undoes what a crash left unfinished, so that an ADD can begin. It refuses an interface
// that the container already has, because undoing a failed ADD would remove it.
func (a attachment) prepare(ctx context.Context) error {
	before, err := a.find()
	if err != nil {
		return err
	}
	for _, file := range before {
		switch file.phase {
		case phaseAttached:
			return a.refuse(file)
		case phaseUnreadable: // whether it gave something is seen in the container
			continue
		case phaseBegun:
			err = a.undo(ctx, file.Record)
		}
		if err == nil {
			err = a.records.remove(file)
		}
		if err != nil {
			return err
		}
	}
	if err := checkInterface(a.args); err != nil {
		return err
	}
	for _, file := range before {
		if file.phase == phaseUnreadable {
			err := releaseAddresses(a.records.dataDir, ownedBy(a.key()))
			if err := errors.Join(err, a.records.remove(file)); err != nil {
				return err
			}
		}
	}
	return nil
}

// refuse returns the error for an interface that the container already has. If another
// configuration gave it, a record keeps the DEL that follows from removing it.
func (a attachment) refuse(file recordFile) error {
	if file.Name != a.records.name {
		r := newRecord(a.records.name, a.key(), a.args.Netns, file.Record.delegation())
		r.Refused = true
		if err := a.records.write(r); err != nil {
			return err
		}
	}
	return errorf(codeAttached, "container %s has interface %s in network %s already, by configuration %s: DEL it first",
		a.args.ContainerID, a.args.IfName, file.Record.Network, file.Name)
}

// give records the delegation, runs the plugin, and undoes it on failure.
func (a attachment) give(ctx context.Context, c networkConf, f facts) (*current.Result, error) {
	d, err := newDelegation(c, f)
	if err == nil {
		err = checkForwarding(d, f, true)
	}
	if err != nil {
		return nil, err
	}
	r := newRecord(a.records.name, a.key(), a.args.Netns, d)
	if err := a.records.write(r); err != nil {
		return nil, internal(err)
	}
	result, err := a.delegate(ctx, d, f)
	if isExhaustedError(err) && (collector{a.records, a.args.Path}).reap(ctx, f.Network) {
		// bridge leaves its interface in the container when host-local has no address.
		if err = a.undo(ctx, r); err == nil {
			result, err = a.delegate(ctx, d, f)
		}
	}
	if err == nil {
		r.Done = true
		r.Link, r.MAC = hostLink(result, d.Bridge)
		err = internal(a.records.write(r))
	}
	if err == nil {
		return result, nil
	}
	// Remove everything that a failed ADD made, so that the runtime can try again without a DEL.
	if undone := a.undo(ctx, r); undone == nil {
		err = errors.Join(err, a.records.remove(r.inFile()))
	}
	return nil, err
}

// delegate prepares the bridge and calls the plugin.
func (a attachment) delegate(ctx context.Context, d delegation, f facts) (*current.Result, error) {
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
		return nil, explain(d, a.args.Path, err)
	}
	if restored != nil {
		return nil, internal(restored)
	}
	result, err := current.NewResultFromResult(answer)
	if err != nil {
		return nil, explain(d, a.args.Path, err)
	}
	if err := settleBridge(d, f); err != nil {
		return nil, internal(err)
	}
	return result, nil
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

// undoTime bounds undoing, which also runs when the call's own time is over.
const undoTime = 30 * time.Second

// undo makes the plugin undo what it did, even when the call is being cancelled.
func (a attachment) undo(ctx context.Context, r record) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	return callPlugin(ctx, r.delegation(), r.Config, a.invocation("DEL"))
}

// undoAll undoes the attachment and removes its records.
func (a attachment) undoAll(ctx context.Context) error {
	found, err := a.find()
	for _, file := range found {
		err = errors.Join(a.undo(ctx, file.Record), a.records.remove(file))
	}
	return err
}

// invocation returns the arguments of the other plugin for the same container and interface.
func (a attachment) invocation(command string) *invoke.Args {
	return &invoke.Args{
		Command:       command,
		ContainerID:   a.args.ContainerID,
		NetNS:         a.args.Netns,
		IfName:        a.args.IfName,
		PluginArgsStr: a.args.Args,
		Path:          a.args.Path,
	}
}

// end undoes the attachment and removes its records. inNamespace reports whether the container's
// namespace still exists.
func (a attachment) end(ctx context.Context, inNamespace bool) error {
	found, err := a.find()
	if err != nil {
		return err
	}
	for _, file := range found {
		switch {
		case file.phase == phaseRefused:
			return a.records.remove(file)
		case file.phase == phaseUnreadable && inNamespace:
			err = removeInterface(a.args)
		case file.phase == phaseUnreadable:
		case inNamespace:
			err = a.undo(ctx, file.Record)
		default:
			err = collector{a.records, a.args.Path}.detach(ctx, file.Record)
		}
		if err != nil {
			return err
		}
	}
	if err := releaseAddresses(a.records.dataDir, ownedBy(a.key())); err != nil {
		return err
	}
	for _, file := range found {
		if err := a.records.remove(file); err != nil {
			return err
		}
	}
	return nil
}
