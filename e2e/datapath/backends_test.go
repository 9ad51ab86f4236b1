package datapath

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// TestPackets checks for every backend that all containers reach each other over IPv4 and IPv6, at
// every size up to the MTU, and over TCP.
func TestPackets(t *testing.T) {
	t.Parallel()
	for _, backend := range world.Carrying {
		t.Run(backend, func(t *testing.T) {
			w := newWorld(t, lab.Options{})
			w.StartNetwork(backend)
			w.Matrix()

			from, to := w.Containers[0], w.Containers[1]
			if want := map[string]int{"vxlan": 1450, "host-gw": 1500, "udp": 1472, "wireguard": 1440}[backend]; from.MTU != want {
				t.Errorf("MTU %d, want %d", from.MTU, want)
			}
			for _, addr := range to.Addrs {
				w.sizes(from, addr)
			}
			// More than the buffers of both ends hold: what is in them at the end does not count.
			got, err := from.TCP(w.Ctx, to.Namespace, to.Addrs[0], lab.ThroughputOptions{Bytes: 16 << 20})
			w.Must(err)
			if got.Bytes < 1<<20 {
				t.Errorf("TCP carried %d bytes", got.Bytes)
			}
			for _, h := range w.Hosts {
				if status, health := w.Health(h); status != http.StatusOK {
					t.Errorf("%s: healthz %d: %+v", h.Name, status, health)
				}
			}
		})
	}
}

// sizes pings with the largest packet that fits the reported MTU. One byte more must be refused
// with an error that contains the MTU if the packet must not be fragmented, and must arrive if it
// may be.
func (w *testWorld) sizes(from *lab.Container, to netip.Addr) {
	w.T.Helper()
	headers := 28
	if to.Is6() {
		headers = 48
	}
	fits := from.MTU - headers
	for _, tt := range []struct {
		name     string
		size     int
		whole    bool // must not be fragmented
		answered bool
	}{
		{"largest", fits, true, true},
		{"one byte more", fits + 1, true, false},
		{"one byte more in fragments", fits + 1, false, true},
		{"much more in fragments", 4000, false, true},
	} {
		var r lab.PingResult
		// A packet that can pass does so at once or soon. One that cannot is refused each time.
		w.Eventually(fmt.Sprintf("%s to %s, %s (%d bytes)", from.Name, to, tt.name, tt.size), func(ctx context.Context) (err error) {
			r, err = from.Ping(ctx, to, lab.PingOptions{Count: 2, Size: tt.size, DontFragment: tt.whole, Timeout: 2 * time.Second})
			if err == nil && tt.answered && r.Received != 2 {
				err = fmt.Errorf("%d of 2 answered\n%s", r.Received, r.Output)
			}
			return err
		})
		if !tt.answered && r.Received != 0 {
			w.T.Errorf("%s to %s, %s (%d bytes): %d of 2 answered\n%s", from.Name, to, tt.name, tt.size, r.Received, r.Output)
		}
		if !tt.answered && r.MTU != from.MTU {
			w.T.Errorf("%s to %s, %s: refused for MTU %d, want %d\n%s", from.Name, to, tt.name, r.MTU, from.MTU, r.Output)
		}
	}
}

// TestAlloc checks that alloc leases subnets and leaves the packets to others: here to routes that
// the test creates from the API's response.
func TestAlloc(t *testing.T) {
	w := newWorld(t, lab.Options{})
	w.StartNetwork("alloc")
	for _, h := range w.Hosts {
		if got := w.Routes(h); len(got) != 0 {
			t.Errorf("%s has routes: %q", h.Name, got)
		}
		for _, lease := range w.Leases(h, "default").Leases {
			if lease.Own {
				continue
			}
			for _, s := range lease.Subnets {
				for _, via := range lease.PublicIPs {
					if via.Is6() == s.Addr().Is6() {
						_, err := h.Exec(w.Ctx, "ip", "route", "add", s.String(), "via", via.String())
						w.Must(err)
					}
				}
			}
		}
	}
	w.Matrix()
}

// TestTwoNetworks runs two networks with different backends in one agent.
func TestTwoNetworks(t *testing.T) {
	w := newWorld(t, lab.Options{})
	blue := `
  ipv4 { prefix = "10.6.0.0/16" }
  backend "udp" {}`
	w.Start(func(h *lab.Host) []string {
		return []string{world.ShortLease, h.Network("red", world.Plan("vxlan")), h.Network("blue", blue)}
	})
	for _, h := range w.Hosts {
		w.Container(h, "red")
		w.Container(h, "blue")
	}
	w.Settle("red")
	w.Settle("blue")
	w.Matrix()

	// Leaving one network does not affect the other.
	h := w.Hosts[0]
	red := slices.DeleteFunc(slices.Clone(w.Containers), func(c *lab.Container) bool { return c.Network != "red" })
	pings := w.traffic(red, 0)
	if _, err := h.Leno(w.Ctx, "lease", "release", "blue"); err != nil {
		t.Fatal(err)
	}
	for _, other := range w.Hosts[1:] {
		w.WaitPeers(other, "blue", len(w.Hosts)-2)
		w.WaitPeers(other, "red", len(w.Hosts)-1)
	}
	for _, line := range w.Routes(h) {
		if strings.Contains(line, "10.6.") {
			t.Errorf("%s still has %q", h.Name, line)
		}
	}
	pings.stop()
}

