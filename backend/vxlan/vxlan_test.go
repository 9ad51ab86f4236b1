package vxlan

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/backendtest"
)

func bad(good backend.Peer) map[string]backend.Peer {
	with := func(change func(p *backend.Peer)) backend.Peer {
		p := good
		change(&p)
		return p
	}
	attrs := func(format string, args ...any) backend.Peer {
		return with(func(p *backend.Peer) { p.Attributes = json.RawMessage(fmt.Sprintf(format, args...)) })
	}
	return map[string]backend.Peer{
		"attributes are not valid":      attrs(`{"vni":"one"}`),
		"attributes lack vtep_mac":      attrs(`{"vni":1,"port":8472}`),
		"is not an address of a device": attrs(`{"vni":1,"port":8472,"vtep_mac":"ff:ff:ff:ff:ff:ff"}`),
		"vni is 2":                      attrs(`{"vni":2,"port":8472,"vtep_mac":"0a:58:00:00:00:01"}`),
		"port is 4789":                  attrs(`{"vni":1,"port":4789,"vtep_mac":"0a:58:00:00:00:01"}`),
		"that of node host-2 too":       attrs(`{"vni":1,"port":8472,"vtep_mac":%q}`, vtepMAC("node-2", "test")),
		"that of this host too":         attrs(`{"vni":1,"port":8472,"vtep_mac":%q}`, vtepMAC("node-1", "test")),
		"public address":                with(func(p *backend.Peer) { p.PublicIPs = nil }),
		"is our own":                    with(func(p *backend.Peer) { p.Subnets = []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")} }),
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]backendtest.Suite{
		"IPv4 underlay":  {Crowd: 1000},
		"IPv6 underlay":  {IPv6Underlay: true},
		"direct routing": {Options: `{"direct_routing":true}`, WiderPaths: true},
		"other options":  {Options: `{"vni":16777215,"port":4789,"gbp":true,"checksum_offload":"off"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.Type = Type()
			s.Partners = []backendtest.Partner{{Type: Type(), Options: `{"vni":77,"gbp":false}`}}
			if s.Options == "" {
				s.Bad = bad
			}
			backendtest.Run(t, s)
		})
	}
}
