package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
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
	if err := l.LengthenQueues(); err != nil {
		t.Error(err)
	}
	if _, err := a.Exec(ctx, "ip", "tuntap", "add", "dev", "tun0", "mode", "tun"); err != nil {
		t.Error(err)
	}
	if err := WaitFor(ctx, "a long queue", func(ctx context.Context) error {
		link, err := a.Exec(ctx, "ip", "link", "show", "tun0")
		if err == nil && !strings.Contains(link, fmt.Sprintf("qlen %d", longQueue)) {
			err = errors.New(link)
		}
		return err
	}); err != nil {
		t.Error(err)
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
