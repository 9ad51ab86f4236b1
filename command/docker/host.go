package docker

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/files"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/dockeropts"
	"github.com/lenonet/leno/command/trusted"
)

// askTimeout bounds the wait for an agent that may be absent.
const askTimeout = 3 * time.Second

// A host tells which Docker Engine and which networks there are on this host, as the flags describe them or as they are
// found.
type host struct {
	agent *cli.AgentFlags

	networks, files, interfaces cli.ListFlag
	version, firewall, config   string
}

func (h *host) flags(fs *flag.FlagSet) {
	h.agent.Register(fs)
	fs.Var(&h.networks, "network",
		"`name` of a network, the first is docker0's; may be repeated. Default: the only one on this host")
	fs.Var(&h.files, "subnet-file", "`file` that describes a network, instead of -network; may be repeated")
	fs.Var(&h.interfaces, "interface",
		"`name` of a device on which packets of other hosts arrive; may be repeated. "+
			"Default: those of the network and, if the agent reports direct routing, the underlay's")
	fs.StringVar(&h.version, "docker-version", "", "`version` of Docker; default: as dockerd or docker reports it")
	fs.StringVar(&h.firewall, "docker-firewall", "",
		"the `kind` of rules that Docker writes, iptables or nftables; default: as daemon.json says or docker reports it, "+
			"otherwise iptables")
	fs.StringVar(&h.config, "daemon-json", dockeropts.DaemonJSON, "`file` that dockerd reads in addition to its options")
}

// readConfig returns the content of the daemon.json at path and, if replace is false, accepts what dockerd accepts. A
// missing file is empty.
func readConfig(path string, replace bool) (text []byte, c dockeropts.Config, err error) {
	text, err = readNamedFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	parse := dockeropts.ReadConfig
	if replace {
		parse = dockeropts.ParseConfig
	}
	if c, err = parse(text); err != nil {
		return nil, nil, fmt.Errorf("%s %w; it was not changed", path, err)
	}
	return text, c, nil
}

// readNamedFile reads a file that the operator named.
func readNamedFile(path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), files.ReadTimeout)
	defer cancel()
	return files.Read(ctx, path)
}

// engine returns the engine that the flags describe. Unset values come from its daemon.json and the installed one, and
// if it is running, also from the running one.
func (h *host) engine(ctx context.Context, c dockeropts.Config, running bool) (e dockeropts.Engine, err error) {
	switch h.firewall {
	case "iptables", "":
	case "nftables":
		e.NFTables = true
	default:
		return e, cli.UsageErrorf("-docker-firewall: %q is neither iptables nor nftables", h.firewall)
	}
	if h.version != "" {
		if e.Version, err = dockeropts.ParseVersion(h.version); err != nil {
			return e, cli.UsageErrorf("-docker-version: %s", err)
		}
	} else {
		e.Version = dockeropts.InstalledVersion(ctx)
	}
	switch {
	case h.firewall != "":
	case c.Firewall() != "":
		e.NFTables = c.Firewall() == "nftables"
	case running && h.version == "":
		e.NFTables = dockeropts.HasNFTables(ctx)
	}
	return e, nil
}

// subnetSource is the place of a network's subnet file.
type subnetSource struct {
	name, path string
	interfaces []string
	state      string // state of the network, from the agent
	named      bool   // by the operator
}

// read reads the file. Unless the operator named it, only users who may run an agent can have written it: root acts on
// its content.
func (s subnetSource) read() (string, error) {
	if s.named {
		text, err := readNamedFile(s.path)
		return string(text), err
	}
	return trusted.ReadFile(s.path, trusted.Users(filepath.Dir(config.DefaultSubnetFile("x")))...)
}

