// Package docker compares the options that leno gives to Docker with those that Docker documents,
// and runs examples/docker with a fake engine that accepts only those. There is no real engine
// where the tests run.
package docker

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/lenonet/leno/command/dockeropts"
)

// A kind is the syntax of an option's value.
type kind int

const (
	text kind = iota
	truth
	number
	bridgeAddress // 10.5.34.1/24: an address that a host may have, with the prefix length
	prefix        // 10.5.34.0/24
	address
	mode       // gateway mode
	interfaces // eth0:eth1
)

// An option is one that Docker documents, with the first version that accepts it.
type option struct {
	since string
	kind  kind
	many  bool // may be given more than once
}

// daemonOptions are the network options of dockerd: command-line flags, with two dashes, and
// members of daemon.json (https://docs.docker.com/reference/cli/dockerd, and
// cmd/dockerd/config_unix.go at the engine's tags).
var daemonOptions = map[string]option{
	"bip":                  {"1.13", bridgeAddress, false},
	"bip6":                 {"28.0.0", bridgeAddress, false},
	"bridge":               {"1.13", text, false},
	"fixed-cidr":           {"1.13", prefix, false},
	"fixed-cidr-v6":        {"1.13", prefix, false},
	"ip-masq":              {"1.13", truth, false},
	"ip-forward":           {"1.13", truth, false},
	"iptables":             {"1.13", truth, false},
	"ip6tables":            {"20.10", truth, false},
	"ipv6":                 {"1.13", truth, false},
	"mtu":                  {"1.13", number, false},
	"allow-direct-routing": {"28.2.0", truth, false},
	"firewall-backend":     {"29.0.0", text, false},
}

// createOptions are those of `docker network create`; bridgeOptions are those that its driver
// bridge accepts with --opt (https://docs.docker.com/engine/network/drivers/bridge).
var (
	createOptions = map[string]option{
		"driver":   {"1.13", text, false},
		"subnet":   {"1.13", prefix, true},
		"gateway":  {"1.13", address, true},
		"ip-range": {"1.13", prefix, true},
		"ipv6":     {"1.13", truth, false},
		"internal": {"1.13", truth, false},
		"label":    {"1.13", text, true},
		"opt":      {"1.13", text, true},
	}
	bridgeOptions = map[string]option{
		"com.docker.network.bridge.name":                    {"1.13", text, false},
		"com.docker.network.bridge.enable_ip_masquerade":    {"1.13", truth, false},
		"com.docker.network.bridge.enable_icc":              {"1.13", truth, false},
		"com.docker.network.bridge.host_binding_ipv4":       {"1.13", address, false},
		"com.docker.network.driver.mtu":                     {"1.13", number, false},
		"com.docker.network.bridge.gateway_mode_ipv4":       {"27.0.1", mode, false},
		"com.docker.network.bridge.gateway_mode_ipv6":       {"27.0.1", mode, false},
		"com.docker.network.bridge.trusted_host_interfaces": {"28.2.0", interfaces, false},
	}
)

// check returns an error if a version of Docker would refuse the option.
func (o option) check(version dockeropts.Version, name, value string) error {
	since, err := dockeropts.ParseVersion(o.since)
	if err != nil {
		return err
	}
	if before(version, since) {
		return fmt.Errorf("%s is unknown to Docker %s, it came with %s", name, version, since)
	}
	switch o.kind {
	case truth:
		if value != "true" && value != "false" {
			return fmt.Errorf("%s: %q is neither true nor false", name, value)
		}
	case number:
		if n, err := strconv.Atoi(value); err != nil || n < 68 || n > 65535 {
			return fmt.Errorf("%s: %q is no MTU", name, value)
		}
	case bridgeAddress, prefix:
		p, err := netip.ParsePrefix(value)
		if err != nil || (p == p.Masked()) != (o.kind == prefix) {
			return fmt.Errorf("%s: %q, %v", name, value, err)
		}
		if v6 := strings.HasSuffix(name, "6"); strings.HasPrefix(name, "bip") && p.Addr().Is6() != v6 || name == "fixed-cidr-v6" && !p.Addr().Is6() {
			return fmt.Errorf("%s: %q is of the other family", name, value)
		}
	case address:
		if _, err := netip.ParseAddr(value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	case mode:
		unprotected := !before(version, dockeropts.Version{Major: 28})
		if value != "nat" && value != "routed" && (value != "nat-unprotected" && value != "isolated" || !unprotected) {
			return fmt.Errorf("%s: %q is no gateway mode of Docker %s", name, value, version)
		}
	case interfaces:
		for _, device := range strings.Split(value, ":") {
			if !deviceName.MatchString(device) {
				return fmt.Errorf("%s: %q", name, value)
			}
		}
	case text:
		if value == "" || name == "com.docker.network.bridge.name" && !deviceName.MatchString(value) {
			return fmt.Errorf("%s: %q", name, value)
		}
	}
	return nil
}

func before(a, b dockeropts.Version) bool {
	return slices.Compare([]int{a.Major, a.Minor, a.Patch}, []int{b.Major, b.Minor, b.Patch}) < 0
}

var (
	deviceName  = regexp.MustCompile(`^[^\s/:]{1,15}$`)
	networkName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)
)

