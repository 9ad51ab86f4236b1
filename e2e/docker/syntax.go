// Package docker runs examples/docker with a fake engine that accepts only the options that Docker
// documents, and lets a real dockerd validate what leno writes. There is no real engine where the
// tests run.
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
	prefix // 10.5.34.0/24
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

// createOptions are the options of `docker network create`; bridgeOptions are those that its driver
// bridge accepts with --opt (https://docs.docker.com/engine/network/drivers/bridge).
var (
	createOptions = map[string]option{
		"driver":   {"1.13", text, false},
		"subnet":   {"1.13", prefix, true},
		"gateway":  {"1.13", address, true},
		"ip-range": {"1.13", prefix, true},
		"ipv4":     {"28.0.0", truth, false},
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
	case prefix:
		if p, err := netip.ParsePrefix(value); err != nil || p != p.Masked() {
			return fmt.Errorf("%s: %q, %v", name, value, err)
		}
	case address:
		if _, err := netip.ParseAddr(value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	case mode:
		unprotected := !before(version, dockeropts.Version{Major: 28})
		if value != "nat" && value != "routed" && (value != "nat-unprotected" && value != "isolated" || !unprotected) {
			return fmt.Errorf("%s: %q is not a gateway mode of Docker %s", name, value, version)
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
