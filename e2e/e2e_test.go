// Package e2e holds the tests of leno as its users meet it: the real binary on
// hosts in network namespaces, a real Consul, real packets.
package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/registry"
)

// binary is the leno under test, built once.
var binary string

func TestMain(m *testing.M) {
	if text := os.Getenv(filterVariable); text != "" {
		fmt.Fprintln(os.Stderr, becomeFiltered(text, os.Args[1:]))
		os.Exit(1)
	}
	os.Exit(func() int {
		if os.Geteuid() != 0 {
			return m.Run() // every test says that it needs root
		}
		flag.Parse()
		if lanes := flag.Lookup("test.parallel"); lanes.Value.String() == lanes.DefValue {
			// These tests wait for other programs, more than half of the time.
			if err := lanes.Value.Set(strconv.Itoa(runtime.GOMAXPROCS(0) * 3 / 2)); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		return lab.WithLeno(func(leno string) int {
			binary = leno
			return m.Run()
		})
	}())
}

// shortLease makes outages and deaths short: sessions live 10 to 20 s.
const shortLease = `lease {
  ttl = "10s"
}`

// plan is a network body of both families with the backend.
func plan(backend string) string {
	return fmt.Sprintf(`
  ipv4 { prefix = "10.5.0.0/16" }
  ipv6 { prefix = "fd00:5::/48" }
  backend %q {}`, backend)
}

// world is one lab of a test.
type world struct {
	*lab.Lab
	t          *testing.T
	ctx        context.Context
	containers []*lab.Container
}

// newWorld lays out hosts and a Consul.
func newWorld(t *testing.T, o lab.Options) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	o.Leno = cmp.Or(o.Leno, binary)
	l, err := lab.New(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Lab: l, t: t, ctx: ctx}
	t.Cleanup(func() {
		if t.Failed() {
			w.tell()
		}
		if err := l.Close(); err != nil {
			t.Errorf("close the lab: %v", err)
		}
	})
	return w
}

// tell prints what the agents said, for a failed test.
func (w *world) tell() {
	for _, h := range w.Hosts {
		if p := h.Agent(); p != nil {
			lines := strings.Split(strings.TrimSpace(p.Output()), "\n")
			w.t.Logf("agent of %s:\n%s", h.Name, strings.Join(lines[max(0, len(lines)-40):], "\n"))
		}
	}
}

// must fails the test.
func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// start runs an agent with the blocks on every host and waits for all.
func (w *world) start(blocks func(*lab.Host) []string) {
	w.t.Helper()
	for _, h := range w.Hosts {
		w.must(h.StartAgent(h.Config(blocks(h)...)))
	}
	for _, h := range w.Hosts {
		w.must(h.WaitReady(w.ctx))
	}
}

// startNetwork runs the network "default" with the backend on every host and
// adds a container to each.
func (w *world) startNetwork(backend string) {
	w.t.Helper()
	w.start(func(h *lab.Host) []string { return []string{shortLease, h.Network("default", plan(backend))} })
	for _, h := range w.Hosts {
		w.container(h, "default")
	}
	w.settle("default")
}

func (w *world) container(h *lab.Host, network string) *lab.Container {
	w.t.Helper()
	c, err := h.AddContainer(w.ctx, network)
	w.must(err)
	w.containers = append(w.containers, c)
	return c
}

// settle waits until every host has all others as peers.
func (w *world) settle(network string) {
	w.t.Helper()
	for _, h := range w.Hosts {
		w.waitPeers(h, network, len(w.Hosts)-1)
	}
}

func (w *world) waitPeers(h *lab.Host, network string, n int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d peers on %s", n, h.Name), func(ctx context.Context) error {
		var got api.Network
		if err := getJSON(ctx, h, "/v1/network/"+network, &got); err != nil {
			return err
		}
		if got.Local == nil || got.Local.Peers != n {
			return fmt.Errorf("%+v", got.Local)
		}
		return nil
	})
}

func (w *world) eventually(what string, done func(context.Context) error) {
	w.t.Helper()
	w.must(lab.WaitFor(w.ctx, what, done))
}

// getJSON reads an endpoint that answers 200.
func getJSON(ctx context.Context, h *lab.Host, path string, v any) error {
	status, body, err := h.Get(ctx, path)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("%s: %d: %s", path, status, body)
	}
	return json.Unmarshal([]byte(body), v)
}

// health is what /healthz of the host says.
func (w *world) health(h *lab.Host) (int, api.Health) {
	w.t.Helper()
	status, body, err := h.Get(w.ctx, "/healthz")
	w.must(err)
	var out api.Health
	w.must(json.Unmarshal([]byte(body), &out))
	return status, out
}

