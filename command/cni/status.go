package cni

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"

	"github.com/lenonet/leno/api"
)

// status returns an error if an ADD would fail now.
func (p *plugin) status(ctx context.Context, args *skel.CmdArgs) error {
	c, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	f, err := p.waitForFacts(ctx, c, false)
	if isNotReady(err) {
		return notAvailableError(err)
	}
	if err != nil {
		return err
	}
	if err := checkDataDir(c.DataDir); err != nil {
		return notAvailableError(err)
	}
	d, err := newDelegation(c, f)
	if err != nil {
		return err
	}
	if err := checkForwarding(d, f, false); err != nil {
		return notAvailableError(err)
	}
	if full, err := isExhausted(c, f); err != nil {
		return notAvailableError(err)
	} else if full {
		return notAvailableError(exhaustedError(d, ""))
	}
	for _, plugin := range []string{d.Plugin, ipamPlugin} {
		if _, err := invoke.FindInPath(plugin, strings.Split(args.Path, ":")); err != nil {
			return notAvailableError(pluginErrorf(d, args.Path, err))
		}
		if err := checkVersion(ctx, plugin, args.Path, c.CNIVersion); err != nil {
			return notAvailableError(err)
		}
	}
	if c.SubnetFile == "" && p.agentError == nil {
		if err := p.checkReachable(ctx, c, f.Network); err != nil {
			return err
		}
	}
	return callPlugin(ctx, d, d.Config, &invoke.Args{Command: "STATUS", Path: args.Path})
}

// isExhausted reports whether no address is left, not even one that an ADD would reap.
func isExhausted(c networkConf, f facts) (bool, error) {
	reserved, err := readReserved(filepath.Join(addressDir(c.DataDir), f.Network))
	if err != nil {
		return false, err
	}
	taken := slices.Collect(maps.Values(reserved))
	if !isFull(f, taken) {
		return false, nil
	}
	all, err := records{dataDir: c.DataDir, name: c.Name}.all()
	if err != nil || len(findOrphans(taken, all, nil)) > 0 {
		return false, err
	}
	return !slices.ContainsFunc(all, func(file recordFile) bool { return isReapable(file, f.Network) }), nil
}

// checkReachable returns an error if something keeps packets from a network in which this host has a
// subnet. An agent that does not respond is no such reason: packets pass without it.
func (p *plugin) checkReachable(ctx context.Context, c networkConf, network string) error {
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
	return errorf(codeLimited, "network %s: %s; see `leno status`", network, strings.Join(reasons, "; "))
}
