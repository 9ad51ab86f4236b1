package cni

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	cniversion "github.com/containernetworking/cni/pkg/version"
)

// check returns an error if the container no longer has what ADD gave it, or if its address is no
// longer in this host's subnet. It skips the second test if the host's subnet is unknown, for
// example while the agent is being upgraded.
func (p *plugin) check(ctx context.Context, args *skel.CmdArgs) error {
	c, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	if err := checkNamespace(args); err != nil {
		return err
	}
	if err := checkDataDir(c.DataDir); err != nil {
		return internalError(err)
	}
	a := newAttachment(args, c)
	found, err := a.find()
	if err != nil {
		return internalError(err)
	}
	if len(found) == 0 || found[0].phase != phaseAttached {
		return types.NewError(types.ErrUnknownContainer,
			fmt.Sprintf("container %s has no interface %s of %s: ADD it", args.ContainerID, args.IfName, c.Name), "")
	}
	r := found[0].Record
	addrs, err := previousAddresses(c)
	if err != nil {
		return err
	}
	c.Network = r.Network
	if f, err := p.waitForFacts(ctx, c, false); err == nil {
		if old := addressesOutside(f, addrs); len(old) > 0 {
			return types.NewError(codeOldSubnet,
				fmt.Sprintf("%s is no longer in this host's subnet of network %s, which is %s: start a new container", old[0],
					f.Network, f.Subnets()[0]), "")
		}
	}
	conf, err := r.delegation().withValues(map[string]any{"cniVersion": c.CNIVersion, "prevResult": c.PrevResult})
	if err != nil {
		return internalError(err)
	}
	return callPlugin(ctx, r.delegation(), conf, a.invocation())
}

// previousAddresses returns the container's addresses from the result of ADD that the runtime stored.
func previousAddresses(c networkConf) ([]netip.Addr, error) {
	if len(c.PrevResult) == 0 {
		return nil, types.NewError(types.ErrInvalidNetworkConfig,
			"prevResult is missing: a runtime must give CHECK the result of ADD", "")
	}
	answer, err := cniversion.NewResult(c.CNIVersion, c.PrevResult)
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "prevResult: "+err.Error(), "")
	}
	result, err := current.NewResultFromResult(answer)
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "prevResult: "+err.Error(), "")
	}
	var out []netip.Addr
	for _, ip := range result.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			out = append(out, a.Unmap())
		}
	}
	return out, nil
}
