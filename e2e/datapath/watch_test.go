package datapath

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// everything returns everything on a host that leno could have changed: devices, routes,
// neighbours, rules and files, without counters and timers.
func (w *testWorld) everything(h *lab.Host) []string {
	w.T.Helper()
	var out []string
	moving := regexp.MustCompile(`\[\d+:\d+\]|\b(expires|ageing|cache) \S+|^#.*|\bref \d+|\bused \S+|\w+_timer +\S+|\bstate (UP|UNKNOWN)`)
	for _, command := range []string{
		"ip -d -o link", "ip -o addr", "ip rule", "ip -6 rule", "ip route show table all", "ip -6 route show table all",
		"ip neigh show nud permanent", "ip -6 neigh show nud permanent", "bridge fdb show", "iptables-save", "ip6tables-save",
	} {
		text, err := h.Exec(w.Ctx, strings.Fields(command)...)
		w.Must(err)
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(moving.ReplaceAllString(line, "")); line != "" {
				out = append(out, command+": "+line)
			}
		}
	}
	w.Must(filepath.WalkDir(h.Dir, func(path string, d os.DirEntry, err error) error {
		if path == filepath.Join(h.DataDir(), "deleted") {
			return filepath.SkipDir // records of deletions stay
		}
		if err == nil {
			out = append(out, "file "+strings.TrimPrefix(path, h.Dir))
		}
		return err
	}))
	slices.Sort(out)
	return out
}

// restored blocks until the host's state is as before.
func (w *testWorld) restored(h *lab.Host, before []string) {
	w.T.Helper()
	w.Eventually(h.Name+" to be as before", func(context.Context) error {
		if diff := cmp.Diff(before, w.everything(h)); diff != "" {
			return fmt.Errorf("-before +now:\n%s", diff)
		}
		return nil
	})
}

// TestWatchedNetworks checks that hosts join networks when they are defined and leave them
// completely when they are deleted, while another network carries packets and loses none.
func TestWatchedNetworks(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2, Leno: world.PrivateRun(t)})
	for _, h := range w.Hosts {
		w.Must(h.StartAgent(h.Config("watch_networks = true\nallowed_networks = [\"team-*\"]\n", world.ShortLease, h.Network("default", world.Plan("vxlan")))))
	}
	for _, h := range w.Hosts {
		w.Must(h.WaitReady(w.Ctx))
		w.Container(h, "default")
	}
	w.Settle("default")
	// The kernel notices a moment later that a container's device is up; the bridge has learned its address by then.
	pings := w.traffic(slices.Clone(w.Containers), 0)
	pings.flows()
	before := map[*lab.Host][]string{}
	for _, h := range w.Hosts {
		before[h] = w.everything(h)
	}
	deleted := w.RouteEvents(w.Hosts[0])

	teams := []struct{ name, pools, backend string }{
		{"team-vxlan", "ipv4 { prefix = \"10.7.0.0/16\" }\nipv6 { prefix = \"fd00:7::/48\" }", `backend "vxlan" { vni = 7 }`},
		{"team-udp", "ipv4 { prefix = \"10.8.0.0/16\" }\nipv6 { prefix = \"fd00:8::/48\" }", `backend "udp" {}`},
		{"team-host-gw", "ipv4 { prefix = \"10.9.0.0/16\" }\nipv6 { prefix = \"fd00:9::/48\" }", `backend "host-gw" {}`},
	}
	w.Apply("other", "ipv4 { prefix = \"10.99.0.0/16\" }\n"+`backend "alloc" {}`)
	for _, n := range teams {
		w.Apply(n.name, n.pools+"\n"+n.backend)
	}
	var guests []*lab.Container
	for _, n := range teams {
		for _, h := range w.Hosts {
			w.WaitPeers(h, n.name, 1)
			w.Must(h.WaitReady(w.Ctx))
			guests = append(guests, w.Container(h, n.name))
		}
	}
	w.Linked(guests)
	for _, h := range w.Hosts {
		var self api.Self
		w.Must(world.GetJSON(w.Ctx, h, "/v1/agent/self", &self))
		if diff := cmp.Diff([]string{"default", "team-host-gw", "team-udp", "team-vxlan"}, self.Networks); diff != "" {
			t.Errorf("%s (-want +got): %s", h.Name, diff)
		}
	}
	pings.flows()

	// Delete one network; the others stay.
	for _, c := range guests[:2] {
		w.Must(c.Remove(w.Ctx))
	}
	if out, err := w.Hosts[0].Leno(w.Ctx, "network", "delete", "-force", "team-vxlan"); err != nil {
		t.Fatal(err, out)
	}
	w.Eventually("team-vxlan to be gone", func(ctx context.Context) error {
		for _, h := range w.Hosts {
			if got := strings.Join(w.everything(h), "\n"); strings.Contains(got, "team-vxlan") || strings.Contains(got, "10.7.") || strings.Contains(got, "fd00:7:") {
				return fmt.Errorf("%s:\n%s", h.Name, got)
			}
		}
		return nil
	})
	w.MatrixOf(guests[2:])
	for _, c := range guests[2:] {
		w.Must(c.Remove(w.Ctx))
	}
	for _, n := range teams[1:] {
		if out, err := w.Hosts[1].Leno(w.Ctx, "network", "delete", "-force", n.name); err != nil {
			t.Fatal(err, out)
		}
	}
	for _, h := range w.Hosts {
		w.restored(h, before[h])
		w.Eventually(h.Name+" to be well with one network", func(context.Context) error {
			if status, health := w.Health(h); status != http.StatusOK || len(health.Networks) != 1 {
				return fmt.Errorf("healthz %d: %+v", status, health)
			}
			return nil
		})
	}
	pings.stop()
	for _, route := range deleted() {
		if strings.Contains(route, "10.5.") || strings.Contains(route, "fd00:5:") {
			t.Errorf("route deleted: %s", route)
		}
	}
	for _, n := range teams {
		keys, _, err := w.Consul.Client().KV().Keys("leno/leases/"+n.name+"/", "", nil)
		w.Must(err)
		if want := []string{"leno/leases/" + n.name + "/_"}; !slices.Equal(keys, want) {
			t.Errorf("in Consul stay %q", keys)
		}
	}
}
