package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	cniversion "github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/command/cni"
)

// add gives a container an interface: remember, then have it done.
func (p *cniPlugin) add(ctx context.Context, args *skel.CmdArgs) error {
	c, err := cni.Parse(args.StdinData)
	if err != nil {
		return err
	}
	if err := checkNamespace(args, true); err != nil {
		return err
	}
	records := cniRecords{dataDir: c.DataDir, name: c.Name}
	before, found, err := records.read(args.ContainerID, args.IfName)
	switch {
	case err != nil:
		return internal(err)
	case found && before.Done:
		return types.NewError(cni.CodeAttached, fmt.Sprintf("container %s has interface %s in network %s already: DEL it first", args.ContainerID, args.IfName, before.Network), "")
	case found: // a crash left it half-way
		if err := p.undo(ctx, args, before); err != nil {
			return err
		}
	}
	// What is there already is somebody else's, and undoing would take it away.
	if err := checkInterface(args); err != nil {
		return err
	}
	f, err := p.facts(ctx, c, true)
	if err != nil {
		return err
	}
	d, err := cni.Delegate(c, f)
	if err != nil {
		return err
	}
	record := cni.NewRecord(c.Name, types.GCAttachment{ContainerID: args.ContainerID, IfName: args.IfName}, args.Netns, d)
	if err := records.write(record); err != nil {
		return internal(err)
	}
	result, err := p.attach(ctx, args, d, f)
	if cni.IsExhausted(err) && p.reap(ctx, args, c, f.Network) {
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
		return types.PrintResult(result, c.CNIVersion)
	}
	// Nothing stays of what failed, so that the runtime may try again without a DEL.
	if undone := p.undo(ctx, args, record); undone == nil {
		undone = records.remove(record)
		err = errors.Join(err, undone)
	}
	return err
}

// attach prepares the bridge and calls the plugin.
func (p *cniPlugin) attach(ctx context.Context, args *skel.CmdArgs, d cni.Delegation, f cni.Facts) (*current.Result, error) {
	if err := prepareBridge(d, f); err != nil {
		return nil, internal(err)
	}
	answer, err := invoke.DelegateAdd(ctx, d.Plugin, d.Config, nil)
	if err != nil {
		return nil, cni.Explain(d, args.Path, err)
	}
	result, err := current.NewResultFromResult(answer)
	if err != nil {
		return nil, cni.Explain(d, args.Path, err)
	}
	return result, nil
}

// undo has the plugin that was called take back what it did.
func (p *cniPlugin) undo(ctx context.Context, args *skel.CmdArgs, r cni.Record) error {
	call := &invoke.Args{
		Command: "DEL", ContainerID: args.ContainerID, NetNS: args.Netns, IfName: args.IfName, PluginArgsStr: args.Args, Path: args.Path,
	}
	return p.call(ctx, r.Delegation(), r.Config, call)
}

// call runs the plugin for a command without a result.
func (p *cniPlugin) call(ctx context.Context, d cni.Delegation, conf []byte, args *invoke.Args) error {
	path, err := invoke.FindInPath(d.Plugin, strings.Split(args.Path, string(os.PathListSeparator)))
	if err == nil {
		err = invoke.ExecPluginWithoutResult(ctx, path, conf, args, nil)
	}
	if err != nil {
		return cni.Explain(d, args.Path, err)
	}
	return nil
}

// hostLink is the host's end of the container's interface: neither in the container
// nor the bridge.
func hostLink(r *current.Result, bridge string) (name, mac string) {
	for _, i := range r.Interfaces {
		if i.Sandbox == "" && i.Name != bridge {
			return i.Name, i.Mac
		}
	}
	return "", ""
}

// del takes the interface back. That there is nothing to take back is success: the
// call may be repeated, and follows an ADD that failed.
func (p *cniPlugin) del(ctx context.Context, args *skel.CmdArgs) error {
	c, err := parseForDel(args.StdinData)
	if err != nil {
		return err
	}
	if err := checkNamespace(args, false); err != nil {
		return err
	}
	records := cniRecords{dataDir: c.DataDir, name: c.Name}
	r, found, err := records.read(args.ContainerID, args.IfName)
	if err != nil {
		return internal(err)
	}
	if !found {
		owner := types.GCAttachment{ContainerID: args.ContainerID, IfName: args.IfName}
		return internal(releaseAddresses(c.DataDir, func(s cni.Reserved) bool { return s.Owner == owner }))
	}
	if err := p.undo(ctx, args, r); err != nil {
		return err
	}
	return internal(records.remove(r))
}

