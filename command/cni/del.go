package cni

import (
	"context"
	"encoding/json"
	"path/filepath"

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
		return internal(err)
	}
	if isHostNamespace(args.Netns) && !overridesNetns(args) {
		args.Netns = "" // the container's namespace is gone; package skel would also reject this one
	}
	inNamespace := namespaceExists(args.Netns)
	if inNamespace {
		if err := checkNamespace(args); err != nil {
			return err
		}
		unlock, err := lockPath(ctx, args.Netns)
		if err != nil {
			return internal(err)
		}
		defer unlock()
	}
	return internal(newAttachment(args, c).end(ctx, inNamespace))
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
