// Package world is the frame of the tests that use leno as its users do: the real binary on hosts
// in network namespaces, a real Consul, real packets.
package world

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	consul "github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/internal/testkit/programs"
	"github.com/lenonet/leno/registry"
)

// binary is the path of the leno under test, built once.
var binary string

// Main builds the leno under test once and runs a package's tests with it.
func Main(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run() // every test with hosts reports that it needs root
	}
	return lab.WithLeno(func(leno string) int {
		binary = leno
		return m.Run()
	})
}

// Leno returns the path of the leno under test.
func Leno() string { return binary }

// ShortLease shortens outages and the detection of dead hosts: sessions live 10 to 20 s.
const ShortLease = `lease {
  ttl = "10s"
}`

// Plan returns the body of a network of both address families with the given backend.
func Plan(backend string) string {
	return fmt.Sprintf(`
  ipv4 { prefix = "10.5.0.0/16" }
  ipv6 { prefix = "fd00:5::/48" }
  backend %q {}`, backend)
}

// A World is the lab of one test.
type World struct {
	*lab.Lab
	T          *testing.T
	Ctx        context.Context
	Containers []*lab.Container
}

// New lays out hosts and a Consul server.
func New(t *testing.T, o lab.Options) *World {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	if o.Leno == "" {
		o.Leno, o.Agent = binary, lab.FindAgent(binary)
	}
	l, err := lab.New(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute) // after the wait for other labs
	t.Cleanup(cancel)
	w := &World{Lab: l, T: t, Ctx: ctx}
	t.Cleanup(func() {
		if t.Failed() {
			w.tell()
		}
		if err := l.Close(); err != nil {
			t.Errorf("close the lab: %v", err)
		}
	})
	w.Must(l.LengthenQueues())
	return w
}

// tell prints the agents' output, for a failed test.
func (w *World) tell() {
	for _, h := range w.Hosts {
		if p := h.Agent(); p != nil {
			lines := strings.Split(strings.TrimSpace(p.Output()), "\n")
			w.T.Logf("agent of %s:\n%s", h.Name, strings.Join(lines[max(0, len(lines)-400):], "\n"))
		}
	}
}

// Must fails the test if err is not nil.
func (w *World) Must(err error) {
	w.T.Helper()
	if err != nil {
		w.T.Fatal(err)
	}
}

// Start runs an agent with the blocks on every host and waits until all are ready.
func (w *World) Start(blocks func(*lab.Host) []string) {
	w.T.Helper()
	for _, h := range w.Hosts {
		w.Must(h.StartAgent(h.Config(blocks(h)...)))
	}
	for _, h := range w.Hosts {
		w.Must(h.WaitReady(w.Ctx))
	}
}

// StartNetwork runs the network "default" with the backend on every host and adds a container to each. When it returns,
// all containers answer each other.
func (w *World) StartNetwork(backend string) {
	w.T.Helper()
	w.Start(func(h *lab.Host) []string { return []string{ShortLease, h.Network("default", Plan(backend))} })
	for _, h := range w.Hosts {
		w.Container(h, "default")
	}
	w.Settle("default")
	if backend != "alloc" { // which leaves the packets to others
		w.Linked(w.Containers)
	}
}

func (w *World) Container(h *lab.Host, network string) *lab.Container {
	w.T.Helper()
	c, err := h.AddContainer(w.Ctx, network)
	w.Must(err)
	w.Containers = append(w.Containers, c)
	return c
}

// Settle blocks until every host has all others as peers.
func (w *World) Settle(network string) {
	w.T.Helper()
	for _, h := range w.Hosts {
		w.WaitPeers(h, network, len(w.Hosts)-1)
	}
}

func (w *World) WaitPeers(h *lab.Host, network string, n int) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("%d peers on %s", n, h.Name), func(ctx context.Context) error {
		var got api.Network
		if err := GetJSON(ctx, h, "/v1/network/"+network, &got); err != nil {
			return err
		}
		if got.Local == nil || got.Local.Peers != n {
			return fmt.Errorf("%+v", got.Local)
		}
		return nil
	})
}

func (w *World) Eventually(what string, done func(context.Context) error) {
	w.T.Helper()
	w.Must(lab.WaitFor(w.Ctx, what, done))
}

