package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/internal/testkit/programs"
)

// TestConflist: the plugin accepts the printed configuration, and it is the same as the example.
func TestConflist(t *testing.T) {
	var list struct {
		CNIVersion string            `json:"cniVersion"`
		Name       string            `json:"name"`
		Plugins    []json.RawMessage `json:"plugins"`
	}
	for _, network := range []string{"", "blue"} {
		got := conflistOf(t, network)
		if err := json.Unmarshal([]byte(got), &list); err != nil || len(list.Plugins) != 3 {
			t.Fatalf("%v: %s", err, got)
		}
		plugin := map[string]any{"cniVersion": list.CNIVersion, "name": list.Name}
		if err := json.Unmarshal(list.Plugins[0], &plugin); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(plugin)
		if err != nil {
			t.Fatal(err)
		}
		c, err := parseConf(text)
		if err != nil || c.Network != network {
			t.Errorf("%v: %+v", err, c)
		}
	}
	got := conflistOf(t, "default")
	for _, example := range []string{"cni", "nomad"} {
		want, err := os.ReadFile("../../examples/" + example + "/leno.conflist")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("examples/%s/leno.conflist is another one (-example +printed):\n%s", example, diff)
		}
	}
	if got := conflistOf(t, "blue"); !strings.Contains(got, `"name": "leno-blue"`) {
		t.Errorf("of blue: %s", got)
	}
}

