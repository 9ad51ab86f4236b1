package cni

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestAdvertisedRoute checks that ADD and STATUS refuse a configuration with which the first
// container of a network with IPv6 would make the bridge plugin enable forwarding, so that the
// kernel drops the default route it learnt from a router. The error says what to do.
func TestAdvertisedRoute(t *testing.T) {
	s := newSite(t, lab.Options{Hosts: 1, NoConsul: true})
	r := s.runtimes[0]
	for network, text := range map[string]string{
		"default": "LENO_NETWORK=10.5.0.0/16\nLENO_SUBNET=10.5.34.1/24\nLENO_IPV6_NETWORK=fd00:5::/48\nLENO_IPV6_SUBNET=fd00:5:0:22::1/64\nLENO_MTU=1450\n",
		"four":    "LENO_NETWORK=10.6.0.0/16\nLENO_SUBNET=10.6.34.1/24\nLENO_MTU=1450\n",
	} {
		must(t, os.WriteFile(r.subnetFile(network), []byte(text), 0o644))
	}
	ip := func(words ...string) string {
		t.Helper()
		out, err := r.Exec(s.ctx, append([]string{"ip", "-6"}, words...)...)
		must(t, err)
		return out
	}
	sysctl := func(words ...string) string {
		t.Helper()
		out, err := r.Exec(s.ctx, append([]string{"sysctl", "-n"}, words...)...)
		must(t, err)
		return strings.TrimSpace(out)
	}
	learns := s.router(t, r, "up0")
	there := func(when string) {
		t.Helper()
		if got := ip("route", "show", "default"); !strings.Contains(got, "dev up0 proto ra") {
			t.Errorf("%s there is no default route by up0 any more: %q", when, got)
		}
	}

	sysctl("-w", "net.ipv6.conf.all.forwarding=0", "net.ipv6.conf.up0.accept_ra=1")
	learns()
	const why = "net.ipv6.conf.all.forwarding is 0, and switching it on would take away the routes that routers advertise on up0: set net.ipv6.conf.up0.accept_ra to 2"
	for name, more := range map[string]string{
		"bridge":         `,"network":"default"`,
		"another bridge": `,"network":"default","delegate":{"bridge":"br7","isDefaultGateway":false}`,
		"ptp":            `,"network":"default","delegate":{"type":"ptp"}`,
	} {
		c := s.container(t, r, conf("x", more))
		fails(t, c.add(), 104, "network default: ", why)
		fails(t, r.cni.GetStatusNetworkList(s.ctx, c.list), 50, "network default: ", why)
		there(name + " was refused and")
		must(t, c.del())
		if links := ip("-br", "link", "show", "type", "bridge"); links != "" {
			t.Errorf("%s was made: %s", name, links)
		}
	}
	if got := sysctl("net.ipv6.conf.all.forwarding"); got != "0" {
		t.Errorf("forwarding is %s", got)
	}
	if got := r.store(t, stateDir, "default"); len(got) > 0 {
		t.Errorf("taken: %v", got)
	}
	// Configurations that do not need IPv6 forwarding are accepted.
	for name, more := range map[string]string{
		"a network without IPv6": `,"network":"four"`,
		"no gateway":             `,"network":"default","delegate":{"isGateway":false}`,
	} {
		c := s.added(t, r, conf("y", more))
		must(t, r.cni.GetStatusNetworkList(s.ctx, c.list))
		there(name + " was added and")
		must(t, c.del())
	}

	sysctl("-w", "net.ipv6.conf.up0.accept_ra=2")
	c := s.container(t, r, conf("x", `,"network":"default"`))
	must(t, r.cni.GetStatusNetworkList(s.ctx, c.list))
	must(t, c.add())
	if got := sysctl("net.ipv6.conf.all.forwarding"); got != "1" {
		t.Errorf("forwarding is %s after ADD", got)
	}
	there("with accept_ra=2 a container was added and")
	ip("route", "del", "default", "proto", "ra")
	learns()
}

// TestUplinkBridge uses a configuration that names the bridge of the host's own uplink. The bridge
// plugin sets its accept_ra to 0 and then enables forwarding. The host must keep its route and keep
// listening to the router, even when several containers start at the same time.
func TestUplinkBridge(t *testing.T) {
	s := newSite(t, lab.Options{Hosts: 1, NoConsul: true})
	r := s.runtimes[0]
	must(t, os.WriteFile(r.subnetFile("default"), []byte("LENO_NETWORK=10.5.0.0/16\nLENO_SUBNET=10.5.34.1/24\nLENO_IPV6_NETWORK=fd00:5::/48\nLENO_IPV6_SUBNET=fd00:5:0:22::1/64\nLENO_MTU=1450\n"), 0o644))
	run := func(words ...string) string {
		t.Helper()
		out, err := r.Exec(s.ctx, words...)
		must(t, err)
		return strings.TrimSpace(out)
	}
	run("ip", "link", "add", "br0", "up", "type", "bridge")
	learns := s.router(t, r, "br0")
	run("sysctl", "-qw", "net.ipv6.conf.all.forwarding=0", "net.ipv6.conf.br0.accept_ra=2")
	learns()
	const accepts, route = "net.ipv6.conf.br0.accept_ra", "default via"
	var g errgroup.Group
	var all []*container
	for range 4 {
		c := s.container(t, r, conf("x", `,"network":"default","delegate":{"bridge":"br0"}`))
		all = append(all, c)
		g.Go(c.add)
	}
	must(t, g.Wait())
	if got := run("sysctl", "-n", accepts); got != "2" {
		t.Errorf("%s is %s after ADD", accepts, got)
	}
	if got := run("ip", "-6", "route", "show", "default", "proto", "ra"); !strings.Contains(got, route) {
		t.Errorf("the host's default route after ADD: %q", got)
	}
	for _, c := range all {
		must(t, c.del())
	}
	if got := run("sysctl", "-n", accepts); got != "2" {
		t.Errorf("%s is %s after DEL", accepts, got)
	}
}

// router connects a device of the host to a router. The returned function makes the router
// advertise itself until the host has a default route through it.
func (s *site) router(t *testing.T, r *runtime, link string) (learns func()) {
	t.Helper()
	router, err := s.AddNamespace(s.ctx, "router-"+link)
	must(t, err)
	end := link
	if strings.HasPrefix(link, "br") { // a bridge, which gets the device as a port
		end = "up0"
	}
	_, err = router.Exec(s.ctx, "ip", "link", "add", "down0", "up", "type", "veth", "peer", "name", end, "netns", r.Namespace.Name)
	must(t, err)
	if end != link {
		_, err = r.Exec(s.ctx, "ip", "link", "set", end, "master", link)
		must(t, err)
	}
	_, err = r.Exec(s.ctx, "ip", "link", "set", end, "up")
	must(t, err)
	return func() {
		t.Helper()
		must(t, lab.WaitFor(s.ctx, "a default route by "+link, func(ctx context.Context) error {
			err := router.Do(func() error { return nstest.Advertise("down0", 30*time.Minute, netip.Prefix{}) })
			if out, errShow := r.Exec(ctx, "ip", "-6", "route", "show", "default", "proto", "ra"); out == "" || errShow != nil {
				return errors.Join(err, errShow, errors.New("none yet"))
			}
			return nil
		}))
	}
}