// WaitLog blocks until the output of the host's agent contains all words.
func (w *World) WaitLog(h *lab.Host, words ...string) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("the agent of %s to log %q", h.Name, words), func(context.Context) error {
		log := h.Agent().Output()
		for _, word := range words {
			if !strings.Contains(log, word) {
				return fmt.Errorf("%q is not in the log", word)
			}
		}
		return nil
	})
}

// Cleanup runs `leno cleanup` with a /run of its own, so that other tests' files are safe. prepare
// is a shell script that fills it.
func (w *World) Cleanup(h *lab.Host, prepare string, args ...string) (output string, code int) {
	w.T.Helper()
	script := "mount -t tmpfs tmpfs /run; " + prepare + "\n" + Leno() + ` cleanup "$@"`
	command := append([]string{"unshare", "--mount", "sh", "-ec", script, "cleanup"}, args...)
	output, err := h.Exec(w.Ctx, command...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return output + "\n" + err.Error(), exit.ExitCode()
	}
	w.Must(err)
	return output, 0
}

// GetJSON reads an endpoint that responds with 200 into v.
func GetJSON(ctx context.Context, h *lab.Host, path string, v any) error {
	status, body, err := h.Get(ctx, path)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("%s: %d: %s", path, status, body)
	}
	return json.Unmarshal([]byte(body), v)
}

// Health returns the status and body of the host's /healthz.
func (w *World) Health(h *lab.Host) (int, api.Health) {
	w.T.Helper()
	status, body, err := h.Get(w.Ctx, "/healthz")
	w.Must(err)
	var out api.Health
	w.Must(json.Unmarshal([]byte(body), &out))
	return status, out
}