// conflistOf returns what `leno cni -conflist -network=NETWORK` prints.
func conflistOf(t *testing.T, network string) string {
	t.Helper()
	var out strings.Builder
	p := &plugin{meta: cli.Meta{Stdout: &out}, conflist: true, network: network}
	if err := p.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// fakeAgent serves the networks and the health of an agent: network default, in which its host has
// a subnet, and network blue, in which it takes no part.
type fakeAgent struct {
	url      string
	networks []api.Network
	health   api.Health
}

func newFakeAgent(t *testing.T) *fakeAgent {
	t.Helper()
	f := &fakeAgent{
		networks: []api.Network{{Name: "blue"}, {Name: "default", Local: &api.Local{State: "running",
			Subnets: []netip.Prefix{prefix("10.5.34.0/24"), prefix("fd00:5:0:22::/64")}, SubnetFile: "/run/leno/default.env"}}},
		health: api.Health{Status: api.Passing, Ready: true, Networks: []api.NetworkHealth{{Network: "default", Status: api.Passing, Ready: true}}},
	}
	mux := http.NewServeMux()
	for path, body := range map[string]func() any{
		"GET /v1/networks": func() any { return api.NetworkList{Networks: f.networks} },
		"GET /healthz":     func() any { return f.health },
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(body()); err != nil {
				t.Error(err)
			}
		})
	}
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	f.url = srv.URL
	return f
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// TestCNIFacts checks the facts from an agent's response and the subnet file that it names.
func TestCNIFacts(t *testing.T) {
	const file = "LENO_NETWORK=10.5.0.0/16\nLENO_SUBNET=10.5.34.1/24\nLENO_IPV6_NETWORK=fd00:5::/48\nLENO_IPV6_SUBNET=fd00:5:0:22::1/64\nLENO_MTU=1450\nLENO_IPMASQ=true\n"
	const evil = "LENO_NETWORK=198.51.0.0/16\nLENO_SUBNET=198.51.100.1/24\nLENO_MTU=1450\n"
	lying := func(f *fakeAgent) { f.networks[1].Local.Subnets = []netip.Prefix{prefix("198.51.100.0/24")} }
	for _, tt := range []struct {
		name   string
		agent  func(*fakeAgent)
		conf   string
		file   string
		usual  string // content of the default subnet file
		last   bool
		subnet string // "" for an error
		code   uint
		want   string
	}{
		{name: "running", file: file, subnet: "10.5.34.0/24"},
		{name: "named", conf: `,"network":"default"`, file: file, subnet: "10.5.34.0/24"},
		{name: "no file yet", code: types.ErrTryAgainLater, want: "has no subnet file"},
		{name: "no subnet yet", agent: starting, file: file, code: types.ErrTryAgainLater, want: "waiting for consul"},
		{name: "no subnet in time", agent: starting, file: file, last: true, subnet: "10.5.34.0/24"},
		{name: "no subnet, no file", agent: starting, last: true, code: types.ErrTryAgainLater, want: "waiting for consul"},
		{name: "another subnet", agent: func(f *fakeAgent) { f.networks[1].Local.Subnets[0] = prefix("10.5.35.0/24") }, file: file, last: true,
			code: types.ErrTryAgainLater, want: "is not in its subnet file"},
		{name: "not of this host", conf: `,"network":"blue"`, code: types.ErrTryAgainLater, want: `is not in network "blue"; the agent knows blue, default`},
		{name: "of no network", agent: func(f *fakeAgent) { f.networks = nil }, code: types.ErrTryAgainLater, want: "knows none"},
		{name: "of several", agent: func(f *fakeAgent) { f.networks[0].Local = f.networks[1].Local }, code: types.ErrInvalidNetworkConfig, want: "blue, default"},
		{name: "of no name", agent: func(f *fakeAgent) { f.networks[1].Name = "../x" }, file: file, code: types.ErrTryAgainLater, want: "knows blue, ../x"},
		{name: "where it lies as usual", conf: `,"network":"default"`, agent: lying, usual: file, file: evil, subnet: "10.5.34.0/24"},
		{name: "as usual, broken", conf: `,"network":"default"`, usual: "LENO_SUBNET=x\n", file: file, code: types.ErrIOFailure, want: `LENO_SUBNET="x"`},
		{name: "as usual, the name is the agent's", agent: lying, usual: file, file: evil, last: true, code: types.ErrTryAgainLater, want: "is not in its subnet file"},
		{name: "out of its range", file: strings.Replace(file, "10.5.0.0", "10.6.0.0", 1), code: types.ErrIOFailure, want: "10.5.34.1/24 is in no range"},
		{name: "too large", file: strings.Repeat("#", 1<<16) + file, code: types.ErrIOFailure, want: "no LENO_SUBNET"},
		{name: "broken", file: "LENO_SUBNET=x\n", code: types.ErrIOFailure, want: `LENO_SUBNET="x"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeAgent(t)
			path := filepath.Join(ownDir(t), "default.env")
			f.networks[1].Local.SubnetFile = path
			if tt.agent != nil {
				tt.agent(f)
			}
			if tt.file != "" {
				if err := os.WriteFile(path, []byte(tt.file), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			p, c := cniOf(t, f, tt.conf)
			if tt.usual != "" {
				writeUsual(t, p, "default", tt.usual)
			}
			left := time.Second
			if tt.last {
				left = 0
			}
			got, err := p.findFacts(t.Context(), c, left)
			if tt.subnet != "" {
				if err != nil || got.Network != "default" || got.Subnets()[0] != prefix(tt.subnet) || got.MTU != 1450 || !got.IPMasq || len(got.Pools) != 2 {
					t.Errorf("%+v, %v", got, err)
				}
				return
			}
			isCNI(t, err, tt.code, tt.want)
		})
	}
}

func starting(f *fakeAgent) {
	f.networks[1].Local.Subnets, f.networks[1].Local.State = nil, "waiting for consul"
}

// cniOf returns the plugin with a configuration that names the agent.
func cniOf(t *testing.T, f *fakeAgent, conf string) (*plugin, networkConf) {
	t.Helper()
	c, err := parseConf([]byte(`{"cniVersion":"1.1.0","name":"x","type":"leno-cni","address":"` + f.url + `"` + conf + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return &plugin{meta: cli.Meta{Getenv: func(string) string { return "" }}, runDir: ownDir(t)}, c
}

// ownDir returns a directory that other users cannot write, whatever the umask is.
func ownDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// writeUsual writes a subnet file in the default place.
func writeUsual(t *testing.T, p *plugin, network, text string) string {
	t.Helper()
	path := p.defaultSubnetFile(network)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestCNITrust: a subnet file counts only if no other user can have written it.
func TestCNITrust(t *testing.T) {
	const file = "LENO_NETWORK=10.5.0.0/16\nLENO_SUBNET=10.5.34.1/24\nLENO_MTU=1450\n"
	for _, tt := range []struct {
		name string
		do   func(dir, path string) (string, error) // returns the path that is read
		want string                                 // "" for accepted
	}{
		{"fine", func(_, path string) (string, error) { return path, nil }, ""},
		{"by a link", func(dir, path string) (string, error) {
			return filepath.Join(dir, "link"), os.Symlink(path, filepath.Join(dir, "link"))
		}, ""},
		{"relative", func(string, string) (string, error) { return "default.env", nil }, "absolute"},
		{"written by others", func(_, path string) (string, error) { return path, os.Chmod(path, 0o666) }, "default.env can be written by others"},
		{"in a directory of others", func(dir, path string) (string, error) { return path, os.Chmod(dir, 0o777) }, "can be written by others"},
		{"below a directory of others", func(dir, path string) (string, error) {
			below := filepath.Join(dir, "below")
			err := errors.Join(os.Mkdir(below, 0o755), os.Rename(path, filepath.Join(below, "x.env")), os.Chmod(dir, 0o777))
			return filepath.Join(below, "x.env"), err
		}, "can be written by others"},
		{"by a link to a directory of others", func(dir, path string) (string, error) {
			below := filepath.Join(dir, "below")
			err := errors.Join(os.Mkdir(below, 0o755), os.Rename(path, filepath.Join(below, "x.env")), os.Chmod(below, 0o777), os.Symlink(filepath.Join(below, "x.env"), path))
			return path, err
		}, "below can be written by others"},
		{"a directory", func(dir, _ string) (string, error) { return dir, nil }, "is not a file"},
		{"a pipe", func(dir, _ string) (string, error) {
			return filepath.Join(dir, "pipe"), syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644)
		}, "pipe is not a file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &plugin{runDir: ownDir(t)}
			path, err := tt.do(p.runDir, writeUsual(t, p, "default", file))
			if err != nil {
				t.Fatal(err)
			}
			_, err = p.readFacts("default", path, "")
			if tt.want == "" && err != nil {
				t.Error(err)
			}
			if tt.want != "" {
				isCNI(t, err, types.ErrIOFailure, tt.want)
			}
		})
	}
}

// silence is an agent that accepts connections and answers nothing.
type silence struct {
	net.Listener
	accepted chan string // address of the other end of each connection
}

func newSilence(t *testing.T) *silence {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &silence{listener, make(chan string, 1000)}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			s.accepted <- conn.RemoteAddr().String()
		}
	})
	t.Cleanup(func() {
		_ = listener.Close() // ends the goroutine
		accepting.Wait()
	})
	return s
}

func (s *silence) url() string { return "http://" + s.Addr().String() }

// asked returns how many connections there were so far. They are accepted in the order in which they were made, but
// perhaps later, so asked makes another one and waits until it is accepted.
func (s *silence) asked(t *testing.T) (before int) {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for <-s.accepted != conn.LocalAddr().String() {
		before++
	}
	return before
}

// TestCNISilentAgent: the plugin waits for a hanging agent as long as the configuration says, and
// STATUS asks it once.
func TestCNISilentAgent(t *testing.T) {
	t.Parallel() // it waits
	p, c := cniOf(t, &fakeAgent{url: newSilence(t).url()}, `,"wait":"1s"`)
	began := time.Now()
	_, err := p.waitForFacts(t.Context(), c, true)
	isCNI(t, err, types.ErrTryAgainLater, "did not answer within 1s")
	if took := time.Since(began); took > time.Minute {
		t.Errorf("waited %s", took)
	}

	writeUsual(t, p, "default", "LENO_NETWORK=10.5.0.0/16\nLENO_SUBNET=10.5.34.1/24\nLENO_MTU=1450\n")
	plugins := t.TempDir()
	for _, name := range []string{"bridge", "host-local"} {
		if err := programs.Write(filepath.Join(plugins, name), []byte("#!/bin/sh\n")); err != nil {
			t.Fatal(err)
		}
	}
	silent := newSilence(t)
	text := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"x","type":"leno-cni","address":%q}`, silent.url())
	if err := p.status(t.Context(), &skel.CmdArgs{StdinData: []byte(text), Path: plugins}); err != nil {
		t.Error(err)
	}
	if n := silent.asked(t); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

func isCNI(t *testing.T, err error, code uint, want string) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Msg, want) {
		t.Errorf("%#v is not of code %d with %q", err, code, want)
	}
}

// TestCNILimits: STATUS reports a network whose containers cannot be reached.
func TestCNILimits(t *testing.T) {
	f := newFakeAgent(t)
	p, c := cniOf(t, f, "")
	check := func(status string) {
		f.health.Networks[0].Status = status
		f.health.Networks[0].Checks = []api.Check{{Name: "device", Status: status, Reason: "operation not permitted"}, {Name: "lease", Status: api.Passing, Reason: "held"}}
	}
	for _, status := range []string{api.Passing, api.Warning} {
		check(status)
		if err := p.checkReachable(t.Context(), c, "default"); err != nil {
			t.Errorf("%s: %v", status, err)
		}
	}
	check(api.Critical)
	isCNI(t, p.checkReachable(t.Context(), c, "default"), codeLimited, "network default: device: operation not permitted; see `leno status`")
	if err := p.checkReachable(t.Context(), c, "blue"); err != nil {
		t.Errorf("of another network: %v", err)
	}
}
