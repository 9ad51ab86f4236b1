package cni

import (
	"context"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
)

// del removes the interface. It succeeds if there is nothing to remove, because the call may be
// repeated and also follows a failed ADD.
func (p *plugin) del(ctx context.Context, args *skel.CmdArgs) error {
	c, err := parseForDel(args.StdinData)
	if err != nil {
		return err
	}
	if err := checkDataDir(c.DataDir); err != nil {
		return internalError(err)
	}
	if isHostNamespace(args.Netns) && !overridesNetns(args) {
		args.Netns = "" // the container's namespace is gone; package skel would also reject this one
	}
	if namespaceExists(args.Netns) {
		if err := checkNamespace(args); err != nil {
			return err
		}
	}
	if _, err := os.Stat(c.DataDir); err == nil { // otherwise nothing was ever attached
		unlock, err := lockContainer(ctx, c.DataDir, args.ContainerID, true)
		if err != nil {
			return internalError(err)
		}
		defer unlock()
	}
	return internalError(newAttachment(args, c).release(ctx))
}
