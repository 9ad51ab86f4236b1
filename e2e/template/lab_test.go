// Package template renders examples/consul-template with the real program, from a real Consul to
// which real agents and other programs write.
package template

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/e2e/lab"
)

// binary is the path of the leno under test, built once.
var binary string

func TestMain(m *testing.M) {
	os.Exit(lab.RunWithLeno(&binary, m.Run))
}

// operatorToken has all rights in the lab's Consul, which refuses everything without a token.
const operatorToken = "7f6a3c9e-0000-4000-8000-000000000002"

const denying = `{"acl": {"enabled": true, "default_policy": "deny", "token_ttl": "0s", "policy_ttl": "0s",
	"tokens": {"initial_management": "` + operatorToken + `", "agent": "` + operatorToken + `"}}}`

// A world is the lab of a test.
type world struct {
	*lab.Lab
	t               *testing.T
	ctx             context.Context
	program, source string // paths of consul-template and of the examples
}

// networks are the networks of host-a by name: one with both families and one with each alone.
// host-b takes part in the first one only.
var networks = []struct{ name, body string }{
	{"default", "ipv4 { prefix = \"10.5.0.0/16\" }\n ipv6 { prefix = \"fd00:5::/48\" }\n backend \"vxlan\" {}\n ip_masq = true"},
	{"four", "ipv4 {\n prefix = \"10.6.128.0/17\"\n subnet_len = 27\n }\n backend \"vxlan\" { vni = 2 }"},
	{"six", "ipv6 {\n prefix = \"fd00:6:0:800::/53\"\n subnet_len = 70\n }\n backend \"vxlan\" { vni = 3 }"},
}

func newWorld(t *testing.T) *world {
	t.Helper()
	l, err := lab.New(context.Background(), lab.Options{Hosts: 2, Leno: binary, ConsulConfig: denying})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute) // after the wait for other labs
	t.Cleanup(cancel)
	w := &world{Lab: l, t: t, ctx: ctx}
	t.Cleanup(func() {
		for _, h := range w.Hosts {
			if p := h.Agent(); t.Failed() && p != nil {
				t.Logf("agent of %s:\n%.4000s", h.Name, p.Output())
			}
		}
		if err := l.Close(); err != nil {
			t.Errorf("close the lab: %v", err)
		}
	})
	w.program, err = lab.FindConsulTemplate()
	w.must(err)
	w.source, err = filepath.Abs("../../examples/consul-template")
	w.must(err)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// startAgent runs an agent of the networks on a host and waits for it. In "default" it takes the
// given slot.
func (w *world) startAgent(h *lab.Host, slot int, names ...string) {
	w.t.Helper()
	w.prefer(h, slot)
	config := h.Config()
	config = strings.Replace(config, "consul {", fmt.Sprintf("consul {\n  token = %q\n  service = \"\"", operatorToken), 1)
	for _, n := range networks {
		for _, name := range names {
			if n.name == name {
				config += h.Network(n.name, n.body)
			}
		}
	}
	w.must(h.StartAgent(config))
	w.must(h.WaitReady(w.ctx))
}

// prefer makes the next agent on a host take the slot in "default", below the slots of strangers.
func (w *world) prefer(h *lab.Host, slot int) {
	w.t.Helper()
	w.must(os.WriteFile(h.SubnetFile("default"), fmt.Appendf(nil, "LENO_SUBNET=10.5.%d.1/24\n", slot), 0o644))
}

// token returns a new token with the rules.
func (w *world) token(name, rules string) string {
	w.t.Helper()
	write := &consul.WriteOptions{Token: operatorToken}
	acl := w.Consul.Client().ACL()
	policy, _, err := acl.PolicyCreate(&consul.ACLPolicy{Name: name, Rules: rules}, write)
	w.must(err)
	token, _, err := acl.TokenCreate(&consul.ACLToken{Policies: []*consul.ACLLink{{ID: policy.ID}}}, write)
	w.must(err)
	return token.SecretID
}

// example returns the text of one of the examples.
func (w *world) example(name string) string {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.source, name))
	w.must(err)
	return string(text)
}

// A rendering is one consul-template on host-a, with the example configuration except for the
// locations of its files.
type rendering struct {
	*lab.Process
	w       *world
	network string
	dir     string // stands for /
}

// render starts consul-template with the environment.
func (w *world) render(network, dir string, environment ...string) *rendering {
	w.t.Helper()
	h := w.Hosts[0]
	r := &rendering{w: w, network: network, dir: filepath.Join(h.Dir, dir)}
	config := strings.NewReplacer(`"/etc/consul-template/`, `"`+w.source+`/`, `"127.0.0.1:8500"`, `"`+w.Consul.Address()+`"`,
		`"/run/`, `"`+r.dir+`/run/`, `"/etc/`, `"`+r.dir+`/etc/`).Replace(w.example("leno.hcl"))
	path := filepath.Join(r.dir, "leno.hcl")
	w.must(os.MkdirAll(r.dir, 0o755))
	w.must(os.WriteFile(path, []byte(config), 0o644))
	command := append([]string{"env", "PATH=" + filepath.Join(h.Dir, "bin") + ":" + os.Getenv("PATH"), "NGINX_DIR=" + r.dir}, environment...)
	var err error
	r.Process, err = h.Start(append(command, w.program, "-config="+path, "-log-level=trace")...)
	w.must(err)
	return r
}

const (
	hostsFile  = "run/consul-template/leno/hosts.json"
	subnetFile = "run/consul-template/leno/subnet.env"
	nginxFile  = "etc/nginx/leno-allow.conf"
	dockerFile = "etc/docker/daemon.json"
)

// file returns a rendered file, or "" if there is none yet.
func (r *rendering) file(path string) string {
	r.w.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, path))
	if err != nil && !os.IsNotExist(err) {
		r.w.t.Fatal(err)
	}
	return string(text)
}

// eventually blocks until a condition on the rendered files holds.
func (r *rendering) eventually(what string, done func() error) {
	r.w.t.Helper()
	if err := r.WaitFor(r.w.ctx, what, func(context.Context) error { return done() }); err != nil {
		r.w.t.Fatal(err)
	}
}

// said blocks until the output contains the words.
func (r *rendering) said(words string) {
	r.w.t.Helper()
	r.eventually(words, func() error {
		if !strings.Contains(r.Output(), words) {
			return fmt.Errorf("not in its output")
		}
		return nil
	})
}