// WaitHealth blocks until /healthz has the given status and its body contains the words.
func (w *World) WaitHealth(h *lab.Host, status int, words ...string) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("%s: healthz %d %q", h.Name, status, words), func(ctx context.Context) error {
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

// CheckEvents returns how long after a moment the agent of a host reported changes of checks, in order. On a busy machine,
// the test itself may see a change much later.
func (w *World) CheckEvents(h *lab.Host, since time.Time, is func(api.Event) bool) (out []time.Duration) {
	w.T.Helper()
	var list api.EventList
	w.Must(GetJSON(w.Ctx, h, "/v1/agent/events", &list))
	for _, e := range list.Events {
		if e.Kind == api.EventCheck && e.Time.After(since) && is(e) {
			out = append(out, e.Time.Sub(since).Round(10*time.Millisecond))
		}
	}
	return out
}

// Noticed blocks until the agent of a host has reported that a check fails, and returns how long after a moment it did.
func (w *World) Noticed(h *lab.Host, check string, since time.Time) (took time.Duration) {
	w.T.Helper()
	w.Eventually(h.Name+" to report that "+check+" fails", func(context.Context) error {
		all := w.CheckEvents(h, since, func(e api.Event) bool { return e.Fields["check"] == check && e.Severity != api.Info })
		if len(all) == 0 {
			return errors.New("there is no event")
		}
		took = all[0]
		return nil
	})
	w.T.Logf("%s: %s failed after %s", h.Name, check, took)
	return took
}

// Free returns an IPv4 subnet of the network, of the size of the hosts', that none of them has.
func (w *World) Free(network string) netip.Prefix {
	w.T.Helper()
	taken := map[netip.Prefix]bool{}
	var free netip.Prefix
	for _, h := range w.Hosts {
		free = w.Subnet(h, network)
		taken[free] = true
	}
	for slot := byte(9); taken[free]; slot++ {
		addr := free.Addr().As4()
		addr[2] = slot
		free = netip.PrefixFrom(netip.AddrFrom4(addr), free.Bits())
	}
	return free
}

// Subnet returns the first subnet in the host's subnet file, masked.
func (w *World) Subnet(h *lab.Host, network string) netip.Prefix {
	w.T.Helper()
	f, err := lab.ReadSubnetFile(h.SubnetFile(network))
	w.Must(err)
	return f.Subnets()[0].Masked()
}

// Leases returns the leases of the network as the host's API lists them.
func (w *World) Leases(h *lab.Host, network string) api.LeaseList {
	w.T.Helper()
	var list api.LeaseList
	w.Must(GetJSON(w.Ctx, h, "/v1/network/"+network+"/leases", &list))
	return list
}

// LeaseKey returns the Consul key of a subnet's lease, "leno/leases/default/10.5.34.0-24".
func LeaseKey(network string, subnet netip.Prefix) string {
	return "leno/leases/" + network + "/" + registry.SubnetKey(subnet)
}

// Matrix pings from every container to every other, in each family, all at the same time. Each path must carry a first
// packet within minutes, and then all packets.
func (w *World) Matrix() {
	w.T.Helper()
	w.MatrixOf(w.Containers)
}

// MatrixOf is like Matrix, for some containers.
func (w *World) MatrixOf(containers []*lab.Container) {
	w.T.Helper()
	if err := between(containers, w.Pinged); err != nil {
		w.T.Error(err)
	}
}

// Linked blocks until each container has received an answer from every other one of its network. Before that, a new link
// may be up and drop everything.
func (w *World) Linked(containers []*lab.Container) {
	w.T.Helper()
	w.Must(between(containers, w.reach))
}

// between runs f for each container and the addresses of every other one of its network.
func between(containers []*lab.Container, f func(*lab.Container, netip.Addr) error) error {
	var pairs errgroup.Group
	pairs.SetLimit(8)
	for _, from := range containers {
		for _, to := range containers {
			if from == to || from.Network != to.Network {
				continue
			}
			for _, addr := range to.Addrs {
				pairs.Go(func() error { return f(from, addr) })
			}
		}
	}
	return pairs.Wait()
}

// Ping fails the test unless a container can ping an address; see Pinged.
func (w *World) Ping(from *lab.Container, to netip.Addr) {
	w.T.Helper()
	if err := w.Pinged(from, to); err != nil {
		w.T.Error(err)
	}
}

// Pinged waits until an address has answered a container, and then sends a few pings. One that is lost is an error.
func (w *World) Pinged(from *lab.Container, to netip.Addr) error {
	pings, err := from.StartEchoes(w.Ctx, to, 50*time.Millisecond)
	if err != nil {
		return err
	}
	sent := lab.WaitFor(w.Ctx, "pings to be sent", func(context.Context) error {
		if n := pings.Mark(); n < 3 {
			return fmt.Errorf("%d so far", n)
		}
		return nil
	})
	r, err := pings.Stop()
	if err = errors.Join(sent, err); err == nil && r.Lost() > 0 {
		err = fmt.Errorf("ping from %s to %s: %d of %d lost", from.Name, to, r.Lost(), r.Sent)
	}
	return err
}

// reach blocks until an address has answered a container.
func (w *World) reach(from *lab.Container, to netip.Addr) error {
	began := time.Now()
	err := from.Reach(w.Ctx, to)
	if took := time.Since(began); took > time.Second {
		w.T.Logf("the first answer to %s from %s took %s", from.Name, to, took.Round(time.Millisecond))
	}
	return err
}

// Routes returns leno's routes on the host, one per line, sorted.
func (w *World) Routes(h *lab.Host) []string {
	w.T.Helper()
	var out []string
	for _, family := range []string{"-4", "-6"} {
		text, err := h.Exec(w.Ctx, "ip", family, "route", "show", "proto", "108")
		w.Must(err)
		for _, line := range strings.Split(text, "\n") {
			if line = strings.TrimSpace(line); line != "" {
				out = append(out, line)
			}
		}
	}
	slices.Sort(out)
	return out
}

// RouteEvents starts watching route changes on the host. The returned function stops watching and
// returns which of leno's routes were deleted.
func (w *World) RouteEvents(h *lab.Host) func() []string {
	w.T.Helper()
	p, err := h.Start("ip", "monitor", "route")
	w.Must(err)
	// The monitor has reported everything up to now once it reports a route that is added now.
	upToNow := func(marker string) {
		w.T.Helper()
		w.Eventually("ip monitor", func(ctx context.Context) error {
			if _, err := h.Exec(ctx, "ip", "route", "replace", "blackhole", marker+"/24"); err != nil {
				return err
			}
			if _, err := h.Exec(ctx, "ip", "route", "del", "blackhole", marker+"/24"); err != nil {
				return err
			}
			if !strings.Contains(p.Output(), marker) {
				return fmt.Errorf("nothing seen yet: %q", p.Output())
			}
			return nil
		})
	}
	upToNow("203.0.113.0")
	return func() []string {
		w.T.Helper()
		upToNow("198.51.100.0")
		w.Must(p.Stop(w.Ctx))
		var deleted []string
		for _, line := range strings.Split(p.Output(), "\n") {
			if strings.HasPrefix(line, "Deleted") && strings.Contains(line, "proto 108") {
				deleted = append(deleted, line)
			}
		}
		return deleted
	}
}

// Carrying lists the backends that have a datapath of their own.
var Carrying = []string{"vxlan", "host-gw", "udp", "wireguard"}

// InProcess reports whether the process of the host's agent carries packets, which wait while there is none. The host
// must have its networks.
func (w *World) InProcess(h *lab.Host) bool {
	w.T.Helper()
	is, err := h.CarriesPackets(w.Ctx)
	w.Must(err)
	return is
}

// Link returns index and MAC address of leno's device, or "none".
func (w *World) Link(h *lab.Host) string {
	w.T.Helper()
	text, err := h.Exec(w.Ctx, "ip", "-o", "link", "show")
	w.Must(err)
	for _, line := range strings.Split(text, "\n") {
		if fields := strings.Fields(line); len(fields) > 2 && strings.HasPrefix(fields[1], "leno-") {
			return fields[0] + fields[1] + fields[len(fields)-3]
		}
	}
	return "none"
}

// Session returns the session that holds the host's lease in Consul, or "".
func (w *World) Session(h *lab.Host) string {
	w.T.Helper()
	pair, _, err := w.Consul.Client().KV().Get(LeaseKey("default", w.Subnet(h, "default")), &consul.QueryOptions{RequireConsistent: true})
	w.Must(err)
	if pair == nil {
		return ""
	}
	return pair.Session
}

// OperatorToken has all rights in the Consul of TestPolicy.
const OperatorToken = "7f6a3c9e-0000-4000-8000-000000000002"

// Apply changes a network as an operator does.
func (w *World) Apply(network, body string, flags ...string) {
	w.T.Helper()
	out, err := w.Hosts[0].Leno(w.Ctx, append(append([]string{"network", "apply"}, flags...), w.Definition(network, body))...)
	if err != nil {
		w.T.Fatal(err, out)
	}
}

// PrivateRun returns a leno whose agents see their host's lab directory as /run/leno, where the
// subnet files of networks without a block are.
func PrivateRun(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "leno")
	script := fmt.Sprintf(`#!/bin/sh
[ "$1" = agent ] || exec %[1]q "$@"
exec unshare --mount sh -euc 'mount -t tmpfs tmpfs /run; mkdir /run/leno; mount --bind "${3%%/*}" /run/leno; exec %[1]q "$@"' sh "$@"
`, binary)
	if err := programs.Write(path, []byte(script)); err != nil {
		t.Fatal(err)
	}
	return path
}