// waitHealth waits for a status of /healthz and words in its body.
func (w *world) waitHealth(h *lab.Host, status int, words ...string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s: healthz %d %q", h.Name, status, words), func(ctx context.Context) error {
		got, body, err := h.Get(ctx, "/healthz")
		if err != nil {
			return err
		}
		if got != status {
			return fmt.Errorf("%d: %s", got, body)
		}
		for _, word := range words {
			if !strings.Contains(body, word) {
				return fmt.Errorf("%q is not in %s", word, body)
			}
		}
		return nil
	})
}

// subnet is what the host's subnet file says.
func (w *world) subnet(h *lab.Host, network string) netip.Prefix {
	w.t.Helper()
	f, err := lab.ReadSubnetFile(h.SubnetFile(network))
	w.must(err)
	return f.Subnets()[0].Masked()
}

// lease is the host's own lease by its API.
func (w *world) leases(h *lab.Host, network string) api.LeaseList {
	w.t.Helper()
	var list api.LeaseList
	w.must(getJSON(w.ctx, h, "/v1/network/"+network+"/leases", &list))
	return list
}

// leaseKey is the key of a subnet's lease in Consul.
func leaseKey(network string, subnet netip.Prefix) string {
	return "leno/leases/" + network + "/" + registry.SubnetKey(subnet)
}

// linger is the pause between counted pings. ping(8) waits for the last answer
// no longer than twice the longest round trip so far or one such pause, so that
// a short one takes a late answer for a lost one.
const linger = 250 * time.Millisecond

// matrix pings from every container to every other, each family, all at once.
func (w *world) matrix() {
	w.t.Helper()
	w.matrixOf(w.containers)
}

func (w *world) matrixOf(containers []*lab.Container) {
	w.t.Helper()
	var pings errgroup.Group
	pings.SetLimit(8)
	for _, from := range containers {
		for _, to := range containers {
			if from == to || from.Network != to.Network {
				continue
			}
			for _, addr := range to.Addrs {
				pings.Go(func() error { return w.pinged(from, addr) })
			}
		}
	}
	if err := pings.Wait(); err != nil {
		w.t.Error(err)
	}
}

func (w *world) ping(from *lab.Container, to netip.Addr) {
	w.t.Helper()
	if err := w.pinged(from, to); err != nil {
		w.t.Error(err)
	}
}

func (w *world) pinged(from *lab.Container, to netip.Addr) error {
	r, err := from.Ping(w.ctx, to, lab.PingOptions{Count: 3, Interval: linger})
	if err == nil && (r.Sent != 3 || r.Lost() != 0) {
		err = fmt.Errorf("ping from %s to %s: %d of %d lost\n%s", from.Name, to, r.Lost(), r.Sent, r.Output)
	}
	return err
}

// routes are leno's routes on the host, one a line, sorted.
func (w *world) routes(h *lab.Host) []string {
	w.t.Helper()
	var out []string
	for _, family := range []string{"-4", "-6"} {
		text, err := h.Exec(w.ctx, "ip", family, "route", "show", "proto", "108")
		w.must(err)
		for _, line := range strings.Split(text, "\n") {
			if line = strings.TrimSpace(line); line != "" {
				out = append(out, line)
			}
		}
	}
	slices.Sort(out)
	return out
}

// routeEvents starts watching route changes on the host; the function it
// returns ends that and tells what was deleted of leno's.
func (w *world) routeEvents(h *lab.Host) func() []string {
	w.t.Helper()
	p, err := h.Start("ip", "monitor", "route")
	w.must(err)
	// The monitor is at work once it sees a route of the test's own.
	w.eventually("ip monitor", func(ctx context.Context) error {
		if _, err := h.Exec(ctx, "ip", "route", "replace", "blackhole", "203.0.113.0/24"); err != nil {
			return err
		}
		if _, err := h.Exec(ctx, "ip", "route", "del", "blackhole", "203.0.113.0/24"); err != nil {
			return err
		}
		if !strings.Contains(p.Output(), "203.0.113.0") {
			return fmt.Errorf("nothing seen yet: %q", p.Output())
		}
		return nil
	})
	return func() []string {
		w.t.Helper()
		w.must(p.Stop(w.ctx))
		var deleted []string
		for _, line := range strings.Split(p.Output(), "\n") {
			if strings.HasPrefix(line, "Deleted") && strings.Contains(line, "proto 108") {
				deleted = append(deleted, line)
			}
		}
		return deleted
	}
}
