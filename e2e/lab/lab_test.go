package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"go.uber.org/goleak"

	"github.com/lenonet/leno/internal/testkit/programs"
)

// within returns a context that limits the time one test may take, including the wait for other labs to end.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func newLab(t *testing.T, ctx context.Context, o Options) *Lab {
	t.Helper()
	l, err := New(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close the lab: %v", err)
		}
	})
	return l
}

func TestLayOutAndTeardown(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	defer goleak.VerifyNone(t)
	ctx := within(t, 15*time.Minute)
	links := rootLinks(t)
	var log strings.Builder
	l, err := New(ctx, Options{NoConsul: true, Hosts: 2, Log: &log})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got, want := len(namespacesOf(t, l.ID)), 3; got != want {
		t.Errorf("%d namespaces, want %d", got, want)
	}
	if got := rootLinks(t); !slices.Equal(got, links) {
		t.Errorf("links outside the lab: %v, before: %v", got, links)
	}
	a, b := l.Host("host-a"), l.Host("host-b")
	for _, to := range append(slices.Clone(b.Addrs), underlays[0].gateway.Addr(), underlays[1].gateway.Addr()) {
		if err := a.Reach(ctx, to); err != nil {
			t.Error(err)
		}
		if r, err := a.Ping(ctx, to, PingOptions{Count: 3}); err != nil || r.Sent != 3 || r.Lost() != 0 {
			t.Errorf("ping from host-a to %s: %+v, %v", to, r, err)
		}
	}
	if output, err := a.Exec(ctx, "ip", "-4", "route", "get", "198.51.100.1"); err != nil || !strings.Contains(output, "dev eth0") {
		t.Errorf("default route: %q, %v", output, err)
	}
	if !strings.Contains(log.String(), "host-b: namespace "+b.Namespace.Name) {
		t.Errorf("the log does not tell of host-b:\n%s", log.String())
	}

	if env, err := a.Exec(ctx, "env"); err != nil || !strings.Contains(env, "GORACE=atexit_sleep_ms=0") {
		t.Errorf("programs with the race detector wait when they end: %v\n%s", err, env)
	}

	// One process ends when asked to; the other was left behind by a command.
	sleep, err := a.Start("sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Exec(ctx, "sh", "-c", "sleep 1000 >/dev/null 2>&1 &"); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if err := syscall.Kill(sleep.Pid(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the process lives: %v", err)
	}
	if left := namespacesOf(t, l.ID); len(left) > 0 {
		t.Errorf("namespaces left: %v", left)
	}
	if got := rootLinks(t); !slices.Equal(got, links) {
		t.Errorf("links after: %v, before: %v", got, links)
	}
	if _, err := os.Stat(l.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
}

// TestFailureTakesBack checks that New removes everything when Consul cannot start.
func TestFailureTakesBack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	defer goleak.VerifyNone(t)
	name := "tfail" + randomDigits()
	l, err := New(within(t, 15*time.Minute), Options{Name: name, Hosts: 1, Consul: "false"})
	if err == nil {
		l.Close()
		t.Fatal("no error")
	}
	if left := namespacesOf(t, name); len(left) > 0 {
		t.Errorf("namespaces left: %v", left)
	}
}

