package cni

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
)

// masquerade checks that the agent masquerades: containers see each other's addresses, and other
// machines see the host's.
func (s *site) masquerade(t *testing.T, one, two *container) {
	one.reaches(t, two) // an agent is ready before it has routes to its peers
	for i, addr := range two.addrs() {
		for _, tt := range []struct {
			at   *lab.Namespace
			addr netip.Addr
			want netip.Addr
		}{
			{two.Namespace, addr, one.addrs()[i]},
			{two.r.Namespace, two.r.Addrs[i], one.r.Addrs[i]},
		} {
			serve(t, tt.at, netip.AddrPortFrom(tt.addr, 81), func(conn net.Conn) string { return conn.RemoteAddr().String() })
			text, err := ask(s.ctx, one.Namespace, netip.AddrPortFrom(tt.addr, 81))
			must(t, err)
			if from, err := netip.ParseAddrPort(text); err != nil || from.Addr().Unmap() != tt.want {
				t.Errorf("%s is seen from %s as %s, not %s", one.Name, tt.addr, text, tt.want)
			}
		}
	}
}

// serve answers every connection until the test ends.
func serve(t *testing.T, at *lab.Namespace, addr netip.AddrPort, answer func(net.Conn) string) {
	t.Helper()
	var listener net.Listener
	must(t, at.Do(func() (err error) {
		listener, err = net.Listen("tcp", addr.String())
		return err
	}))
	var served errgroup.Group
	served.Go(func() error {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return nil // closed
			}
			_, _ = io.WriteString(conn, answer(conn))
			conn.Close()
		}
	})
	t.Cleanup(func() {
		listener.Close()
		_ = served.Wait()
	})
}

// ask connects to an address and returns the answer.
func ask(ctx context.Context, from *lab.Namespace, addr netip.AddrPort) (string, error) {
	conn, err := from.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	text, err := io.ReadAll(conn)
	return string(text), err
}

// published checks that a published port of host-b, requested from host-a, reaches the container.
func (s *site) published(t *testing.T, from *runtime, c *container) {
	for i, inside := range c.addrs() {
		serve(t, c.Namespace, netip.AddrPortFrom(inside, 80), func(net.Conn) string { return c.id })
		must(t, lab.WaitFor(s.ctx, "the published port", func(ctx context.Context) error {
			text, err := ask(ctx, from.Namespace, netip.AddrPortFrom(c.r.Addrs[i], 8080))
			if err == nil && text != c.id {
				err = fmt.Errorf("answered %q", text)
			}
			return err
		}))
	}
}

// wishes checks that the capabilities mac and ips reach the reference plugins.
func (s *site) wishes(t *testing.T, r *runtime) {
	const mac = "0a:58:0a:05:00:07"
	wanted := r.facts(t, "blue").Subnets()[0].Addr().As4()
	wanted[3] = 200
	c := s.container(t, r, conf("wishes", `,"network":"blue","capabilities":{"mac":true,"ips":true}`))
	c.caps = map[string]any{"mac": mac, "ips": []string{netip.AddrFrom4(wanted).String()}}
	must(t, c.add())
	link, err := c.Exec(s.ctx, "ip", "link", "show", "eth0")
	must(t, err)
	if c.addrs()[0] != netip.AddrFrom4(wanted) || !strings.Contains(link, mac) {
		t.Errorf("has %v: %s", c.addrs(), link)
	}
	must(t, c.del())
}

// secondInterface gives containers one more interface, in the network blue. They reach each other
// through it, and their default route stays.
func (s *site) secondInterface(t *testing.T, one, two *container) {
	var more []*container
	for _, first := range []*container{one, two} {
		c := &container{Namespace: first.Namespace, r: first.r, id: first.id, dev: "eth1", list: list(t, exampleFile(t, "leno-blue.conflist"))}
		must(t, c.add())
		more = append(more, c)
		routes, err := c.Exec(s.ctx, "ip", "-4", "route")
		must(t, err)
		gateway := c.r.facts(t, "blue").Gateways[0].Addr().String()
		if !strings.Contains(routes, "default via "+c.r.facts(t, "default").Gateways[0].Addr().String()+" dev eth0") ||
			!strings.Contains(routes, "10.6.0.0/16 via "+gateway+" dev eth1") || !strings.Contains(routes, "198.51.100.0/24 via "+gateway+" dev eth1") {
			t.Errorf("routes:\n%s", routes)
		}
		must(t, c.check())
	}
	more[0].reaches(t, more[1])
	for _, c := range more {
		must(t, c.del())
	}
}

// ptp uses another plugin than bridge to create the interfaces. Containers reach each other and get
// the routes they ask for instead of a default route.
func (s *site) ptp(t *testing.T) {
	var all []*container
	for i, routes := range []string{``, `,"ipam":{"routes":[{"dst":"10.6.0.0/16"}]}`} {
		c := s.added(t, s.runtimes[i], conf("ptp", `,"network":"blue","delegate":{"type":"ptp"}`+routes))
		all = append(all, c)
		got, err := c.Exec(s.ctx, "ip", "-4", "route")
		must(t, err)
		gateway := c.r.facts(t, "blue").Gateways[0].Addr().String()
		for _, dst := range []string{"default", "10.6.0.0/16"} {
			if want := (dst == "default") == (i == 0); strings.Contains(got, dst+" via "+gateway) != want {
				t.Errorf("route to %s wanted %t:\n%s", dst, want, got)
			}
		}
	}
	all[0].reaches(t, all[1])
	for _, c := range all {
		must(t, c.check())
		must(t, c.del())
	}
}
