package datapath

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// soon is how long a change of the underlay may take on a busy machine: less than the interval of
// the periodic check, 20 s.
const soon = 15 * time.Second

// within waits for an event that must come soon: long before the agent's own retry pauses or its
// periodic check would end.
func (w *testWorld) within(limit time.Duration, what string, check func(context.Context) error) {
	w.T.Helper()
	began := time.Now()
	w.Eventually(what, check)
	took := time.Since(began)
	w.T.Logf("%s: %s", what, took.Round(time.Millisecond))
	if took > limit {
		w.T.Errorf("%s: took %s, more than %s", what, took, limit)
	}
}

// standing returns the host's part in the network "default".
func (w *testWorld) standing(ctx context.Context, h *lab.Host) (api.Local, error) {
	status, body, err := h.Get(ctx, "/v1/network/default")
	if err != nil {
		return api.Local{}, err
	}
	var n api.Network
	if err := json.Unmarshal([]byte(body), &n); err != nil || n.Local == nil {
		return api.Local{}, fmt.Errorf("%d %s: %v", status, body, err)
	}
	return *n.Local, nil
}

// standsOn blocks until the host has the given underlay interface and first address.
func (w *testWorld) standsOn(h *lab.Host, link, addr string) {
	w.T.Helper()
	w.within(soon, fmt.Sprintf("%s on %s, %s", h.Name, link, addr), func(ctx context.Context) error {
		l, err := w.standing(ctx, h)
		if err == nil && (l.Underlay.Interface != link || len(l.Underlay.Addresses) == 0 || l.Underlay.Addresses[0].String() != addr) {
			err = fmt.Errorf("it is %+v, %s", l.Underlay, l.State)
		}
		return err
	})
}

