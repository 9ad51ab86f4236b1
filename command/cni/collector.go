package cni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
)

// A collector releases what is left of attachments whose containers are gone.
type collector struct {
	records records
	path    string // CNI_PATH
}

// collect undoes one attachment and removes its record. If the record cannot be read, only its
// addresses are known, and they have no owner from then on.
func (c collector) collect(ctx context.Context, file recordFile) error {
	if file.phase == phaseBegun || file.phase == phaseAttached {
		if err := c.undo(ctx, file.Record, ""); err != nil {
			return err
		}
	}
	return c.records.remove(file)
}

// undoTime bounds undoing, which also runs when the call's own time is over.
const undoTime = 30 * time.Second

var errUndoTime = fmt.Errorf("it did not end within %s", undoTime)

// undo removes an interface and then its addresses, even when the call is being cancelled. netns is the namespace that
// the runtime names, "" for none: if the interface is in another one, it is removed there. The plugin gets no CNI_ARGS:
// it may reject them, and all that it needs is in the record. A plugin that refused an ADD may refuse each DEL with its
// configuration, so undo then works without it, but not after an ADD that succeeded: there may be rules to remove.
func (c collector) undo(ctx context.Context, r record, netns string) error {
	netns, err := namespaceOf(r, netns)
	if err != nil {
		return err
	}
	inside := false
	if netns != "" {
		if inside, err = hasInterface(netns, r.IfName); err != nil {
			return err
		}
	}
	if !inside { // the plugin would not find it
		if err := removeHostLink(r); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), undoTime, errUndoTime)
	defer cancel()
	args := &invoke.Args{Command: "DEL", ContainerID: r.ContainerID, NetNS: netns, IfName: r.IfName, Path: c.path}
	err = callPlugin(ctx, r.delegation(), r.Config, args)
	if err == nil || r.phase() != phaseBegun {
		return err
	}
	fmt.Fprintf(os.Stderr, "leno-cni: container %s: undoing an unfinished ADD without its plugin: %s\n",
		r.ContainerID, err)
	if inside {
		if err := removeInterface(netns, r.IfName); err != nil {
			return err
		}
	}
	return releaseAddresses(c.records.dataDir, filterOwned(r.key()))
}

// releaseGone releases what is left of the network's containers that no longer exist, and addresses without
// a record: for runtimes that crash and do not use GC. It reports whether it released anything.
func (c collector) releaseGone(ctx context.Context, network string) bool {
	all, err := c.records.all()
	if err != nil {
		return false
	}
	released := false
	var kept []string
	for _, file := range all {
		if isReapable(file, network) && c.collect(ctx, file) == nil {
			released = true
		} else {
			kept = append(kept, file.Record.ContainerID)
		}
	}
	if released {
		_ = removeLocks(c.records.dataDir, kept...) // GC tries again
	}
	// An error needs no report: ADD reports that no address is left.
	n, _ := releaseFrom(filepath.Join(addressDir(c.records.dataDir), network), c.records.filterOrphans(nil))
	return released || n > 0
}

// isReapable reports whether a record's container is in the network and certainly gone.
func isReapable(file recordFile, network string) bool {
	return (file.phase == phaseBegun || file.phase == phaseAttached) &&
		file.Record.Network == network && isContainerGone(file.Record)
}

// callGC calls GC of the plugins of each network with the valid attachments. It lists those of every
// configuration, because plugins have one store per network. While there is a record whose owner
// is unknown, it tells them nothing.
func (c collector) callGC(ctx context.Context, conf networkConf, all []recordFile) error {
	valid := append([]types.GCAttachment{}, conf.Valid...)
	for _, file := range all {
		key, known := file.key()
		if !known {
			return nil
		}
		valid = append(valid, key)
	}
	var errs []error
	called := map[[2]string]bool{}
	for _, file := range all {
		d := file.Record.delegation()
		key := [2]string{d.Plugin, d.Network}
		if file.phase == phaseUnreadable || called[key] {
			continue
		}
		called[key] = true
		if checkVersion(ctx, d.Plugin, c.path, conf.CNIVersion) != nil {
			continue // it has no GC
		}
		config, err := d.withValues(map[string]any{"cniVersion": conf.CNIVersion, "cni.dev/valid-attachments": valid})
		if err == nil {
			err = callPlugin(ctx, d, config, &invoke.Args{Command: "GC", Path: c.path})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
