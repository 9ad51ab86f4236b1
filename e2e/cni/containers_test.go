package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/e2e/lab"
)

// networks are the agents' networks: one with both families, one per single family, and one with
// room for five containers per host.
var networks = map[string]string{
	"default": `
  ipv4 { prefix = "10.5.0.0/16" }
  ipv6 { prefix = "fd00:5::/48" }
  backend "vxlan" {}
  ip_masq = true`,
	"blue": `
  ipv4 { prefix = "10.6.0.0/16" }
  backend "vxlan" { vni = 2 }`,
	"green": `
  ipv6 { prefix = "fd00:7::/48" }
  backend "vxlan" { vni = 3 }`,
	"tiny": `
  ipv4 {
    prefix     = "10.8.0.0/24"
    subnet_len = 29
  }
  backend "vxlan" { vni = 4 }`,
}

// config returns the agent's configuration, with subnet files where they are on a real machine.
func (r *runtime) config() string {
	blocks := []string{"lease {\n  ttl = \"10s\"\n}"}
	for name, body := range networks {
		blocks = append(blocks, fmt.Sprintf("network %q {%s\n  subnet_file = %q\n}\n", name, body, r.subnetFile(name)))
	}
	return r.Config(blocks...)
}

func (r *runtime) subnetFile(network string) string {
	return filepath.Join(r.dir, "run/leno", network+".env")
}

func (r *runtime) facts(t *testing.T, network string) state.SubnetFile {
	t.Helper()
	text, err := os.ReadFile(r.subnetFile(network))
	must(t, err)
	f, err := state.ParseSubnetFile(string(text))
	must(t, err)
	return f
}

// example returns the configuration that the documentation shows.
func example(t *testing.T) string {
	t.Helper()
	return exampleFile(t, "leno.conflist")
}

func exampleFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../examples/cni/" + name)
	must(t, err)
	return string(text)
}

// TestContainers covers everything that works while the agents run, and then what works without
// them.
func TestContainers(t *testing.T) {
	s := newSite(t, lab.Options{Hosts: 2})
	a, b := s.runtimes[0], s.runtimes[1]
	for _, r := range s.runtimes {
		must(t, r.StartAgent(r.config()))
	}
	// The agents have only just been started; ADD waits for them, for as long as they may need on a busy machine.
	patient := strings.Replace(example(t), `"network": "default"`, `"network": "default", "wait": "5m"`, 1)
	one, two := s.container(t, a, patient), s.container(t, b, patient)
	two.caps = map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}
	var g errgroup.Group
	g.Go(one.add)
	g.Go(two.add)
	must(t, g.Wait())
	for _, r := range s.runtimes {
		must(t, r.WaitReady(s.ctx))
	}

	t.Run("work", func(t *testing.T) {
		for name, do := range map[string]func(*testing.T){
			"two hosts":      func(t *testing.T) { s.twoHosts(t, one, two) },
			"masquerade":     func(t *testing.T) { s.masquerade(t, one, two) },
			"wishes":         func(t *testing.T) { s.wishes(t, b) },
			"published port": func(t *testing.T) { s.published(t, a, two) },
			"networks":       s.severalNetworks,
			"ptp":            s.ptp,
			"interfaces":     func(t *testing.T) { s.secondInterface(t, one, two) },
			"at once":        func(t *testing.T) { s.atOnce(t, a) },
			"exhausted":      func(t *testing.T) { s.exhausted(t, a) },
			"crash":          func(t *testing.T) { s.crash(t, b) },
			"cnitool":        func(t *testing.T) { s.cnitool(t, b) },
			"versions":       func(t *testing.T) { s.versions(t, b) },
			"subnet files":   func(t *testing.T) { s.subnetFiles(t, a) },
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				do(t)
			})
		}
	})
	t.Run("another subnet", func(t *testing.T) { s.anotherSubnet(t, a, one, two) })
	t.Run("no agent", func(t *testing.T) { s.noAgent(t, b) })
	t.Run("reboot", func(t *testing.T) { s.reboot(t, b, two) })
}

// twoHosts checks that containers on two hosts reach each other in both families with the network's
// MTU, and that CHECK finds no problem.
func (s *site) twoHosts(t *testing.T, one, two *container) {
	one.reaches(t, two)
	two.reaches(t, one)
	for _, c := range []*container{one, two} {
		f := c.r.facts(t, "default")
		for i, addr := range c.addrs() {
			if len(c.addrs()) != 2 || !f.Gateways[i].Contains(addr) {
				t.Errorf("%s has %v out of %v", c.Name, c.addrs(), f.Gateways)
			}
		}
		link, err := c.Exec(s.ctx, "ip", "link", "show", "eth0")
		must(t, err)
		if !strings.Contains(link, fmt.Sprintf("mtu %d ", f.MTU)) {
			t.Errorf("not the MTU %d: %s", f.MTU, link)
		}
		for _, family := range []string{"-4", "-6"} {
			route, err := c.Exec(s.ctx, "ip", family, "route", "show", "default")
			must(t, err)
			if !strings.Contains(route, "default via ") {
				t.Errorf("no default route: %q", route)
			}
		}
		must(t, c.check())
		fails(t, c.add(), 102, "has interface eth0", "DEL it first")
	}
}

