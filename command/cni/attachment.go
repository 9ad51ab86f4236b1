package cni

import (
	"context"
	"errors"
	"slices"

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
//	attached -- the interface went with its namespace; ADD ---> none, then begun
//	attached -- an ADD by another configuration fails --------> attached, and refused for the other
//	refused  -- DEL of the interface by the other, or ADD ----> none
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

// prepare undoes what a crash left unfinished and what was given in a namespace that is gone, so that an ADD can begin.
// It refuses an interface that the container already has, because undoing a failed ADD would remove it.
func (a attachment) prepare(ctx context.Context) error {
	before, err := a.records.findAll(a.key())
	if err != nil {
		return err
	}
	for _, file := range before {
		if file.phase != phaseAttached {
			continue
		}
		if has, err := a.hasInterface(file.Record); err != nil {
			return err
		} else if has {
			return a.refusalError(file)
		}
	}
	for _, file := range before {
		switch file.phase {
		case phaseUnreadable: // whether it gave something is seen in the container
			continue
		case phaseBegun, phaseAttached:
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
			err := releaseAddresses(a.records.dataDir, filterOwned(a.key()))
			if err := errors.Join(err, a.records.remove(file)); err != nil {
				return err
			}
		}
	}
	return nil
}

// hasInterface reports whether the recorded interface still exists.
func (a attachment) hasInterface(r record) (bool, error) {
	netns, err := namespaceOf(r, a.args.Netns)
	if err != nil || netns == "" {
		return false, err
	}
	return hasInterface(netns, r.IfName)
}

// refusalError returns the error for an interface that the container already has.
func (a attachment) refusalError(file recordFile) error {
	if err := a.writeRefusal([]recordFile{file}); err != nil {
		return err
	}
	return errorf(codeAttached,
		"container %s has interface %s in network %s already, by configuration %s in %s: DEL it first",
		a.args.ContainerID, a.args.IfName, file.Record.Network, file.Name, file.Record.Netns)
}

// writeRefusal writes a record that keeps the DEL after a failed ADD from removing the interface of another
// configuration, if one of the records is of such an interface and none is the configuration's own.
func (a attachment) writeRefusal(found []recordFile) error {
	if slices.ContainsFunc(found, func(f recordFile) bool { return f.Name == a.records.name }) {
		return nil
	}
	for _, file := range found {
		if file.phase == phaseAttached {
			r := newRecord(a.records.name, a.key(), a.args.Netns, file.Record.delegation())
			r.Refused = true
			return a.records.write(r)
		}
	}
	return nil
}

// attach records the delegation, runs the plugin, and undoes it on failure.
func (a attachment) attach(ctx context.Context, c networkConf, f facts) (*current.Result, error) {
	d, err := newDelegation(c, f)
	if err == nil {
		err = checkForwarding(d, f, true)
	}
	if err != nil {
		return nil, err
	}
	r := newRecord(a.records.name, a.key(), a.args.Netns, d)
	if err := a.records.write(r); err != nil {
		return nil, internalError(err)
	}
	result, err := a.delegate(ctx, d, f)
	if isExhaustedError(err) && (collector{a.records, a.args.Path}).releaseGone(ctx, f.Network) {
		// bridge leaves its interface in the container when host-local has no address.
		if err = a.undo(ctx, r); err == nil {
			result, err = a.delegate(ctx, d, f)
		}
	}
	if err == nil {
		r.Done = true
		r.Link, r.MAC = hostLink(result, d.Bridge)
		err = internalError(a.records.write(r))
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
		return nil, internalError(err)
	}
	restore, err := keepAcceptRA(ctx, d)
	if err != nil {
		return nil, internalError(err)
	}
	answer, err := invoke.DelegateAdd(ctx, d.Plugin, d.Config, &executor{})
	restored := restore()
	if err != nil {
		return nil, pluginErrorf(d, a.args.Path, err)
	}
	if restored != nil {
		return nil, internalError(restored)
	}
	result, err := current.NewResultFromResult(answer)
	if err != nil {
		return nil, pluginErrorf(d, a.args.Path, err)
	}
	if err := skipDuplicateDetection(d, f); err != nil {
		return nil, internalError(err)
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

// undo removes the recorded interface and its addresses.
func (a attachment) undo(ctx context.Context, r record) error {
	return collector{a.records, a.args.Path}.undo(ctx, r, a.args.Netns)
}

// undoAll undoes the attachment and removes its records.
func (a attachment) undoAll(ctx context.Context) error {
	found, err := a.find()
	for _, file := range found {
		err = errors.Join(a.undo(ctx, file.Record), a.records.remove(file))
	}
	return err
}

// invocation returns the arguments of the other plugin for CHECK of the same container and interface.
func (a attachment) invocation() *invoke.Args {
	return &invoke.Args{
		Command:       "CHECK",
		ContainerID:   a.args.ContainerID,
		NetNS:         a.args.Netns,
		IfName:        a.args.IfName,
		PluginArgsStr: a.args.Args,
		Path:          a.args.Path,
	}
}

// release undoes the attachment and removes its records, also those that writeRefusal wrote for it. Of a configuration
// whose ADD was refused, it removes nothing as long as the interface exists.
func (a attachment) release(ctx context.Context) error {
	all, err := a.records.findAll(a.key())
	if err != nil {
		return err
	}
	found := findRecords(all, a.records.name, a.key())
	refused := slices.DeleteFunc(slices.Clone(all), func(f recordFile) bool { return f.phase != phaseRefused })
	switch {
	case !slices.ContainsFunc(found, func(f recordFile) bool { return f.phase == phaseRefused }):
	case len(refused) < len(all): // the runtime may repeat the DEL
		return a.records.removeUnfinished(a.key())
	default:
		return a.remove(found)
	}
	for _, file := range found {
		switch {
		case file.phase != phaseUnreadable:
			err = a.undo(ctx, file.Record)
		case namespaceExists(a.args.Netns):
			err = removeInterface(a.args.Netns, a.args.IfName)
		}
		if err != nil {
			return err
		}
	}
	if err := releaseAddresses(a.records.dataDir, filterOwned(a.key())); err != nil {
		return err
	}
	return a.remove(append(found, refused...))
}

// remove removes records of the attachment, and what killed calls left of writing them.
func (a attachment) remove(files []recordFile) error {
	errs := []error{a.records.removeUnfinished(a.key())}
	for _, file := range files {
		errs = append(errs, a.records.remove(file))
	}
	return errors.Join(errs...)
}