// checkDaemon returns an error if dockerd would not start with the flags.
func checkDaemon(version dockeropts.Version, flags []string) (map[string]string, error) {
	values, rest, err := parse(version, daemonOptions, flags)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("dockerd takes no arguments: %q", rest)
	}
	out := map[string]string{}
	for name, all := range values {
		out[name] = all[0]
	}
	// docs: "--ipv6" of the default bridge required a prefix until 27 generated one.
	if err == nil && out["ipv6"] == "true" && out["fixed-cidr-v6"]+out["bip6"] == "" && version.Major < 27 {
		err = fmt.Errorf("--ipv6 needs --fixed-cidr-v6 in Docker %s", version)
	}
	return out, err
}

// A Network holds the arguments that `docker network create` was called with.
type Network struct {
	Name       string
	Options    []string // all arguments except labels and the name
	Labels     map[string]string
	Containers map[string]*Container // by name
}

// A Container is a container on a network, in the format of `docker container inspect`.
type Container struct {
	Name       string
	Stopped    bool
	IPAMConfig *struct{ IPv4Address, IPv6Address string } `json:",omitempty"` // requested addresses
	Aliases    []string
}

// CheckCreate returns an error if `docker network create` would refuse its arguments.
func CheckCreate(version dockeropts.Version, args []string) (n Network, err error) {
	values, rest, err := parse(version, createOptions, args)
	if err != nil {
		return n, err
	}
	if len(rest) != 1 || !networkName.MatchString(rest[0]) || slices.Contains([]string{"bridge", "host", "none", "default"}, rest[0]) {
		return n, fmt.Errorf("%q is not the name of one network", rest)
	}
	n = Network{Name: rest[0], Labels: map[string]string{}}
	for _, l := range values["label"] {
		key, value, _ := strings.Cut(l, "=")
		n.Labels[key] = value
	}
	for _, a := range args[:len(args)-1] {
		if !strings.HasPrefix(a, "--label=") {
			n.Options = append(n.Options, a)
		}
	}
	if len(values["gateway"]) != len(values["subnet"]) {
		return n, fmt.Errorf("%d gateways of %d subnets", len(values["gateway"]), len(values["subnet"]))
	}
	for i, s := range values["subnet"] {
		p, g := netip.MustParsePrefix(s), netip.MustParseAddr(values["gateway"][i])
		if !p.Contains(g) || p.Addr().Is6() && !slices.Contains(values["ipv6"], "true") {
			return n, fmt.Errorf("gateway %s of subnet %s, --ipv6 %q", g, p, values["ipv6"])
		}
	}
	seen := map[string]bool{}
	for _, o := range values["opt"] {
		name, value, _ := strings.Cut(o, "=")
		known, ok := bridgeOptions[name]
		if !ok || seen[name] {
			return n, fmt.Errorf("%s is no option of the driver bridge, or there twice", name)
		}
		seen[name] = true
		if err := known.check(version, name, value); err != nil {
			return n, err
		}
	}
	return n, nil
}

// parse splits arguments as Docker's programs do: --name=value, and --name alone for true.
func parse(version dockeropts.Version, known map[string]option, args []string) (values map[string][]string, rest []string, err error) {
	values = map[string][]string{}
	for _, a := range args {
		name, dashes := strings.CutPrefix(a, "--")
		if !dashes {
			rest = append(rest, a)
			continue
		}
		name, value, given := strings.Cut(name, "=")
		o, ok := known[name]
		switch {
		case !ok:
			return nil, nil, fmt.Errorf("unknown flag: --%s", name)
		case !given && o.kind != truth:
			return nil, nil, fmt.Errorf("flag needs an argument: --%s", name)
		case !given:
			value = "true"
		}
		if len(values[name]) > 0 && !o.many {
			return nil, nil, fmt.Errorf("--%s is there twice", name)
		}
		if err := o.check(version, name, value); err != nil {
			return nil, nil, err
		}
		values[name] = append(values[name], value)
	}
	return values, rest, nil
}
