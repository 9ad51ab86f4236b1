package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/e2e/lab"
)

// raw is the contender without an overlay: host to host. The others of leno are
// named for their backends.
const raw = "raw"

var backends = []string{"host-gw", "vxlan", "udp"}

func contains(all []string, one string) bool { return slices.Contains(all, one) }

type logger func(format string, args ...any)

// bench is all contenders, up and carrying.
type bench struct {
	*lab.Lab
	options
	contenders []*contender
}

// contender is one way from host to host.
type contender struct {
	name     string
	mtu      int // bytes, of the containers; of the wire for raw
	from, to endpoint
	// hosts run the overlay's processes and nothing else; nil for raw.
	hosts []*lab.Host
}

// endpoint is where programs that measure run.
type endpoint struct {
	*lab.Namespace
	addr   netip.Addr
	device string // that addr is on
}

// newBench lays all contenders out and waits until each carries packets.
func newBench(ctx context.Context, o options, log logger) (_ *bench, err error) {
	log("two hosts each for %s", strings.Join(o.contenders, ", "))
	l, err := lab.New(ctx, lab.Options{Name: "bench", Hosts: 2 * len(o.contenders), Leno: o.leno, Consul: o.consul})
	if err != nil {
		return nil, err
	}
	b := &bench{Lab: l, options: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	for i, name := range o.contenders {
		hosts := l.Hosts[2*i : 2*i+2]
		wire, err := l.Wire(ctx, hosts[0], hosts[1])
		if err != nil {
			return nil, err
		}
		c, err := b.setUp(ctx, name, hosts, wire)
		if err == nil {
			err = c.await(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		b.contenders = append(b.contenders, c)
	}
	return b, nil
}

func (b *bench) setUp(ctx context.Context, name string, hosts []*lab.Host, wire *lab.Wire) (*contender, error) {
	if name == raw {
		return &contender{
			name: name, mtu: wire.MTU,
			from: endpoint{hosts[0].Namespace, wire.Addrs[0][0], wire.Device},
			to:   endpoint{hosts[1].Namespace, wire.Addrs[1][0], wire.Device},
		}, nil
	}
	for _, h := range hosts {
		if err := h.StartAgent(config(h, name, wire.Device, b.masquerade)); err != nil {
			return nil, err
		}
	}
	for _, h := range hosts {
		if err := h.WaitReady(ctx); err != nil {
			return nil, err
		}
	}
	return between(ctx, name, hosts)
}

// config leaves all but the cable as it is by default.
func config(h *lab.Host, backend, device string, masquerade bool) string {
	text := h.Config(
		fmt.Sprintf("underlay {\n  interfaces = [%q]\n}\n", device),
		h.Network(backend, fmt.Sprintf("  ipv4 {\n    prefix = \"10.5.0.0/16\"\n  }\n  backend %q {}\n  ip_masq = %t", backend, masquerade)))
	return strings.Replace(text, `"DEBUG"`, `"INFO"`, 1)
}

// between puts a container on each host, by the subnet file there.
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

// await waits until packets cross.
func (c *contender) await(ctx context.Context) error {
	return lab.WaitFor(ctx, "a ping to be answered", func(ctx context.Context) error {
		r, err := c.from.Ping(ctx, c.to.addr, lab.PingOptions{})
		if err == nil && r.Received == 0 {
			err = errors.New("no answer")
		}
		return err
	})
}
