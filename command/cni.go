package command

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/cni"
)

// cniName is the name of the plugin's file, next to `leno`.
const cniName = "leno-cni"

// Main runs the program that argv selects (argv[0] is its own name). A file named leno-cni is the
// plugin. A file with any other name is also the plugin if it is called as plugins are, with a
// command in the environment and without arguments: "type": "leno" in a network configuration
// makes the runtime look for a file named leno.
func Main(argv []string, m cli.Meta) int {
	switch called := len(argv) > 0 && filepath.Base(argv[0]) == cniName; {
	case len(argv) <= 1 && m.Getenv("CNI_COMMAND") != "":
		return Run([]string{"cni"}, m)
	case called && len(argv) == 1:
		// The reference plugins print the same when called by hand. Nomad parses the version from
		// it.
		fmt.Fprintf(m.Stderr, "CNI %s plugin v%s\nCNI protocol versions supported: %s\n", cniName, m.Version, strings.Join(cni.Versions(), ", "))
		return cli.ExitDone
	case called:
		return Run(append([]string{"cni"}, argv[1:]...), m)
	case len(argv) == 0:
		return Run(nil, m)
	}
	return Run(argv[1:], m)
}

// cniPlugin is `leno cni`.
type cniPlugin struct {
	meta     cli.Meta
	conflist bool
	network  string

	runDir string // directory of subnet files, "" for the default
	silent error  // why the agent did not respond to the last request
}

func cniSpec(m cli.Meta) cli.Spec {
	p := &cniPlugin{meta: m}
	return cli.Spec{
		Name:     "cni",
		Synopsis: "Put containers into networks, as a CNI plugin",
		Help: `
Container runtimes run it, Nomad for one, as the specification of the
Container Network Interface says (1.1.0, and 0.3.0 to 1.0.0): with CNI_COMMAND
in the environment and a network configuration on standard input. In the
runtime's directory of plugins, usually /opt/cni/bin, there has to be a link
to it by the name leno-cni, beside the reference plugins bridge and
host-local, which do the work.

  A network configuration, for the only network on this host:
    $ leno cni -conflist

  For network blue, to be put at /etc/cni/net.d/leno-blue.conflist:
    $ leno cni -conflist -network=blue`,
		Flags: p.flags,
		Run:   func(ctx context.Context, _ []string) error { return p.run(ctx) },
	}
}

func (p *cniPlugin) flags(fs *flag.FlagSet) {
	fs.BoolVar(&p.conflist, "conflist", false, "print a network configuration, and do nothing else")
	fs.StringVar(&p.network, "network", "", "`name` of the network in it. Default: none, which means the only one on a host")
}

func (p *cniPlugin) run(ctx context.Context) error {
	switch {
	case p.conflist:
		return p.printConflist()
	case p.network != "":
		return cli.UsageErrorWithFix(cli.SetFlag("conflist", "true"), "-network is for -conflist; for a container it stands in the network configuration")
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
		Add: seen(p.add), Del: seen(p.tidied(p.del)), Check: seen(p.check), GC: seen(p.tidied(p.gc)), Status: seen(p.status),
	}, cniversion.PluginSupports(cni.Versions()...), "")
	if failed == nil {
		return nil
	}
	// The reader of errors is a program: print JSON on standard output, and nothing else.
	if _, err := p.meta.Stdout.Write(cni.Print(failed, conf.Version)); err != nil {
		return err
	}
	return cli.ErrReported
}

// conflistVersion is the newest version without STATUS: Nomad and containerd (containerd/go-cni)
// also check the status before each DEL, and skip the DEL while the status is bad.
const conflistVersion = "1.0.0"

// conflist is a network configuration list, as runtimes read it from their configuration
// directory.
type conflist struct {
	CNIVersion string           `json:"cniVersion"`
	Name       string           `json:"name"`
	Plugins    []conflistPlugin `json:"plugins"`
}

type conflistPlugin struct {
	Type         string          `json:"type"`
	Network      string          `json:"network,omitempty"`
	Capabilities map[string]bool `json:"capabilities,omitempty"`
}

func (p *cniPlugin) printConflist() error {
	name := "leno" // as in the examples: mode = "cni/leno" is how Nomad refers to it
	if p.network != "" && p.network != "default" {
		name += "-" + p.network
	}
	return cli.WriteJSON(p.meta.Stdout, conflist{CNIVersion: conflistVersion, Name: name, Plugins: []conflistPlugin{
		{Type: cniName, Network: p.network},
		{Type: "portmap", Capabilities: map[string]bool{"portMappings": true}},
	}})
}

// internal wraps an error of this host, most often of a file.
func internal(err error) error {
	if err == nil {
		return nil
	}
	var known *types.Error
	if errors.As(err, &known) {
		return err
	}
	return types.NewError(types.ErrIOFailure, err.Error(), "")
}
