// Package underlay finds the interface and the addresses that carry traffic
// between hosts. It owns the order in which the settings are tried and the
// explanation of the outcome; it changes nothing on the host and knows no
// backend.
package underlay

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/lenonet/leno/agent/config"
)

// ErrNone says that no interface of the host fits. The text around it names
// every interface, its addresses, and why it was left out.
var ErrNone = errors.New("no interface fits")

// Need is what the networks ask of the underlay. At least one family is set.
type Need struct {
	IPv4, IPv6 bool           // families that may carry the traffic; one of them is enough
	Overlay    []netip.Prefix // the networks' pools: an address in them is never one of the underlay
}

// Choice is the host's place on the network between hosts.
type Choice struct {
	Interface string
	Index     int          // ifindex
	MTU       int          // bytes, of the device that really sends
	Addrs     []netip.Addr // at most one a family, IPv4 first, never empty
	Reason    string       // why this one, for people
}

// Select looks at the host, on the calling thread's network namespace, and
// picks: the first of u.Interfaces that exists; else the first of
// u.InterfaceRegex that matches an interface's name or address; else the interface
// that reaches u.CanReach; and only when none of these is set, that of the
// default route. PublicIP and PublicIPv6 replace the addresses found, not the
// interface.
//
// Interfaces that are down, loopback, or leno's own are taken only when
// u.Interfaces names them. Errors wrap ErrNone when nothing fits.
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
	host, err := look(u.CanReach)
	if err != nil {
		return Choice{}, fmt.Errorf("look at the host's interfaces: %w", err)
	}
	return choose(host, u, need, public)
}