// TestAgentKilled kills agents under traffic and starts them again: the kernel keeps forwarding,
// and the host comes back with the same subnet and the same MAC address.
func TestAgentKilled(t *testing.T) {
	t.Parallel()
	for _, backend := range world.Carrying {
		t.Run(backend, func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 2})
			w.StartNetwork(backend)
			h := w.Hosts[0]
			subnet, link := w.Subnet(h, "default"), w.Link(h)
			inProcess := w.InProcess(h)
			if inProcess != (backend == "udp") && backend != "wireguard" { // which the kernel may have, or not
				t.Errorf("carried by the agent: %t", inProcess)
			}
			stream, err := w.Containers[0].StartEchoes(w.Ctx, w.Containers[1].Addrs[0], 10*time.Millisecond)
			w.Must(err)
			w.Must(stream.WaitAnswers(w.Ctx, 20))
			for range 3 {
				w.Must(h.KillAgent())
				if !inProcess {
					w.Must(stream.WaitAnswers(w.Ctx, 20))
				}
				w.Must(h.RestartAgent())
				w.Must(h.WaitReady(w.Ctx))
				w.Must(stream.WaitAnswers(w.Ctx, 20))
			}
			result, err := stream.Stop()
			w.Must(err)
			t.Logf("%d pings, %d lost, longest gap %s", result.Sent, result.Lost(), result.Gap)
			if !inProcess && result.Lost() != 0 {
				t.Error(result.Losses())
			}
			if got := w.Subnet(h, "default"); got != subnet {
				t.Errorf("subnet %s, before %s", got, subnet)
			}
			if got := w.Link(h); got != link {
				t.Errorf("device %s, before %s", got, link)
			}
		})
	}
}

// TestDeviceDeleted checks that a deleted device is recreated with its whole configuration.
func TestDeviceDeleted(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"vxlan", "udp", "wireguard"} {
		t.Run(backend, func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 2})
			w.StartNetwork(backend)
			h := w.Hosts[0]
			before, session := w.Routes(h), w.Session(h)
			_, err := h.Exec(w.Ctx, "ip", "link", "del", "leno-default")
			w.Must(err)
			w.Eventually("the routes to come back", func(context.Context) error {
				if got := w.Routes(h); fmt.Sprint(got) != fmt.Sprint(before) {
					return fmt.Errorf("%q, before %q", got, before)
				}
				return nil
			})
			w.Matrix() // of wireguard, a new device has no sessions, and the routes come before the first handshake
			w.WaitHealth(h, http.StatusOK)
			if now := w.Session(h); now != session {
				t.Errorf("the lease is held by %q, before by %q", now, session)
			}
			w.WaitLog(h, "repaired")
		})
	}
}

// TestDev checks that `leno agent -dev` works on a host without Consul, and leaves the host as it was,
// also if the agent before it was killed.
func TestDev(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 1, NoConsul: true})
	h := w.Hosts[0]
	_, err := h.Exec(w.Ctx, "sysctl", "-w", "net.ipv4.ip_forward=0")
	w.Must(err)
	run := filepath.Join(h.Dir, "run") // its /run, which has its state directory and its subnet file
	w.Must(os.Mkdir(run, 0o755))
	start := func() *lab.Process {
		p, err := h.Start("unshare", "--mount", "sh", "-c", `mount --bind "$0" /run && exec "$@"`, run, world.Leno(), "agent", "-dev")
		w.Must(err)
		w.Must(p.WaitFor(w.Ctx, "the agent to be ready", func(ctx context.Context) error {
			status, body, err := h.Get(ctx, "/readyz")
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("%d: %s", status, body)
			}
			return err
		}))
		return p
	}
	forwards := func(want string) {
		t.Helper()
		if out, err := h.Exec(w.Ctx, "sysctl", "-n", "net.ipv4.ip_forward"); err != nil || strings.TrimSpace(out) != want {
			t.Errorf("ip_forward is %s, want %s: %v", out, want, err)
		}
	}
	p := start()
	// By default, it would use the socket in /run, which may be that of another host of a test.
	out, err := h.Leno(w.Ctx, "status", "-address=http://127.0.0.1:5366")
	w.Must(err)
	for _, word := range []string{"dev", "10.98.", "memory", "passing"} {
		if !strings.Contains(out, word) {
			t.Errorf("status does not say %q:\n%s", word, out)
		}
	}
	p.Kill()
	forwards("1")
	w.Must(start().Stop(w.Ctx))
	if got := w.Routes(h); len(got) != 0 {
		t.Errorf("routes stay behind: %q", got)
	}
	if got := w.Link(h); got != "none" {
		t.Errorf("device stays behind: %s", got)
	}
	forwards("0")
	if left, err := filepath.Glob(run + "/leno/*"); err != nil || len(left) != 0 {
		t.Errorf("files stay behind: %q, %v", left, err)
	}
}
