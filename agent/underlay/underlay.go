// Package underlay finds the interface and the addresses that carry traffic between hosts. It defines the order in
// which the settings are tried and explains the outcome. It changes nothing on the host and knows no backend.
package underlay

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	"github.com/lenonet/leno/agent/config"
)

// ErrNone reports that no interface of the host fits. The text around it names every interface, its addresses, and
// why it was left out.
var ErrNone = errors.New("no interface fits")

// Need describes what the networks need from the underlay. At least one family is set.
type Need struct {
	IPv4, IPv6 bool           // families that may carry the traffic; one of them is enough
	Overlay    []netip.Prefix // the networks' pools: an address in them is never an underlay address
	Peers      []netip.Addr   // public addresses of the other hosts, as far as known
}

// maxPaths bounds how many hosts' paths are checked, the first by address: each takes 16 microseconds, at every look.
// The other hosts are left to path MTU discovery.
const maxPaths = 256

// Choice describes the host's connection to the other hosts.
type Choice struct {
	Interface string
	Index     int    // ifindex
	VRF       int    // ifindex of the VRF that the interface is in, 0 for none
	MTU       int    // bytes, the least on the paths that packets take
	MTUFrom   string // the origin of the MTU, in words: "eth0", "tun0, by which the route to 192.0.2.2 leaves,"
	// public, at most one per family, never empty; the first is of the family that carries the traffic
	Addrs   []netip.Addr
	Own     []netip.Addr // the host's own address for each of Addrs, different behind NAT; zero for none
	Reason  string       // why this one, in words
	Devices []string     // devices that the MTU depends on, Interface included, sorted
	Down    bool         // the interface is down, and was named
	ToPeers bool         // packets to most of the other hosts leave through the interface, as far as they are known

	Ports map[uint16]uint16 // as config.Underlay.PublicPorts
}

// Select examines the host in the calling thread's network namespace and chooses: the first of u.Interfaces that
// exists; else the first of u.InterfaceRegex that matches an interface's name or address; else the interface that
// reaches u.CanReach; and only when none of these is set, that of the default route. PublicIP and PublicIPv6 replace
// the addresses found, not the interface.
//
// Interfaces that are down, loopback, or leno's own are taken only when u.Interfaces names them. Errors wrap ErrNone
// when nothing fits.
//
// IPv4 carries the traffic where the host has it. A setting that names or matches an IPv6 address selects IPv6.
func Select(u config.Underlay, need Need) (Choice, error) {
	var public Public
	for _, p := range []struct {
		setting, value string
		wanted, v6     bool
		into           *netip.Addr
	}{
		{"underlay.public_ip", u.PublicIP, need.IPv4, false, &public.IPv4},
		{"underlay.public_ipv6", u.PublicIPv6, need.IPv6, true, &public.IPv6},
	} {
		if p.value == "" || !p.wanted {
			continue
		}
		text, err := evaluate(p.value)
		if err == nil {
			*p.into, err = parsePublic(text, p.v6)
		}
		if err != nil {
			return Choice{}, fmt.Errorf("%s: %w", p.setting, err)
		}
	}
	k, err := open()
	if err != nil {
		return Choice{}, fmt.Errorf("look at the host's interfaces: %w", err)
	}
	defer k.nl.Close()
	host, err := k.look(u.CanReach)
	if err != nil {
		return Choice{}, fmt.Errorf("look at the host's interfaces: %w", err)
	}
	choice, err := choose(host, u, need, public)
	if err != nil {
		return Choice{}, err
	}
	choice.Ports = u.PublicPorts
	paths := k.paths(host, choice, destinations(choice, u, need.Peers))
	link, _ := host.link(choice.Index)
	choice.ToPeers = link.Carrier && leadsToMost(link.Index, paths)
	return measure(host, choice, paths), nil
}

// leadsToMost reports whether most of the paths leave through an interface.
func leadsToMost(link int, paths []Path) bool {
	through := 0
	for _, p := range paths {
		if slices.Contains(p.Hops, link) {
			through++
		}
	}
	return 2*through > len(paths)
}

// FollowsDefaultRoute reports whether the settings select no interface, so that it is that of the default route.
func FollowsDefaultRoute(u config.Underlay) bool {
	return len(u.Interfaces) == 0 && len(u.InterfaceRegex) == 0 && !u.CanReach.IsValid()
}

// destinations returns the addresses whose paths count: those of other hosts in the family that carries the traffic,
// and u.CanReach.
func destinations(c Choice, u config.Underlay, peers []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range peers {
		if a.Is6() == c.Addrs[0].Is6() {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	out = slices.Compact(out)
	out = out[:min(len(out), maxPaths)]
	if u.CanReach.IsValid() && u.CanReach.Is6() == c.Addrs[0].Is6() {
		out = append(out, u.CanReach)
	}
	return out
}

// Names reports whether the settings name an interface, or match its name. The choice may change when that interface
// changes.
func Names(u config.Underlay, link string) bool {
	return slices.Contains(u.Interfaces, link) || slices.ContainsFunc(u.InterfaceRegex, func(expr string) bool {
		matched, err := regexp.MatchString(expr, link)
		return err == nil && matched
	})
}
