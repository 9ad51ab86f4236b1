package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/e2e/lab"
)

// raw is the contender without an overlay: host to host. leno's other contenders are named after
// their backends.
const (
	raw    = "raw"
	hostGW = "host-gw"
	vxlan  = "vxlan"
	udp    = "udp"
	wg     = "wireguard"
)

// known returns all contenders, with which a run that selects none begins.
func known() []string { return []string{raw, hostGW, vxlan, udp, wg} }

type logger func(format string, args ...any)

// A bench holds all contenders, set up and carrying packets.
type bench struct {
	*lab.Lab
	options
	contenders []*contender
	log        logger
}

// A contender is one way to send packets from host to host.
type contender struct {
	name     string
	command  string // the shell command of another overlay
	mtu      int    // MTU of the containers in bytes, or of the wire for raw
	from, to endpoint
	// hosts run the overlay's processes and nothing else; nil for raw.
	hosts     []*lab.Host
	processes []*lab.Process // started for the contender
}

// An endpoint is where the measuring programs run.
type endpoint struct {
	*lab.Namespace
	addr   netip.Addr
	device string // the device that has addr
}

// newBench sets up all contenders and waits until each carries packets.
func newBench(ctx context.Context, o options, log logger) (_ *bench, err error) {
	names := slices.Clone(o.contenders)
	for _, p := range o.peers {
		names = append(names, p.name)
	}
	log("two hosts each for %s", strings.Join(names, ", "))
	l, err := lab.New(ctx, lab.Options{
		Name: "bench", Hosts: 2 * len(names), Leno: o.leno, Consul: o.consul,
		NoConsul: !slices.ContainsFunc(o.contenders, func(name string) bool { return name != raw }),
	})
	if err != nil {
		return nil, err
	}
	b := &bench{Lab: l, options: o, log: log}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	for i, name := range names {
		hosts := l.Hosts[2*i : 2*i+2]
		wire, err := l.Wire(ctx, hosts[0], hosts[1])
		if err != nil {
			return nil, err
		}
		c, err := b.setUp(ctx, name, hosts, wire)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		b.contenders = append(b.contenders, c)
	}
	return b, nil
}

// setUp sets up one contender and returns when it carries packets.
func (b *bench) setUp(ctx context.Context, name string, hosts []*lab.Host, wire *lab.Wire) (c *contender, err error) {
	for _, p := range b.peers {
		if p.name == name {
			return p.setUp(ctx, hosts, wire)
		}
	}
	if name == raw {
		c = &contender{
			name: name, mtu: wire.MTU,
			from: endpoint{hosts[0].Namespace, wire.Addrs[0][0], wire.Device},
			to:   endpoint{hosts[1].Namespace, wire.Addrs[1][0], wire.Device},
		}
	} else if c, err = b.setUpBackend(ctx, name, hosts, wire.Device); err != nil {
		return nil, err
	}
	return c, lab.WaitFor(ctx, "a ping to be answered", c.answers)
}

func (b *bench) setUpBackend(ctx context.Context, backend string, hosts []*lab.Host, device string) (*contender, error) {
	for _, h := range hosts {
		if err := h.StartAgent(config(h, backend, device, b.masquerade)); err != nil {
			return nil, err
		}
	}
	for _, h := range hosts {
		if err := h.WaitReady(ctx); err != nil {
			return nil, err
		}
	}
	c, err := between(ctx, backend, hosts)
	if err != nil {
		return nil, err
	}
	c.processes = []*lab.Process{hosts[0].Agent(), hosts[1].Agent()}
	return c, nil
}

// close ends everything. If another overlay has to be killed, that is only logged, because the
// results stay valid.
func (b *bench) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, p := range b.peers {
		if err := p.end(ctx); err != nil {
			b.log("%v", err)
		}
	}
	return b.Close()
}

// config returns the default configuration, except that the underlay is the given device.
func config(h *lab.Host, backend, device string, masquerade bool) string {
	pool := 5 + slices.Index(known()[1:], backend) // each network has its own pool
	text := h.Config(
		fmt.Sprintf("underlay {\n  interfaces = [%q]\n}\n", device),
		h.Network(backend, fmt.Sprintf("  ipv4 {\n    prefix = \"10.%d.0.0/16\"\n  }\n  backend %q {}\n  ip_masq = %t", pool, backend, masquerade)))
	return strings.Replace(text, `"DEBUG"`, `"INFO"`, 1)
}

// between adds a container to each host, using the host's subnet file.
func between(ctx context.Context, name string, hosts []*lab.Host) (*contender, error) {
	c := &contender{name: name, hosts: hosts}
	for i, end := range []*endpoint{&c.from, &c.to} {
		container, err := hosts[i].AddContainer(ctx, name)
		if err != nil {
			return nil, err
		}
		*end = endpoint{container.Namespace, container.Addrs[0], "eth0"}
		c.mtu = container.MTU
	}
	return c, nil
}

// answers returns nil when a ping between the endpoints is answered.
func (c *contender) answers(ctx context.Context) error {
	r, err := c.from.Ping(ctx, c.to.addr, lab.PingOptions{})
	if err == nil && r.Received == 0 {
		err = errors.New("a ping had no answer")
	}
	return err
}

// running returns nil while all processes of the contender are running.
func (c *contender) running() error {
	for i, p := range c.processes {
		if !p.IsRunning() {
			return fmt.Errorf("it ended on host %d; its output:\n%s", i+1, p.Output())
		}
	}
	return nil
}