// severalNetworks attaches containers of two more networks to the same hosts, one of each family.
// Each network has its own bridge and address store, and no container is on the other network's
// bridge.
func (s *site) severalNetworks(t *testing.T) {
	for _, network := range []string{"blue", "green"} {
		c := s.added(t, s.runtimes[0], conf("net-"+network, fmt.Sprintf(`,"network":%q`, network)))
		d := s.added(t, s.runtimes[1], conf("net-"+network, fmt.Sprintf(`,"network":%q`, network)))
		c.reaches(t, d)
		f := c.r.facts(t, network)
		if len(c.addrs()) != 1 || !f.Gateways[0].Contains(c.addrs()[0]) {
			t.Errorf("%v is not of %v", c.addrs(), f.Gateways)
		}
		if got := c.r.store(t, stateDir, network); !slices.Contains(got, c.addrs()[0].String()) {
			t.Errorf("store of %s: %v", network, got)
		}
		on, err := c.r.Exec(s.ctx, "ip", "-o", "addr", "show", "dev", "cni-"+network, "scope", "global")
		must(t, err)
		if !strings.Contains(on, f.Gateways[0].String()) || strings.Count(on, "\n") != 1 {
			t.Errorf("on the bridge of %s: %s", network, on)
		}
		must(t, c.del())
		must(t, c.del())
		if got := c.r.store(t, stateDir, network); slices.Contains(got, c.addrs()[0].String()) {
			t.Errorf("store of %s after DEL: %v", network, got)
		}
	}
	// The configuration names no network, and there are four.
	fails(t, s.container(t, s.runtimes[0], conf("any", "")).add(), types.ErrInvalidNetworkConfig, `name one as "network"`, "blue, default, green, tiny")
}

// atOnce checks that twenty containers added at the same time, with two configurations of one
// network, get twenty addresses.
func (s *site) atOnce(t *testing.T, r *runtime) {
	var all []*container
	for i := range 20 {
		all = append(all, s.container(t, r, conf(fmt.Sprintf("at-once-%d", i%2), `,"network":"default"`)))
	}
	each := func(do func(*container) error) {
		var g errgroup.Group
		for _, c := range all {
			g.Go(func() error { return do(c) })
		}
		must(t, g.Wait())
	}
	each((*container).add)
	seen := map[netip.Addr]bool{}
	for _, c := range all {
		for _, a := range c.addrs() {
			seen[a] = true
		}
	}
	if len(seen) != 2*len(all) {
		t.Errorf("%d addresses for %d containers", len(seen), len(all))
	}
	each((*container).del)
	for _, taken := range r.store(t, stateDir, "default") {
		if seen[netip.MustParseAddr(taken)] {
			t.Errorf("%s is taken after DEL", taken)
		}
	}
}

// exhausted checks that ADD reports when no address is left, and that GC frees the addresses of
// containers that are gone, even if the runtime has forgotten them.
func (s *site) exhausted(t *testing.T, r *runtime) {
	text := conf("tiny", `,"network":"tiny"`)
	var all []*container
	for range 5 {
		all = append(all, s.added(t, r, text))
	}
	more := s.container(t, r, text)
	fails(t, more.add(), 101, "network tiny: no address is left", r.facts(t, "tiny").Subnets()[0].String(), "GC", "larger subnets")
	must(t, more.del())
	must(t, r.gc(r.withoutMemory(t), more.list, all[0], all[1]))
	if got := r.store(t, stateDir, "tiny"); len(got) != 2 {
		t.Errorf("taken after GC: %v", got)
	}
	links, err := all[2].Exec(s.ctx, "ip", "-br", "link")
	must(t, err)
	if strings.Contains(links, "eth0") {
		t.Errorf("a container whose address was released has its interface still: %s", links)
	}
	all[0].reaches(t, all[1])
	all[2].notReached(t, all[0])
	must(t, more.add())

	// A runtime without GC: addresses of containers that have certainly ended are freed when they
	// are needed.
	for range 2 {
		s.added(t, r, text)
	}
	must(t, s.RemoveNamespace(s.ctx, more.Namespace))
	last := s.container(t, r, conf("tiny-too", `,"network":"tiny"`))
	// The kernel takes a moment to remove what was in the namespace; after that, one ADD is enough.
	link := more.result.Interfaces[1].Name
	must(t, lab.WaitFor(s.ctx, "the end of "+link, func(ctx context.Context) error {
		if _, err := r.Exec(ctx, "ip", "link", "show", link); err != nil {
			return nil
		}
		return errors.New("is there still")
	}))
	must(t, last.add())
	fails(t, s.container(t, r, text).add(), 101)
}

// notReached checks that a container does not answer another one.
func (c *container) notReached(t *testing.T, from *container) {
	t.Helper()
	p, err := from.Ping(c.r.ctx, c.addrs()[0], lab.PingOptions{})
	must(t, err)
	if p.Received > 0 {
		t.Errorf("%s from %s: %+v", c.addrs()[0], from.Name, p)
	}
}

// subnetFiles checks that readers written for flannel accept the subnet files that agents wrote for
// both families and for each alone.
func (s *site) subnetFiles(t *testing.T, r *runtime) {
	for network := range networks {
		text, err := os.ReadFile(r.subnetFile(network))
		must(t, err)
		asPlugin(t, string(text), r.facts(t, network))
		asScript(t, r.subnetFile(network), r.facts(t, network))
	}
}