func TestConsulKeepsItsData(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	ctx := within(t, 15*time.Minute)
	l := newLab(t, ctx, Options{Hosts: 1})
	kv := l.Consul.Client().KV()
	write := (&api.WriteOptions{}).WithContext(ctx)
	if _, err := kv.Put(&api.KVPair{Key: "leno/x", Value: []byte("1")}, write); err != nil {
		t.Fatal(err)
	}
	for _, way := range []struct {
		name string
		end  func() error
	}{{"stop", func() error { return l.Consul.Stop(ctx) }}, {"kill", l.Consul.Kill}} {
		name := way.name
		if err := way.end(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, _, err := kv.Get("leno/x", nil); err == nil {
			t.Errorf("%s: it still answers", name)
		}
		if err := l.Consul.Start(ctx); err != nil {
			t.Fatalf("start after %s: %v", name, err)
		}
		if pair, _, err := kv.Get("leno/x", nil); err != nil || pair == nil {
			t.Errorf("after %s: %v, %v", name, pair, err)
		}
	}
	if output, err := l.Consul.CLI(ctx, "kv", "get", "leno/x"); err != nil || output != "1\n" {
		t.Errorf("consul kv get: %q, %v", output, err)
	}

	h := l.Hosts[0]
	if err := h.StartConsul(ctx); err != nil {
		t.Fatal(err)
	}
	if name, err := h.Consul.Client().Agent().NodeName(); err != nil || name != "host-a" {
		t.Errorf("client agent: %q, %v", name, err)
	}
	if err := h.Consul.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// TestContainers checks containers over routes that are added by hand where leno would add its own.
func TestContainers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	ctx := within(t, 15*time.Minute)
	l := newLab(t, ctx, Options{NoConsul: true, Hosts: 2})
	containers := make([]*Container, 2)
	for i, h := range l.Hosts {
		file := fmt.Sprintf("LENO_NETWORK=10.5.0.0/16\nLENO_SUBNET=10.5.%d.1/24\nLENO_IPV6_NETWORK=fd00:5::/48\n"+
			"LENO_IPV6_SUBNET=fd00:5:0:%d::1/64\nLENO_MTU=1400\nLENO_IPMASQ=true\n", i+1, i+1)
		if err := os.WriteFile(h.SubnetFile("default"), []byte(file), 0o644); err != nil {
			t.Fatal(err)
		}
		other := l.Hosts[1-i]
		if err := h.ip(ctx,
			fmt.Sprintf("route add 10.5.%d.0/24 via %s", 2-i, other.Addrs[0]),
			fmt.Sprintf("route add fd00:5:0:%d::/64 via %s", 2-i, other.Addrs[1])); err != nil {
			t.Fatal(err)
		}
		c, err := h.AddContainer(ctx, "default")
		if err != nil {
			t.Fatal(err)
		}
		containers[i] = c
	}
	a, b := containers[0], containers[1]
	want := []netip.Addr{netip.MustParseAddr("10.5.1.2"), netip.MustParseAddr("fd00:5:0:1::2")}
	if !slices.Equal(a.Addrs, want) {
		t.Errorf("addresses %v, want %v", a.Addrs, want)
	}
	for _, to := range b.Addrs {
		if err := a.Reach(ctx, to); err != nil {
			t.Error(err)
		}
		if r, err := a.Ping(ctx, to, PingOptions{Count: 5}); err != nil || r.Sent != 5 || r.Lost() != 0 || r.RTT == 0 {
			t.Errorf("ping %s: %+v, %v", to, r, err)
		}
	}
	to := b.Addrs[0]
	if r, err := a.Ping(ctx, to, PingOptions{Size: 1400 - 28, DontFragment: true}); err != nil || r.Lost() != 0 {
		t.Errorf("a packet of the MTU: %+v, %v", r, err)
	}
	if r, err := a.Ping(ctx, to, PingOptions{Size: 1401 - 28, DontFragment: true}); err != nil || r.Received != 0 || r.MTU != 1400 {
		t.Errorf("a packet above the MTU: %+v, %v", r, err)
	}
	if throughput, err := a.TCP(ctx, b.Namespace, to, ThroughputOptions{}); err != nil || throughput.Bytes == 0 || throughput.BitsPerSecond == 0 {
		t.Errorf("throughput: %+v, %v", throughput, err)
	}

	stream, err := a.StartPing(to, PingOptions{Interval: linger}) // no answer takes so long
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.WaitAnswers(ctx, 3); err != nil {
		t.Error(err)
	}
	second, err := l.Hosts[1].AddContainer(ctx, "default")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := second.Addrs[0], netip.MustParseAddr("10.5.2.3"); got != want {
		t.Errorf("second container has %s, want %s", got, want)
	}
	if err := second.Remove(ctx); err != nil {
		t.Error(err)
	}
	if r, err := stream.Stop(ctx); err != nil || r.Received < 3 || r.Lost() != 0 || r.Gap == 0 {
		t.Errorf("running ping: %+v, %v", r, err)
	}
	if err := b.Remove(ctx); err != nil {
		t.Error(err)
	}
	if output, err := l.Hosts[1].Exec(ctx, "ip", "-br", "link", "show", "type", "bridge"); err != nil || output != "" {
		t.Errorf("bridge after the last container: %q, %v", output, err)
	}
}

// TestAgentProcess uses a program that is not leno as agent, because only the process around it
// matters here.
func TestAgentProcess(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	ctx := within(t, 15*time.Minute)
	program := t.TempDir() + "/leno"
	if err := programs.Write(program, []byte("#!/bin/sh\ntrap 'exit 0' TERM\necho \"args $*\"\nwhile :; do sleep 0.05; done\n")); err != nil {
		t.Fatal(err)
	}
	l := newLab(t, ctx, Options{NoConsul: true, Hosts: 1, Leno: program})
	h := l.Hosts[0]
	if err := h.StartAgent(h.Config(h.Network("default", `  backend "alloc" {}`))); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(h.ConfigFile())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`node_name = "host-a"`, `network "default" {`, fmt.Sprintf("subnet_file = %q", h.SubnetFile("default"))} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in the configuration:\n%s", want, text)
		}
	}
	if err := WaitFor(ctx, "output", func(context.Context) error {
		if h.Agent().Output() != "args agent -config-file "+h.ConfigFile()+"\n" {
			return fmt.Errorf("so far: %q", h.Agent().Output())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := h.RestartAgent(); err == nil {
		t.Error("a second agent was started")
	}
	if err := h.StopAgent(ctx); err != nil {
		t.Error(err)
	}
	if err := h.RestartAgent(); err != nil {
		t.Fatal(err)
	}
	if err := h.KillAgent(); err != nil {
		t.Error(err)
	}
	if got := h.Agent().ExitCode(); got != -1 {
		t.Errorf("exit code %d after SIGKILL", got)
	}
	if err := h.WaitReady(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("an agent that ended: %v", err)
	}
}

func TestHTTPStartsInside(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	ctx := within(t, 15*time.Minute)
	l := newLab(t, ctx, Options{NoConsul: true, Hosts: 2})
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.URL.Path)
	})}
	served := make(chan error)
	listening := make(chan struct{})
	if err := l.Hosts[0].Do(func() error {
		listener, err := listen(ctx, "127.0.0.1:5366")
		if err != nil {
			return err
		}
		go func() { close(listening); served <- server.Serve(listener) }()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	<-listening
	defer func() { server.Close(); <-served }()
	if status, body, err := l.Hosts[0].Get(ctx, "/healthz"); err != nil || status != 200 || body != "/healthz" {
		t.Errorf("own loopback: %d %q %v", status, body, err)
	}
	if _, _, err := l.Hosts[1].Get(ctx, "/healthz"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the other host's loopback: %v", err)
	}
}

func TestOptionsRefused(t *testing.T) {
	for _, hosts := range []int{-1, 81} {
		if _, err := New(t.Context(), Options{Hosts: hosts, NoConsul: true}); err == nil {
			t.Errorf("%d hosts: no error", hosts)
		}
	}
}

func namespacesOf(t *testing.T, id string) []string {
	t.Helper()
	entries, err := os.ReadDir(namespaceDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "leno-"+id) {
			names = append(names, e.Name())
		}
	}
	return names
}