// Remembered blocks until the host has saved a peer for its next process.
func (w *World) Remembered(h *lab.Host, node string) {
	w.T.Helper()
	w.Eventually(node+" to be written down", func(ctx context.Context) error {
		text, err := h.Exec(ctx, "cat", h.DataDir()+"/peers/default.json")
		if err == nil && !strings.Contains(text, `"node":"`+node+`"`) {
			err = fmt.Errorf("it is not in %s", text)
		}
		return err
	})
}

// Stored returns a network's definition as Consul has it, with the indexes of its record.
func (w *World) Stored(network string, o *consul.QueryOptions) registry.Network {
	w.T.Helper()
	pair, _, err := w.Consul.Client().KV().Get("leno/networks/"+network, o)
	w.Must(err)
	if pair == nil {
		w.T.Fatalf("Consul has no network %s", network)
	}
	n, err := registry.ParseNetwork(network, pair.Value)
	w.Must(err)
	n.CreateIndex, n.ModifyIndex = pair.CreateIndex, pair.ModifyIndex
	return n
}

// Definition writes a file with the network and returns its path.
func (w *World) Definition(network, body string) string {
	w.T.Helper()
	path := filepath.Join(w.Dir, network+".hcl")
	w.Must(os.WriteFile(path, []byte(fmt.Sprintf("network %q {\n%s\n}\n", network, body)), 0o644))
	return path
}
