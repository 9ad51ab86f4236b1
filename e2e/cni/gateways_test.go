package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/internal/testkit/programs"
)

// TestOldGateway checks that DEL and GC remove the old gateway from its device when the host has
// another subnet, wherever the subnet file is and whether the configuration names the file, the
// network or neither.
func TestOldGateway(t *testing.T) {
	s := newSite(t, lab.Options{Hosts: 1, NoConsul: true})
	r := s.runtimes[0]
	printed := func(args ...string) string {
		t.Helper()
		out, err := r.Exec(s.ctx, append([]string{filepath.Join(r.path, "leno"), "cni", "-conflist"}, args...)...)
		must(t, err)
		return strings.Replace(out, "1.0.0", "1.1.0", 1) // the first version with GC
	}
	// The kernel of this machine may lack VLANs on bridges. This plugin creates the device with the
	// gateway in another way.
	vlan := filepath.Join(r.Dir, "cni-vlan")
	must(t, os.Mkdir(vlan, 0o755))
	must(t, programs.Write(filepath.Join(vlan, "bridge"), fmt.Appendf(nil,
		"#!/bin/sh\nsed 's/,\"vlan\":7//; s/\"cni-default\"/\"cni-default.7\"/' | %s/bridge\n", r.path)))
	usualPlugins, vlanPlugins := r.cni, r.withPath(vlan, r.path)
	const usual, elsewhere = "/run/leno/default.env", "/run/elsewhere/mine.env"
	for _, tt := range []struct {
		name   string
		conf   string
		file   string // the subnet file
		link   string // symbolic link to the subnet file, or ""
		agent  string // path that the agent reports, or "" without an agent
		device string // the device that has the gateway
		later  func(t *testing.T, c *container)
	}{
		{name: "printed", conf: printed(), file: usual, device: "cni-default"},
		{name: "printed, and a link for a file", conf: printed(), file: elsewhere, link: usual, device: "cni-default"},
		{name: "printed, and the agent tells of another file", conf: printed(), file: elsewhere, agent: elsewhere, device: "cni-default"},
		{name: "printed, and the agent tells of another name", conf: printed(), file: "/run/leno/leno.env", agent: "/run/leno/leno.env", device: "cni-default"},
		{name: "printed, and another network since", conf: printed(), file: usual, device: "cni-default", later: func(t *testing.T, _ *container) {
			must(t, os.WriteFile(r.subnetFile("blue"), []byte(subnetText("10.5.200.1/24")), 0o644))
		}},
		{name: "printed for default", conf: printed("-network=default"), file: usual, device: "cni-default"},
		{name: "for default, and a link for a file", conf: named("x"), file: elsewhere, link: usual, device: "cni-default"},
		{name: "for default, and the agent tells of another file", conf: named("x"), file: elsewhere, agent: elsewhere, device: "cni-default"},
		{name: "subnetFile", conf: conf("x", `,"subnetFile":"`+elsewhere+`"`), file: elsewhere, device: "cni-mine"},
		{name: "subnetFile of a named network", conf: conf("x", `,"network":"default","subnetFile":"`+elsewhere+`"`), file: elsewhere, device: "cni-default"},
		{name: "subnetFile that is a link", conf: conf("x", `,"subnetFile":"/run/link.env"`), file: elsewhere, link: "/run/link.env", device: "cni-link"},
		{name: "another bridge", conf: conf("x", `,"delegate":{"bridge":"br7"}`), file: usual, device: "br7"},
		{name: "a VLAN", conf: conf("x", `,"delegate":{"vlan":7}`), file: usual, device: "cni-default.7"},
		{name: "a configuration that was broken since", conf: named("x"), file: usual, device: "cni-default", later: func(t *testing.T, c *container) {
			c.list = list(t, conf("x", `,"nework":"default"`))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			write := func(subnet string) {
				t.Helper()
				path := filepath.Join(r.dir, tt.file)
				must(t, os.MkdirAll(filepath.Dir(path), 0o755))
				must(t, os.WriteFile(path, []byte(subnetText(subnet)), 0o644))
			}
			on := func(when, gateway string, want bool) {
				t.Helper()
				out, err := r.Exec(s.ctx, "ip", "-o", "addr", "show", "dev", tt.device)
				must(t, err)
				if strings.Contains(out, gateway) != want || !strings.Contains(out, "fd00:5:0:c8::1/64") {
					t.Errorf("on %s after %s, where %s is wanted: %t, got %q", tt.device, when, gateway, want, out)
				}
			}
			if tt.agent != "" {
				s.stubAgent(t, r, "default", tt.agent)
			}
			write("10.5.34.1/24")
			if tt.link != "" {
				must(t, os.Symlink(tt.file, filepath.Join(r.dir, tt.link)))
			}
			t.Cleanup(func() { r.forget(t) })
			if r.cni = usualPlugins; strings.Contains(tt.conf, "vlan") {
				r.cni = vlanPlugins
			}
			c := s.added(t, r, tt.conf)
			others := func() { // an address that another program added
				t.Helper()
				_, err := r.Exec(s.ctx, "ip", "addr", "replace", "fd00:5:0:c8::1/64", "dev", tt.device, "nodad")
				must(t, err)
			}
			others()
			must(t, r.gc(r.cni, c.list, c))
			on("GC with the same subnet", "10.5.34.1/24", true)
			write("10.5.99.1/24")
			must(t, r.gc(r.cni, c.list, c))
			on("GC", "10.5.34.1/24", false)

			next := s.added(t, r, tt.conf)
			others()
			on("ADD", "10.5.99.1/24", true)
			write("10.5.98.1/24")
			if tt.later != nil {
				tt.later(t, next)
			}
			must(t, next.del())
			on("DEL", "10.5.99.1/24", false)
		})
	}
}