// rootLinks returns the veths and bridges outside the lab. Other links may come and go while the
// test runs.
func rootLinks(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, kind := range []string{"veth", "bridge"} {
		output, err := exec.CommandContext(t.Context(), "ip", "-br", "link", "show", "type", kind).Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(output)) {
			names = append(names, strings.Fields(line)[0])
		}
	}
	return names
}

// TestServersAndCuts checks that three servers elect another leader when one dies, and that a host
// that is cut off receives nothing until it is connected again.
func TestServersAndCuts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	ctx := within(t, 15*time.Minute)
	l := newLab(t, ctx, Options{Servers: 3, Hosts: 1})
	h, third := l.Hosts[0], l.Servers[2]
	if peers, err := l.Consul.Client().Status().Peers(); err != nil || len(peers) != 3 {
		t.Fatalf("servers: %v, %v", peers, err)
	}
	ping := func() int {
		r, err := h.Ping(ctx, third.Addr, PingOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Received
	}
	for _, cut := range []struct {
		name    string
		off, on func(context.Context) error
	}{{"host", h.Cut, h.Mend}, {"server", third.Cut, third.Mend}} {
		name := cut.name
		if err := cut.off(ctx); err != nil || ping() != 0 {
			t.Errorf("%s cut off and yet there, or not cut: %v", name, err)
		}
		if err := cut.on(ctx); err != nil {
			t.Fatal(err)
		}
		// Its neighbours may have to resolve its address again.
		err := WaitFor(ctx, name+" to be back", func(context.Context) error {
			if ping() != 1 {
				return errors.New("no answer")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	for _, s := range l.Servers[:2] {
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	if err := StartAll(ctx, l.Servers[:2]); err != nil {
		t.Error(err)
	}
}

func TestHostNames(t *testing.T) {
	for i, want := range map[int]string{0: "host-a", 25: "host-z", 26: "host-aa", 51: "host-az", 52: "host-ba", 79: "host-cb"} {
		if got := hostName(i); got != want {
			t.Errorf("host %d is %s, want %s", i, got, want)
		}
	}
	if got := hostAddrs(79); got[0].String() != "192.0.2.90" || got[1].String() != "fd00:c0:2::90" {
		t.Errorf("addresses of the last: %v", got)
	}
}

// TestWire checks that two hosts with cables of their own reach each other without the switch.
func TestWire(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	ctx := within(t, 15*time.Minute)
	l := newLab(t, ctx, Options{NoConsul: true, Hosts: 3, MTU: 1400})
	a, b, c := l.Hosts[0], l.Hosts[1], l.Hosts[2]
	first, err := l.Wire(ctx, a, b)
	if err != nil {
		t.Fatal(err)
	}
	second, err := l.Wire(ctx, c, a)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Wire(ctx, a, a); err == nil {
		t.Error("a cable from a host to itself: no error")
	}
	if first.Device != "wire0" || second.Device != "wire1" || first.MTU != 1400 {
		t.Errorf("%+v, %+v", first, second)
	}
	for _, tt := range []struct {
		from, to *Host
		wire     *Wire
		end      int // index of the wire's end that has address to
	}{{a, b, first, 1}, {b, a, first, 0}, {c, a, second, 1}} {
		before, err := tt.to.Received(ctx, tt.wire.Device)
		if err != nil {
			t.Fatal(err)
		}
		for _, addr := range tt.wire.Addrs[tt.end] {
			if err := tt.from.Reach(ctx, addr); err != nil {
				t.Error(err)
			}
			if r, err := tt.from.Ping(ctx, addr, PingOptions{Count: 3, Size: 1000}); err != nil || r.Lost() != 0 || len(r.RTTs) != 3 {
				t.Errorf("ping from %s to %s: %+v, %v", tt.from.Name, addr, r, err)
			}
		}
		after, err := tt.to.Received(ctx, tt.wire.Device)
		if err != nil {
			t.Fatal(err)
		}
		if after-before < 6000 {
			t.Errorf("%d bytes came over %s at %s", after-before, tt.wire.Device, tt.to.Name)
		}
	}
	if _, err := a.Received(ctx, "none"); err == nil {
		t.Error("the counters of a device that is not there: no error")
	}
	if r, err := a.UDP(ctx, b.Namespace, first.Addrs[1][0], DatagramOptions{Size: 1000}); err != nil || r.Received == 0 || r.Received > r.Sent {
		t.Errorf("UDP: %+v, %v", r, err)
	}
	sleep, err := b.Start("sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	if pids, err := b.Pids(ctx); err != nil || !slices.Equal(pids, []int{sleep.Pid()}) {
		t.Errorf("processes %v, %v, want %d", pids, err, sleep.Pid())
	}
}