// read returns the networks that the flags name, in their order, or the only one.
func (h *host) read(ctx context.Context) ([]dockeropts.Network, error) {
	sources, err := h.sources(ctx)
	if err != nil {
		return nil, err
	}
	var out []dockeropts.Network
	for _, s := range sources {
		for _, word := range slices.Concat([]string{s.name}, h.interfaces, s.interfaces) {
			if !shellWord.MatchString(word) {
				return nil, cli.UsageErrorf("%q is not the name of a network or device", word)
			}
		}
		text, err := s.read()
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("network %s has no subnet file, %s: %s", s.name, s.path, missingFileText(s))
		}
		if err != nil {
			return nil, err
		}
		n, err := dockeropts.ParseSubnetFile(s.name, text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.path, err)
		}
		if n.Interfaces = h.interfaces; len(n.Interfaces) == 0 {
			n.Interfaces = s.interfaces
		}
		out = append(out, n)
	}
	return out, nil
}

// shellWord matches words that a shell accepts without quotes.
var shellWord = regexp.MustCompile(`^[\w.@~-]+$`)

func missingFileText(s subnetSource) string {
	if s.state != "" {
		return "the agent writes it when it has a subnet, and reports: " + s.state
	}
	return "`leno agent` writes it when it has a subnet; start it with this network in its configuration, and see `leno " +
		"status`"
}

// networkOf returns the network that a subnet file describes, by the name of the file.
func networkOf(path string) string { return strings.TrimSuffix(filepath.Base(path), ".env") }

// repeated returns the first network that the flags name a second time.
func (h *host) repeated() (name string, ok bool) {
	names := slices.Clone(h.networks)
	for _, path := range h.files {
		names = append(names, networkOf(path))
	}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return name, true
		}
	}
	return "", false
}

// sources finds the files without reading them.
func (h *host) sources(ctx context.Context) ([]subnetSource, error) {
	var out []subnetSource
	for _, path := range h.files {
		name := networkOf(path)
		out = append(out, subnetSource{name: name, path: path, interfaces: backend.LinkNames(name), named: true})
	}
	if len(out) > 0 {
		return out, nil
	}
	known, err := h.knownNetworks(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range known {
		names = append(names, s.name)
	}
	switch {
	case len(known) == 0:
		return nil, fmt.Errorf("no network has a subnet file here (%s): `leno agent` writes it when it has a subnet, "+
			"start it", config.DefaultSubnetFile("*"))
	case len(h.networks) == 0 && len(known) == 1:
		return known, nil
	case len(h.networks) == 0:
		return nil, cli.UsageErrorf("there are several networks, name them with -network, docker0's first: %s",
			strings.Join(names, ", "))
	}
	for _, name := range h.networks {
		i := slices.Index(names, name)
		if i < 0 {
			return nil, fmt.Errorf("network %s is not on this host: known are %s", name, strings.Join(names, ", "))
		}
		out = append(out, known[i])
	}
	return out, nil
}

// knownNetworks returns this host's networks by name: from the agent, or, if it does not respond, those
// with a subnet file in the default directory.
func (h *host) knownNetworks(ctx context.Context) (out []subnetSource, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err = h.agent.Call(ctx, func(ctx context.Context, c *api.Client) error {
		list, err := c.Networks(ctx)
		for _, n := range list.Networks {
			if n.Local != nil {
				out = append(out, subnetSource{name: n.Name, path: n.Local.SubnetFile, state: n.Local.State,
					interfaces: arrivals(n)})
			}
		}
		return err
	})
	switch {
	case cli.IsUsageError(err), err != nil && h.agent.Given("address"):
		return nil, err
	case err == nil:
		return out, nil
	}
	files, err := filepath.Glob(config.DefaultSubnetFile("*"))
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".env")
		out = append(out, subnetSource{name: name, path: path, interfaces: backend.LinkNames(name)})
	}
	return out, err
}

// arrivals returns the devices on which packets of other hosts arrive or will arrive. Which of its devices a network
// has changes with its backend and its keys, and the Docker network that trusts them stays.
func arrivals(n api.Network) []string {
	out := backend.LinkNames(n.Name)
	for _, link := range kernel.Arrivals(n.Name, n.Local.Underlay.Interface, n.Backend, n.SwitchTo) {
		if !slices.Contains(out, link) {
			out = append(out, link)
		}
	}
	return out
}