// stubAgent responds like an agent that has the file's subnet in the network.
func (s *site) stubAgent(t *testing.T, r *runtime, network, file string) {
	t.Helper()
	r.serve(t, func(w http.ResponseWriter, _ *http.Request) {
		var out api.NetworkList
		text, err := os.ReadFile(filepath.Join(r.dir, file))
		if err == nil {
			_, subnet, _ := strings.Cut(string(text), "LENO_SUBNET=")
			subnet, _, _ = strings.Cut(subnet, "\n")
			out.Networks = []api.Network{{Name: network, Local: &api.Local{
				State: "running", Subnets: []netip.Prefix{netip.MustParsePrefix(subnet).Masked()}, MTU: 1450, SubnetFile: file,
			}}}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Leno-Index", "1")
		_ = json.NewEncoder(w).Encode(out)
	})
}

// serve runs an HTTP server at the agent's address until the test ends.
func (r *runtime) serve(t *testing.T, answer http.HandlerFunc) {
	t.Helper()
	var listener net.Listener
	// A child process that another test is just starting can hold a copy of the previous server's
	// socket until it calls exec.
	must(t, lab.WaitFor(r.ctx, "the agent's port to be free", func(context.Context) error {
		return r.Do(func() (err error) {
			listener, err = net.Listen("tcp", "127.0.0.1:5366")
			return err
		})
	}))
	server := &http.Server{Handler: answer}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
}

// forget puts the host in the state after a boot: /run is empty, and there is no bridge.
func (r *runtime) forget(t *testing.T) {
	t.Helper()
	out, err := r.Exec(r.ctx, "ip", "-br", "link", "show", "type", "bridge")
	must(t, err)
	for line := range strings.Lines(out) {
		_, err := r.Exec(r.ctx, "ip", "link", "del", strings.Fields(line)[0])
		must(t, err)
	}
	out, err = r.Exec(r.ctx, "ip", "-br", "link", "show", "type", "veth")
	must(t, err)
	for line := range strings.Lines(out) {
		name, _, _ := strings.Cut(strings.Fields(line)[0], "@")
		if strings.HasPrefix(name, "veth") {
			_, _ = r.Exec(r.ctx, "ip", "link", "del", name) // deleting the other end may have removed it already
		}
	}
	files, err := filepath.Glob(filepath.Join(r.dir, "run/*"))
	must(t, err)
	for _, file := range files {
		if filepath.Base(file) != "netns" {
			must(t, os.RemoveAll(file))
		}
	}
	must(t, os.Mkdir(filepath.Join(r.dir, "run/leno"), 0o755))
}