// crosses blocks until a packet has crossed in both directions.
func (w *testWorld) crosses() {
	w.T.Helper()
	w.within(soon, "packets cross", func(ctx context.Context) error {
		for i, c := range w.Containers {
			for _, to := range w.Containers[1-i].Addrs {
				if err := c.Reach(ctx, to); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// mtu blocks until the explanation of the MTU contains why, and subnet file and device have that
// MTU.
func (w *testWorld) mtu(h *lab.Host, why string) {
	w.T.Helper()
	w.within(soon, fmt.Sprintf("%s: MTU %s", h.Name, why), func(ctx context.Context) error {
		l, err := w.standing(ctx, h)
		if err == nil && !strings.Contains(l.MTUReason, why) {
			err = fmt.Errorf("it is %s", l.MTUReason)
		}
		if err != nil {
			return err
		}
		file, err := os.ReadFile(h.SubnetFile("default"))
		if err == nil && !strings.Contains(string(file), fmt.Sprintf("LENO_MTU=%d\n", l.MTU)) {
			err = fmt.Errorf("subnet file:\n%s", file)
		}
		if err != nil {
			return err
		}
		out, err := h.Exec(ctx, "ip", "-o", "link", "show", "leno-default")
		if err == nil && !strings.Contains(out, fmt.Sprintf("mtu %d ", l.MTU)) {
			err = fmt.Errorf("device %s", out)
		}
		return err
	})
}

func (w *testWorld) ip(h *lab.Host, lines ...string) {
	w.T.Helper()
	for _, line := range lines {
		out, err := h.Exec(w.Ctx, append([]string{"ip"}, strings.Fields(line)...)...)
		if err != nil {
			w.T.Fatal(err, out)
		}
	}
}

// plugIn adds another interface to the host and connects it to the switch.
func (w *testWorld) plugIn(h *lab.Host, link, addr string) {
	w.T.Helper()
	for _, line := range []string{
		// The interface always has the same MAC address, so that peers do not have to discover a
		// new one.
		fmt.Sprintf("link add p-%s type veth peer name %s address 02:00:00:00:00:%02x netns %s", link, link, link[len(link)-1], h.Namespace.Name),
		fmt.Sprintf("link set p-%s master br0 up", link),
	} {
		if out, err := w.Switch.Exec(w.Ctx, append([]string{"ip"}, strings.Fields(line)...)...); err != nil {
			w.T.Fatal(err, out)
		}
	}
	w.ip(h, "addr add "+addr+" dev "+link, "link set "+link+" up")
}

// TestUnderlayChanges changes a host's underlay interface in every way that occurs, while the host
// reaches Consul over another interface.
func TestUnderlayChanges(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"vxlan", "udp", "wireguard"} {
		t.Run(backend, func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 2})
			a, b := w.Hosts[0], w.Hosts[1]
			w.ip(a, "addr add 198.18.0.11/24 dev eth0")
			blocks := func(h *lab.Host, underlay string) string {
				return h.Config("underlay {\n"+underlay+"\n}\n", world.ShortLease, h.Network("default", world.Plan(backend)))
			}
			w.Must(a.StartAgent(blocks(a, `interfaces = ["198.18.0.11"]`)))
			w.Must(a.WaitReady(w.Ctx))
			w.Must(b.StartAgent(blocks(b, "interfaces = [\"up0\"]\ninterface_regex = [\"^alt\"]")))
			w.Eventually("the host to say what it waits for", func(ctx context.Context) error {
				out, _ := b.Leno(ctx, "status") // status fails because the host is critical
				if !strings.Contains(strings.Join(strings.Fields(out), " "), `underlay is critical`) || !strings.Contains(out, "up0") || !strings.Contains(out, "eth0 (192.0.2.12") {
					return fmt.Errorf("status:\n%s", out)
				}
				return nil
			})

			// The interface appears. It gets its address before it is up, so that the device change
			// is the trigger.
			w.plugIn(b, "up0", "198.18.0.12/24")
			w.within(soon, "ready on an interface that appeared", func(ctx context.Context) error {
				status, body, err := b.Get(ctx, "/readyz")
				if err == nil && status != 200 {
					err = fmt.Errorf("%d %s", status, body)
				}
				return err
			})
			w.standsOn(b, "up0", "198.18.0.12")
			subnet := w.Subnet(b, "default")
			w.Containers = []*lab.Container{w.Container(a, "default"), w.Container(b, "default")}
			w.crosses()

			// The interface disappears with everything on it, and comes back as another device.
			w.ip(b, "link del up0")
			w.Eventually("health to name the loss", func(ctx context.Context) error {
				_, body, err := b.Get(ctx, "/healthz")
				if err == nil && !strings.Contains(body, "keeping up0") {
					err = fmt.Errorf("%s", body)
				}
				return err
			})
			w.plugIn(b, "up0", "198.18.0.12/24")
			w.crosses()

			// Its address changes: lease and peers follow.
			w.ip(b, "addr del 198.18.0.12/24 dev up0", "addr add 198.18.0.22/24 dev up0")
			w.standsOn(b, "up0", "198.18.0.22")
			w.crosses()

			// It is renamed so that it matches the expression, and renamed back.
			w.ip(b, "link set up0 down", "link set up0 name alt7", "link set alt7 up")
			w.standsOn(b, "alt7", "198.18.0.22")
			w.crosses()
			w.ip(b, "link set alt7 down", "link set alt7 name up0", "link set up0 up")
			w.standsOn(b, "up0", "198.18.0.22")

			// Another interface replaces it.
			w.plugIn(b, "alt8", "198.18.0.32/24")
			w.ip(b, "link del up0")
			w.standsOn(b, "alt8", "198.18.0.32")
			w.crosses()
			if now := w.Subnet(b, "default"); now != subnet {
				t.Errorf("subnet %s, before %s", now, subnet)
			}

			// The MTU of the interface and that of the route to the other host.
			overhead := map[string]int{"vxlan": 50, "udp": 28, "wireguard": 60}[backend]
			words := map[string]string{"vxlan": "50 for VXLAN over IPv4", "udp": "28 for UDP over IPv4", "wireguard": "60 for WireGuard over IPv4"}[backend]
			for _, step := range []struct {
				line string
				mtu  int
				of   string
			}{
				{"link set alt8 mtu 1420", 1420, "alt8"},
				{"route add 198.18.0.11/32 dev alt8 mtu 1400", 1400, "the route to 198.18.0.11 by alt8"},
				{"route del 198.18.0.11/32", 1420, "alt8"},
				{"link set alt8 mtu 1500", 1500, "alt8"},
			} {
				w.ip(b, step.line)
				why := fmt.Sprintf("%d = %d of %s - %s", step.mtu-overhead, step.mtu, step.of, words)
				w.mtu(b, why)
			}
			w.crosses()
		})
	}
}

// TestUplinkChanges: a host without an underlay block stays on the network of the other hosts when its default route there
// disappears and a backup card has one, and no packet is lost. When the card itself has lost its address, the host leaves
// it, and an event and a warning say so.
func TestUplinkChanges(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	a := w.Hosts[0]
	w.plugIn(a, "wwan0", "198.18.77.2/24")
	w.ip(a, "route add default via 198.18.77.1 dev wwan0 metric 700")
	w.StartNetwork("vxlan")
	w.standsOn(a, "eth0", a.Addrs[0].String())
	pings := w.traffic(w.Containers, 0)
	w.ip(a, "route del default dev eth0", "-6 route del default dev eth0")
	// The agent shows this change only when it has seen that of the routes.
	w.ip(a, "link set eth0 mtu 1420")
	w.mtu(a, "1420 of eth0")
	w.standsOn(a, "eth0", a.Addrs[0].String())
	pings.flows()
	pings.stop()
	w.WaitHealth(a, 200)

	for _, addr := range a.Addrs {
		w.ip(a, fmt.Sprintf("addr del %s/%d dev eth0", addr, map[bool]int{true: 24, false: 64}[addr.Is4()]))
	}
	w.standsOn(a, "wwan0", "198.18.77.2")
	w.Eventually("a warning and an event", func(ctx context.Context) error {
		_, health, err := a.Get(ctx, "/healthz")
		if err != nil {
			return err
		}
		_, events, err := a.Get(ctx, "/v1/agent/events")
		if err == nil && !(strings.Contains(health, "the host has left eth0") && strings.Contains(events, "underlay moved from eth0")) {
			err = fmt.Errorf("%s\n%s", health, events)
		}
		if err != nil {
			return err
		}
		out, _ := a.Leno(ctx, "doctor", "-passive", "-format=json") // which may find other faults
		if !strings.Contains(out, "the host has left eth0") {
			err = fmt.Errorf("doctor says %s", out)
		}
		return err
	})
}
