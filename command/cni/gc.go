package cni

import (
	"context"
	"errors"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// gc releases everything that belongs to attachments that are not valid, for this configuration only,
// because the runtime lists only its attachments. The reference plugins do not implement GC yet
// (version 1.9.0 accepts it and does nothing), so gc does the work itself. It also calls their GC,
// for plugins that will implement it.
func (p *plugin) gc(ctx context.Context, args *skel.CmdArgs) error {
	c, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	if c.Valid == nil { // not even an empty list
		return types.NewError(types.ErrInvalidNetworkConfig,
			"cni.dev/valid-attachments is missing: GC needs the runtime to say which containers there are", "")
	}
	if err := checkDataDir(c.DataDir); err != nil {
		return internalError(err)
	}
	store := records{dataDir: c.DataDir, name: c.Name}
	all, err := store.all()
	if err != nil {
		return internalError(err)
	}
	gc := collector{store, args.Path}
	var errs []error
	for _, file := range findGarbage(all, c.Name, c.Valid) {
		errs = append(errs, gc.collect(ctx, file))
	}
	errs = append(errs, releaseAddresses(c.DataDir, store.filterOrphans(c.Valid)), store.removeTemporary())
	var containers []string
	for _, v := range c.Valid {
		containers = append(containers, v.ContainerID)
	}
	errs = append(errs, removeLocks(c.DataDir, containers...))
	if all, err = store.all(); err == nil {
		err = gc.callGC(ctx, c, all)
	}
	return internalError(errors.Join(append(errs, err)...))
}
