package cni

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/registry"
)

// Spec returns the command `leno cni`.
func Spec(m cli.Meta) cli.Spec {
	p := &plugin{meta: m}
	return cli.Spec{
		Name: "cni", Synopsis: "Connect containers to networks, as a CNI plugin",
		Help: `
Container runtimes such as Nomad run this command as the specification of the
Container Network Interface says (1.1.0, and 0.3.0 to 1.0.0): with CNI_COMMAND
in the environment and a network configuration on standard input. The
runtime's directory of plugins, usually /opt/cni/bin, must contain a link to
it named leno-cni, next to the reference plugins bridge and host-local, which
do the work.

  A network configuration for the only network on this host:
    $ leno cni -conflist

  For network blue, to be saved as /etc/cni/net.d/leno-blue.conflist:
    $ leno cni -conflist -network=blue`,
		Flags: p.flags, Run: func(ctx context.Context, _ []string) error { return p.run(ctx) },
	}
}

func (p *plugin) flags(fs *flag.FlagSet) {
	fs.BoolVar(&p.conflist, "conflist", false, "print a network configuration and exit")
	fs.StringVar(&p.network, "network", "", "`name` of its network. Default: none, which means the only one on a host")
}

func (p *plugin) run(ctx context.Context) error {
	switch {
	case p.conflist:
		return p.printConflist()
	case p.network != "":
		return cli.UsageErrorf("-network is for -conflist; for a container it is in the network configuration")
	case p.meta.Getenv("CNI_COMMAND") == "":
		return cli.UsageErrorf("CNI_COMMAND is not in the environment: container runtimes run this command")
	}
	var conf struct {
		Version string `json:"cniVersion"`
	}
	seen := func(do func(context.Context, *skel.CmdArgs) error) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error {
			_ = json.Unmarshal(args.StdinData, &conf) // skel has already parsed it
			return do(ctx, args)
		}
	}
	failed := skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add:    seen(p.add),
		Del:    seen(p.withTidying(p.del)),
		Check:  seen(p.check),
		GC:     seen(p.withTidying(p.gc)),
		Status: seen(p.status),
	}, cniversion.PluginSupports(Versions()...), "")
	if failed == nil {
		return nil
	}
	// The reader of errors is a program: print JSON on standard output, and nothing else.
	if _, err := p.meta.Stdout.Write(errorJSON(failed, conf.Version)); err != nil {
		return err
	}
	return cli.ErrReported
}

// conflistVersion is the newest version without STATUS: Nomad and containerd (containerd/go-cni)
// also check the status before each DEL, and skip the DEL while the status is bad.
const conflistVersion = "1.0.0"

// networkConfList is a network configuration list, as runtimes read it from their configuration directory.
type networkConfList struct {
	CNIVersion string           `json:"cniVersion"`
	Name       string           `json:"name"`
	Plugins    []conflistPlugin `json:"plugins"`
}

type conflistPlugin struct {
	Type         string          `json:"type"`
	Network      string          `json:"network,omitempty"`
	Capabilities map[string]bool `json:"capabilities,omitempty"`
}

func (p *plugin) printConflist() error {
	if err := registry.CheckNetworkName(p.network); err != nil && p.network != "" {
		return cli.UsageErrorf("-network: %s", err)
	}
	name := "leno" // as in the examples: mode = "cni/leno" is how Nomad refers to it
	if p.network != "" && p.network != "default" {
		name += "-" + p.network
	}
	return cli.WriteJSON(p.meta.Stdout, networkConfList{CNIVersion: conflistVersion, Name: name, Plugins: []conflistPlugin{
		{Type: Name, Network: p.network},
		{Type: "portmap", Capabilities: map[string]bool{"portMappings": true}},
		{Type: "loopback"}, // Nomad leaves the device lo to the network
	}})
}

// errorJSON returns an error in the specification's format. version is that of the configuration, "" for none.
func errorJSON(e *types.Error, version string) []byte {
	text, err := json.MarshalIndent(struct {
		CNIVersion string `json:"cniVersion"`
		*types.Error
	}{cmp.Or(version, Versions()[len(Versions())-1]), e}, "", "    ")
	if err != nil { // cannot happen: strings and a number
		return []byte(`{"code": 999}`)
	}
	return append(text, '\n')
}
