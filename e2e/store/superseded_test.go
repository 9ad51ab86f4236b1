package store

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// TestSuperseded gives the subnet of a suspended host to another host while no other subnet is free. When the first
// host wakes up, the kernel refuses packets of its containers, and the other host's containers are reached instead.
func TestSuperseded(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 3})
	a, b, c := w.Hosts[0], w.Hosts[1], w.Hosts[2]
	small := `
  ipv4 {
    prefix = "10.5.0.0/22"
    min    = "10.5.1.0"
    max    = "10.5.2.0"
  }
  backend "vxlan" {}`
	start := func(h *lab.Host) {
		t.Helper()
		w.Must(h.StartAgent(h.Config(world.ShortLease, h.Network("default", small))))
		w.Must(h.WaitReady(w.Ctx))
	}
	start(a)
	start(b)
	w.WaitPeers(a, "default", 1)
	subnet := w.Subnet(a, "default")
	former, peer := w.Container(a, "default"), w.Container(b, "default")
	w.Ping(former, peer.Addrs[0])

	w.Must(a.Agent().Signal(syscall.SIGSTOP))
	_, err := w.Consul.Client().KV().Delete(world.LeaseKey("default", subnet), nil)
	w.Must(err)
	// A host first asks for the subnet it had before.
	w.Must(os.WriteFile(c.SubnetFile("default"), []byte("LENO_SUBNET="+subnet.String()+"\n"), 0o644))
	start(c)
	if got := w.Subnet(c, "default"); got != subnet {
		t.Fatalf("host-c has %s, want %s", got, subnet)
	}
	w.Must(a.Agent().Signal(syscall.SIGCONT))

	w.WaitHealth(a, http.StatusServiceUnavailable, subnet.String(), `\"host-c\"`, c.Addrs[0].String(), "network is full")
	refused := func() {
		t.Helper()
		w.Eventually("packets of its containers to be refused", func(ctx context.Context) error {
			out, err := former.Exec(ctx, "ping", "-c", "1", "-W", "2", peer.Addrs[0].String())
			if err == nil || !strings.Contains(out+err.Error(), "Destination Host Unreachable") {
				return fmt.Errorf("%s %v", out, err)
			}
			return nil
		})
		if status, body, err := a.Get(w.Ctx, "/readyz"); err != nil || status != http.StatusServiceUnavailable {
			t.Errorf("%d %s, %v", status, body, err)
		}
		if _, err := os.Stat(a.SubnetFile("default")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the subnet file: %v", err)
		}
	}
	refused()
	w.WaitPeers(b, "default", 1)
	w.Ping(peer, w.Container(c, "default").Addrs[0])
	w.Must(a.StopAgent(w.Ctx))
	w.Must(a.RestartAgent())
	w.WaitHealth(a, http.StatusServiceUnavailable, "network is full")
	refused()

	_, err = c.Leno(w.Ctx, "lease", "release")
	w.Must(err)
	w.Must(a.WaitReady(w.Ctx))
	if got := w.Subnet(a, "default"); got != subnet {
		t.Errorf("host-a has %s, had %s", got, subnet)
	}
	w.WaitPeers(b, "default", 1)
	w.Eventually("packets to flow again", func(ctx context.Context) error { return former.Reach(ctx, peer.Addrs[0]) })
}
