// Package dockeropts computes the options with which a Docker Engine puts its
// containers into a leno network, from the engine's version and the content of the
// subnet file. It also finds the installed version (installed.go), finds what is in
// the way in daemon.json and changes it (config.go, file.go). It does not know where the subnet file is or how the
// result is printed.
//
// The options of each version are from the engine's source at its tags
// (github.com/moby/moby: cmd/dockerd/config_unix.go, from 29 on
// daemon/command/config_unix.go, and libnetwork/drivers/bridge):
//
//	--bip, --mtu, --ip-masq, --ipv6, --fixed-cidr-v6      every version
//	com.docker.network.bridge.gateway_mode_ipv4, _ipv6    27.0.1: nat, routed
//	  … nat-unprotected                                   28.0.0
//	--bip6; --ipv4=false of docker network create         28.0.0
//	raw PREROUTING drops packets for published ports      28.0.0 (moby #48724)
//	DOCKER_INSECURE_NO_IPTABLES_RAW=1                     28.0.2
//	raw PREROUTING drops packets for every container      28.2.0 (moby #49829)
//	--allow-direct-routing                                28.2.0 (moby #49832)
//	com.docker.network.bridge.trusted_host_interfaces     28.2.0 (moby #49832)
//	--firewall-backend=nftables                           29.0.0
package dockeropts

import (
	"fmt"
	"strconv"
	"strings"
)

// Engine is the Docker Engine for which the options are meant.
type Engine struct {
	Version Version
	// NFTables is set if the engine keeps its rules in its own nftables tables, where an
	// earlier accept of leno has no effect. It is possible from 29.0 on.
	NFTables bool
}

// Option is one option of the daemon.
type Option struct {
	Name  string // name of the flag and of the key in daemon.json: "bip"
	Value any    // string, bool or int, as in daemon.json
	// Variable is the option's name in an environment file.
	Variable string
}

// Flag returns the option in dockerd's syntax.
func (o Option) Flag() string {
	switch v := o.Value.(type) {
	case string:
		return "--" + o.Name + "=" + v
	case int:
		return "--" + o.Name + "=" + strconv.Itoa(v)
	case bool:
		if !v {
			return "--" + o.Name + "=false"
		}
	}
	return "--" + o.Name
}

// Daemon holds the options to start the daemon with.
type Daemon struct {
	Options []Option
	// Environment lists NAME=value variables of the daemon itself.
	Environment []string
	// Notes are sentences for people: remaining steps, and the reasons.
	Notes []string
}

// Flags returns all options in dockerd's syntax.
func (d Daemon) Flags() []string {
	out := make([]string, len(d.Options))
	for i, o := range d.Options {
		out[i] = o.Flag()
	}
	return out
}

// ForDocker0 returns the options that put the default bridge into the network.
func ForDocker0(e Engine, n Network) Daemon {
	var d Daemon
	add := func(name, variable string, value any) {
		d.Options = append(d.Options, Option{name, value, "DOCKER_OPT_" + variable})
	}
	if g := n.gateway(false); g.IsValid() {
		add("bip", "BIP", g.String())
	} else {
		d.ownIPv4("docker0", n, ": from Docker 28 on, -create makes a network without IPv4")
	}
	if g := n.gateway(true); g.IsValid() {
		add("ipv6", "IPV6", true)
		if e.Version.atLeast(28, 0, 0) {
			add("bip6", "BIP6", g.String())
		} else {
			// docker0 takes its first address, which is the gateway.
			add("fixed-cidr-v6", "FIXED_CIDR_V6", g.Masked().String())
		}
	}
	add("ip-masq", "IPMASQ", !n.IPMasq)
	add("mtu", "MTU", n.MTU)
	d.masquerade(n)
	d.directRouting(e, add)
	return d
}

func (d *Daemon) note(format string, args ...any) {
	d.Notes = append(d.Notes, fmt.Sprintf(format, args...))
}

// ownIPv4 adds a note that the bridge gets IPv4 in a network without. Masquerading is set for both families together.
func (d *Daemon) ownIPv4(bridge string, n Network, advice string) {
	lost := ""
	if n.IPMasq {
		lost = ", which neither leno nor Docker masquerades: " +
			"containers on it cannot reach IPv4 addresses outside of this host"
	}
	d.note("network %s has no IPv4, and %s gets an IPv4 subnet of Docker's own%s%s", n.Name, bridge, lost, advice)
}

