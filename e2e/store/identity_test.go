package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/traffic"
	"github.com/lenonet/leno/e2e/world"
)

// TestClonedHost starts a copy of a live host, including its state directory and name, under an
// address of its own: both report the conflict, and nothing else happens.
func TestClonedHost(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 4})
	a, b, c, d := w.Hosts[0], w.Hosts[1], w.Hosts[2], w.Hosts[3]
	config := func(h *lab.Host) string { return h.Config(world.ShortLease, h.Network("default", world.Plan("vxlan"))) }
	for _, h := range []*lab.Host{a, d} {
		w.Must(h.StartAgent(config(h)))
		w.Must(h.WaitReady(w.Ctx))
		w.Container(h, "default")
	}
	w.WaitPeers(a, "default", 1)
	w.WaitPeers(d, "default", 1)
	subnet := w.Subnet(a, "default")
	deleted := w.RouteEvents(d)
	stream := traffic.Start(w.World, w.Containers[1], w.Containers[0], 20*time.Millisecond)
	for i, h := range []*lab.Host{b, c} {
		// The agent is stopped: it creates and removes temporary files.
		w.Must(a.Agent().Signal(syscall.SIGSTOP))
		w.Must(os.CopyFS(h.DataDir(), os.DirFS(a.DataDir())))
		w.Must(a.Agent().Signal(syscall.SIGCONT))
		text := config(h)
		if i == 0 {
			text = strings.Replace(text, fmt.Sprintf("%q", h.Name), `"host-a"`, 1)
		}
		w.Must(h.StartAgent(text))
		w.WaitHealth(h, 503, "copied", a.Addrs[0].String(), h.Addrs[0].String(), "host-a")
		w.WaitHealth(a, 503, "copied", a.Addrs[0].String(), h.Addrs[0].String(), "host-a")
		if got := w.Routes(h); len(got) != 0 {
			t.Errorf("%s has routes without a lease: %q", h.Name, got)
		}
	}
	// Both keep asking; the following checks show that the responses stay the same.
	w.Must(stream.WaitAnswers(w.Ctx, 500))
	result, err := stream.Stop()
	w.Must(err)
	if result.Lost() != 0 {
		t.Error(result.Losses())
	}
	if gone := deleted(); len(gone) != 0 {
		t.Errorf("routes were deleted: %q", gone)
	}
	if got := w.Subnet(a, "default"); got != subnet {
		t.Errorf("host-a has %s, and had %s", got, subnet)
	}
	// The remedy that doctor prints makes the copy a host of its own. This one has a name of its own already.
	text, _ := c.Leno(w.Ctx, "doctor", "-format=json") // there is a fault
	var diagnosis api.Diagnosis
	w.Must(json.Unmarshal([]byte(text), &diagnosis))
	k := slices.IndexFunc(diagnosis.Findings, func(f api.Finding) bool { return f.Check == "conflict" })
	if k < 0 || !strings.Contains(diagnosis.Findings[k].Do, "stop the agent") {
		t.Fatalf("doctor says %s", text)
	}
	w.Must(c.StopAgent(w.Ctx))
	command := strings.Split(diagnosis.Findings[k].Do+"``", "`")[1]
	_, err = c.Exec(w.Ctx, "sh", "-euc", command)
	w.Must(err)
	w.Must(c.RestartAgent())
	w.Must(c.WaitReady(w.Ctx))
	w.WaitHealth(c, 200)
	w.WaitPeers(c, "default", 2)
	if got := w.Subnet(c, "default"); got == subnet || w.Subnet(a, "default") != subnet {
		t.Errorf("the copy has %s, the original %s, and had %s", got, w.Subnet(a, "default"), subnet)
	}

	// The original stops for good, and the other copy becomes the host.
	_, err = a.Leno(w.Ctx, "lease", "release", "default")
	w.Must(err)
	w.Must(b.WaitReady(w.Ctx))
	w.WaitHealth(b, 200)
}

// TestIdentity follows one host through everything that can happen to its identity: it keeps its
// subnet, and its peers find it at its address.
func TestIdentity(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	w.StartNetwork("vxlan")
	a, b := w.Hosts[0], w.Hosts[1]
	subnet := w.Subnet(a, "default")
	move := func(from, to string) {
		t.Helper()
		w.MoveAddress(a, netip.MustParseAddr(from), netip.MustParseAddr(to))
	}
	restart := func(between func()) func() {
		return func() {
			t.Helper()
			w.Must(a.StopAgent(w.Ctx))
			between()
			w.Must(a.RestartAgent())
			w.Must(a.WaitReady(w.Ctx))
		}
	}
	name, address := a.Name, a.Addrs[0].String()
	rename := func(to string) {
		t.Helper()
		text, err := os.ReadFile(a.ConfigFile())
		w.Must(err)
		w.Must(os.WriteFile(a.ConfigFile(), bytes.Replace(text, []byte(`"`+name+`"`), []byte(`"`+to+`"`), 1), 0o644))
		name = to
	}
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"address changed", func() { move(address, "192.0.2.111"); address = "192.0.2.111" }},
		{"address changed while stopped", restart(func() { move(address, "192.0.2.112"); address = "192.0.2.112" })},
		{"renamed", restart(func() { rename("other-name") })},
		{"renamed and moved", restart(func() { rename("third-name"); move(address, "192.0.2.113"); address = "192.0.2.113" })},
		{"state directory lost", restart(func() { w.Must(os.RemoveAll(a.DataDir())) })},
		{"state directory and subnet file lost", restart(func() {
			w.Must(os.RemoveAll(a.DataDir()))
			w.Must(os.Remove(a.SubnetFile("default")))
		})},
	} {
		began := time.Now()
		step.do()
		w.Eventually(step.name+": host-b to know host-a as it is", func(ctx context.Context) error {
			var list api.LeaseList
			if err := world.GetJSON(ctx, b, "/v1/network/default/leases", &list); err != nil {
				return err
			}
			leases := map[string]string{}
			for _, l := range list.Leases {
				if l.Held {
					leases[l.Node] = fmt.Sprintf("%s at %s", l.Subnets[0], l.PublicIPs[0])
				}
			}
			if want := fmt.Sprintf("%s at %s", subnet, address); leases[name] != want || len(leases) != 2 {
				return fmt.Errorf("%v, want %s %s", leases, name, want)
			}
			text, err := b.Exec(ctx, "bridge", "fdb", "show", "dev", "leno-default")
			if err == nil && !strings.Contains(text, "dst "+address) {
				err = fmt.Errorf("host-b does not send to %s: %s", address, text)
			}
			return err
		})
		t.Logf("%s: followed after %s", step.name, time.Since(began).Round(10*time.Millisecond))
		w.Matrix()
		w.WaitHealth(a, 200)
		if got := w.Subnet(a, "default"); got != subnet {
			t.Errorf("%s: host-a has %s, and had %s", step.name, got, subnet)
		}
	}
}

// TestAddressChanges changes the address from which a host reaches its store and its peers. TestLogin does so with
// Consul and a login, TestKubernetes with Kubernetes.
func TestAddressChanges(t *testing.T) {
	t.Parallel()
	for _, store := range []string{lab.StoreConsul, lab.StoreEtcd} {
		t.Run(store, func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 2, Store: store})
			w.StartNetwork("vxlan")
			w.FollowsAddress(w.Hosts[0], w.Containers)
		})
	}
}