// parseForDel reads what DEL needs of a configuration. What is wrong with the rest
// need not keep a container from ending.
func parseForDel(data []byte) (cni.Conf, error) {
	c, err := cni.Parse(data)
	if err == nil {
		return c, nil
	}
	some := cni.Conf{DataDir: cni.DefaultDataDir}
	var min struct {
		Name    string `json:"name"`
		DataDir string `json:"dataDir"`
	}
	if json.Unmarshal(data, &min) != nil || min.Name == "" {
		return cni.Conf{}, err
	}
	some.Name = min.Name
	if min.DataDir != "" {
		some.DataDir = min.DataDir
	}
	return some, nil
}

// checkNamespace says that the container's namespace is there, where it has to be,
// and is not the host's: what is done in a container would be done to the host.
func checkNamespace(args *skel.CmdArgs, needed bool) error {
	wrong := func(format string, a ...any) error {
		return types.NewError(types.ErrInvalidNetNS, fmt.Sprintf(format, a...), "")
	}
	var theirs, ours unix.Stat_t
	if err := unix.Stat(args.Netns, &theirs); err != nil {
		if needed {
			return wrong("CNI_NETNS: there is no network namespace %s: %s", args.Netns, err)
		}
		return nil
	}
	var kind unix.Statfs_t
	if err := unix.Statfs(args.Netns, &kind); err != nil || kind.Type != unix.NSFS_MAGIC && kind.Type != unix.PROC_SUPER_MAGIC {
		if needed {
			return wrong("CNI_NETNS: %s is not a network namespace", args.Netns)
		}
		return nil
	}
	override := strings.EqualFold(args.NetnsOverride, "true") || args.NetnsOverride == "1"
	if err := unix.Stat("/proc/thread-self/ns/net", &ours); err == nil && !override && ours.Ino == theirs.Ino && ours.Dev == theirs.Dev {
		return wrong("CNI_NETNS: %s is the host's own network namespace", args.Netns)
	}
	return nil
}

// check says whether the container still has what ADD gave it, and whether its
// address is still one of this host's. Where nobody knows this host's subnet, an
// agent that is being upgraded for one, the latter is left out.
func (p *cniPlugin) check(ctx context.Context, args *skel.CmdArgs) error {
	c, err := cni.Parse(args.StdinData)
	if err != nil {
		return err
	}
	if err := checkNamespace(args, true); err != nil {
		return err
	}
	r, found, err := cniRecords{dataDir: c.DataDir, name: c.Name}.read(args.ContainerID, args.IfName)
	if err != nil {
		return internal(err)
	}
	if !found || !r.Done {
		return types.NewError(types.ErrUnknownContainer, fmt.Sprintf("container %s was given no interface %s by %s: ADD it", args.ContainerID, args.IfName, c.Name), "")
	}
	addrs, err := previous(c)
	if err != nil {
		return err
	}
	c.Network = r.Network
	if f, err := p.facts(ctx, c, false); err == nil {
		if old := cni.Outside(f, addrs); len(old) > 0 {
			return types.NewError(cni.CodeOldSubnet, fmt.Sprintf("%s is not of this host's subnet in network %s any more, which is %s: start the container anew", old[0], f.Network, f.Subnets()[0]), "")
		}
	}
	conf, err := r.Delegation().With(map[string]any{"cniVersion": c.CNIVersion, "prevResult": c.PrevResult})
	if err != nil {
		return internal(err)
	}
	return p.call(ctx, r.Delegation(), conf, &invoke.Args{
		Command: "CHECK", ContainerID: args.ContainerID, NetNS: args.Netns, IfName: args.IfName, PluginArgsStr: args.Args, Path: args.Path,
	})
}

// previous is the container's addresses, as the runtime remembers the result of ADD.
func previous(c cni.Conf) ([]netip.Addr, error) {
	if len(c.PrevResult) == 0 {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "prevResult is missing: a runtime has to give CHECK what ADD answered", "")
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
