package cni

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/lenonet/leno/e2e/lab"
)

// TestBridge checks what happens to a host's bridges when the subnet or the MTU changes. There is
// no agent.
func TestBridge(t *testing.T) {
	s := newSite(t, lab.Options{Hosts: 1, NoConsul: true})
	r := s.runtimes[0]
	write := func(third, mtu int) {
		t.Helper()
		must(t, os.WriteFile(r.subnetFile("default"), fmt.Appendf(nil, "LENO_NETWORK=10.5.0.0/16\nLENO_SUBNET=10.5.%d.1/24\n"+
			"LENO_IPV6_NETWORK=fd00:5::/48\nLENO_IPV6_SUBNET=fd00:5:0:%x::1/64\nLENO_MTU=%d\nLENO_IPMASQ=true\n", third, third, mtu), 0o644))
	}
	show := func(words ...string) string {
		t.Helper()
		out, err := r.Exec(s.ctx, append([]string{"ip"}, words...)...)
		must(t, err)
		return out
	}
	on := func(bridge, want string) {
		t.Helper()
		var got []string
		for _, word := range strings.Fields(show("-o", "addr", "show", "dev", bridge, "scope", "global")) {
			if p, err := netip.ParsePrefix(word); err == nil {
				got = append(got, p.String())
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("on %s: %v, want %s", bridge, got, want)
		}
	}
	def := conf("x", `,"network":"default"`)
	named := func(bridge string) string {
		return conf("x-"+bridge, fmt.Sprintf(`,"network":"default","delegate":{"bridge":%q}`, bridge))
	}

	// The first container can use its gateway at once, also over IPv6 with the kernel's default
	// duplicate address detection.
	_, err := r.Exec(s.ctx, "sysctl", "-qw", "net.ipv6.conf.all.accept_dad=1", "net.ipv6.conf.default.accept_dad=1")
	must(t, err)
	write(34, 1450)
	first := s.added(t, r, def)
	if tentative := show("-6", "addr", "show", "dev", "cni-default", "scope", "global", "tentative"); tentative != "" {
		t.Errorf("not to be used yet: %s", tentative)
	}
	p, err := first.Ping(s.ctx, netip.MustParseAddr("fd00:5:0:22::1"), lab.PingOptions{Timeout: 30 * time.Second})
	if must(t, err); p.Received == 0 {
		t.Errorf("the gateway does not answer: %s", show("addr", "show", "dev", "cni-default"))
	}
	on("cni-default", "10.5.34.1/24 fd00:5:0:22::1/64")

	// The bridge's MTU follows the network's, down and up.
	for _, mtu := range []int{1300, 1450} {
		write(34, mtu)
		s.added(t, r, def) // and keeps it: by itself a bridge takes the smallest MTU of its ports
		if link := show("link", "show", "cni-default"); !strings.Contains(link, fmt.Sprintf("mtu %d ", mtu)) {
			t.Errorf("not the MTU %d: %s", mtu, link)
		}
	}

	// Addresses that other programs put on their own bridges stay, even within the network's range.
	for bridge, addr := range map[string]string{"br6": "fd00:5:0:c8::1/64", "br4": "10.5.200.1/24"} {
		show("link", "add", bridge, "type", "bridge")
		show("addr", "add", addr, "dev", bridge, "nodad")
		show("link", "set", bridge, "up")
	}
	must(t, s.container(t, r, named("br6")).add())
	on("br6", "10.5.34.1/24 fd00:5:0:22::1/64 fd00:5:0:c8::1/64")
	fails(t, s.container(t, r, named("br4")).add(), types.ErrInternal, "br4", "already has an IP address")
	on("br4", "10.5.200.1/24")

	// The subnet changes and no new container comes: the last container takes the gateway with it.
	write(99, 1450)
	must(t, first.del())
	on("cni-default", "")
	must(t, s.container(t, r, named("br6")).add())
	on("br6", "10.5.99.1/24 fd00:5:0:63::1/64 fd00:5:0:c8::1/64")
	next := s.added(t, r, def)
	on("cni-default", "10.5.99.1/24 fd00:5:0:63::1/64")
	write(98, 1450)
	must(t, r.gc(r.cni, next.list, next))
	on("cni-default", "")
}