// masquerade adds a note if Docker has to masquerade. If leno and Docker both did, Docker would
// also change the source of packets within the overlay.
func (d *Daemon) masquerade(n Network) {
	if !n.IPMasq {
		d.note("ip_masq is off for network %s, so Docker masquerades: containers on other hosts see this host's address "+
			"instead of the container's. Set ip_masq = true in leno's configuration, or --ip-masq=false where something else "+
			"masquerades", n.Name)
	}
}

// directRouting adds the options that let packets of other hosts reach containers by their own
// addresses. Docker has dropped such packets since 28.0.
func (d *Daemon) directRouting(e Engine, add func(name, variable string, value any)) {
	v := e.Version
	switch {
	case !v.isKnown():
		d.note("Docker's version is not known, so these are options that every version has. From 28.2 on " +
			"--allow-direct-routing is needed too, or other hosts cannot reach containers: say the version with -docker-version")
	case v.atLeast(28, 2, 0):
		add("allow-direct-routing", "DIRECT_ROUTING", true)
	case v.atLeast(28, 0, 2):
		d.Environment = append(d.Environment, "DOCKER_INSECURE_NO_IPTABLES_RAW=1")
		d.note("Docker %s drops packets of other hosts for published ports unless DOCKER_INSECURE_NO_IPTABLES_RAW=1 is in "+
			"the environment of dockerd. 28.2 and later have --allow-direct-routing instead", v)
	case v.atLeast(28, 0, 0):
		d.note("Docker %s drops packets of other hosts for published ports, and docker0 has no option against that: upgrade "+
			"to 28.2 or later, or use a network of its own (-create)", v)
	}
	if e.NFTables {
		d.note("with --firewall-backend=nftables other hosts reach only published ports of containers on docker0; -create " +
			"makes a network in which they reach all")
	}
}

// Create returns the arguments of `docker network create` for a separate bridge in the network,
// and notes for the user.
func Create(e Engine, n Network) (args, notes []string) {
	args = []string{"--driver=bridge"}
	hasIPv4 := n.gateway(false).IsValid()
	if !hasIPv4 && e.Version.atLeast(28, 0, 0) {
		args = append(args, "--ipv4=false")
	}
	for _, g := range n.Gateways {
		if g.Addr().Is6() {
			args = append(args, "--ipv6")
		}
		args = append(args, "--subnet="+g.Masked().String(), "--gateway="+g.Addr().String())
	}
	opt := func(name, value string) { args = append(args, "--opt="+name+"="+value) }
	if name := n.bridge(); name != "" {
		opt("com.docker.network.bridge.name", name)
	}
	opt("com.docker.network.driver.mtu", strconv.Itoa(n.MTU))
	opt("com.docker.network.bridge.enable_ip_masquerade", strconv.FormatBool(!n.IPMasq))

	var d Daemon
	d.masquerade(n)
	if !hasIPv4 && !e.Version.atLeast(28, 0, 0) {
		d.ownIPv4(n.dockerName(), n, ". Docker 28 and later have --ipv4=false")
	}
	v, trusted := e.Version, n.trustedInterfaces()
	switch {
	case !v.isKnown():
		d.note("Docker's version is not known. From 28.2 on add --opt=com.docker.network.bridge.trusted_host_interfaces=%s, "+
			"or other hosts cannot reach containers: say the version with -docker-version", trusted)
	case v.atLeast(28, 2, 0) && trusted != "" && !e.NFTables:
		opt("com.docker.network.bridge.trusted_host_interfaces", trusted)
	case v.atLeast(28, 0, 0):
		for _, g := range n.Gateways {
			opt("com.docker.network.bridge.gateway_mode_ipv"+map[bool]string{true: "6", false: "4"}[g.Addr().Is6()],
				"nat-unprotected")
		}
		d.note("gateway mode nat-unprotected lets every host that has a route to it reach all ports of %s", n.dockerName())
	}
	return append(args, n.dockerName()), d.Notes
}

// Lines formats a command for the shell in lines of at most width characters; all lines but the
// last end in a backslash.
func Lines(command string, args []string, width int) string {
	const indent, more = "  ", ` \`
	line := command
	var b strings.Builder
	for _, a := range args {
		if len(line)+1+len(a)+len(more) > width && line != indent {
			b.WriteString(line + more + "\n")
			line = indent + a
			continue
		}
		line += " " + a
	}
	return b.String() + line + "\n"
}
