package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	consul "github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
)

// operatorToken may do everything in the Consul of TestPolicy.
const operatorToken = "7f6a3c9e-0000-4000-8000-000000000002"

// denying makes a Consul agent refuse everything without a token.
const denying = `{"acl": {"enabled": true, "default_policy": "deny", "tokens": {%s"agent": "` + operatorToken + `"}}}`

// TestPolicy runs agents with a token of exactly examples/consul/policy.hcl:
// one defines the network, is ready, registered and renews. What the policy does
// not say is denied.
func TestPolicy(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2, ConsulConfig: fmt.Sprintf(denying, `"initial_management": "`+operatorToken+`", `)})
	rules := source(t, "examples/consul/policy.hcl")
	first, second := w.Hosts[0], w.Hosts[1]
	w.startDenyingConsul(first)
	w.startDenyingConsul(second)

	// The first host defines the network. The second only joins it, and so does
	// without the right to define any.
	token := w.startWithPolicy(first, rules, plan("vxlan"))
	definer := regexp.MustCompile(`(?s)\nkey_prefix "leno/networks/" \{.*?\n\}\n`)
	joining := strings.ReplaceAll(definer.ReplaceAllString(rules, "\n"), `"host-a"`, `"host-b"`)
	if !definer.MatchString(rules) || strings.Contains(joining, "host-a") {
		t.Fatal("the policy is not as this test knows it")
	}
	w.startWithPolicy(second, joining, "")

	for _, h := range w.Hosts {
		w.waitHealth(h, http.StatusOK)
		w.waitPeers(h, "default", 1)
		before := w.local(h).Renewed
		w.eventually(h.Name+" to renew", func(context.Context) error {
			if now := w.local(h).Renewed; !now.After(before) {
				return fmt.Errorf("last at %s", now)
			}
			return nil
		})
		w.eventually("the service of "+h.Name, func(context.Context) error {
			entries, _, err := w.Consul.Client().Health().Service("leno", "", true, &consul.QueryOptions{Token: operatorToken})
			for _, e := range entries {
				if e.Node.Node == h.Name && e.Service.Address == h.Addrs[0].String() {
					return nil
				}
			}
			return fmt.Errorf("not among %d that pass, %v", len(entries), err)
		})
	}

	c, q, write := w.Consul.Client(), &consul.QueryOptions{Token: token}, &consul.WriteOptions{Token: token}
	for what, try := range map[string]func() error{
		"reserve a subnet": func() error {
			_, err := c.KV().Put(&consul.KVPair{Key: "leno/reservations/default/10.5.9.0-24"}, write)
			return err
		},
		"write beside leno": func() error { _, err := c.KV().Put(&consul.KVPair{Key: "lenox"}, write); return err },
		"read beside leno":  func() error { _, _, err := c.KV().Get("lenox", q); return err },
		"make a session elsewhere": func() error {
			_, _, err := c.Session().CreateNoChecks(&consul.SessionEntry{Node: second.Name}, write)
			return err
		},
		"list tokens": func() error { _, _, err := c.ACL().TokenList(q); return err },
		"register another service": func() error {
			return c.Agent().ServiceRegisterOpts(&consul.AgentServiceRegistration{Name: "web"}, consul.ServiceRegisterOpts{Token: token})
		},
	} {
		if err := try(); err == nil || !strings.Contains(err.Error(), "403") {
			t.Errorf("%s: %v, want 403", what, err)
		}
	}
	w.denied(first, second)
	w.operators(first, second)
}

// operators runs the commands that change Consul on a, with tokens of exactly the
// rules that the page names, and without.
func (w *world) operators(a, b *lab.Host) {
	w.t.Helper()
	green := filepath.Join(a.Dir, "green.hcl")
	w.must(os.WriteFile(green, []byte(`network "green" {
  ipv4 {
    prefix = "10.7.0.0/16"
  }
  backend "alloc" {}
}
`), 0o600))
	args := map[string][]string{
		"network apply":      {green},
		"network delete":     {"green"},
		"reservation add":    {"-node=host-z", "green", "10.7.9.0/24"},
		"reservation remove": {"green", "10.7.9.0/24"},
		"lease revoke":       {"default", w.subnet(b, "default").String()},
		"lease renew":        {"default"},
		"lease release":      {"default"},
	}
	rules := map[string]string{}
	for _, row := range rows(w.t, page("operations/access-control"), "People") {
		for _, name := range codes(row[0]) {
			for _, m := range regexp.MustCompile(`(\w+) ("[^"]+") (\w+)`).FindAllStringSubmatch(row[1], -1) {
				rules[name] += fmt.Sprintf("%s %s {\n  policy = %q\n}\n", m[1], m[2], m[3])
			}
		}
	}
	leno := func(ctx context.Context, args ...string) error {
		// The race detector would have every command take a second to end.
		_, err := a.Exec(ctx, append([]string{"env", "GORACE=atexit_sleep_ms=0", binary}, args...)...)
		return err
	}
	for _, name := range []string{"network apply", "reservation add", "reservation remove", "network delete", "lease revoke", "lease renew", "lease release"} {
		line := append(strings.Fields(name), args[name]...)
		token := w.newToken(strings.ReplaceAll(name, " ", "-"), rules[name])
		// A network is known to all commands a moment after it was defined.
		w.eventually(name+" to be denied", func(ctx context.Context) error {
			if err := leno(ctx, line...); err == nil || !strings.Contains(err.Error(), "permission denied") {
				return fmt.Errorf("without a token: %v", err)
			}
			return nil
		})
		if err := leno(w.ctx, append(line, "-token="+token)...); err != nil {
			w.t.Errorf("%s with the rules of the page: %v", name, err)
		}
		delete(rules, name)
	}
	if len(rules) > 0 {
		w.t.Errorf("commands of the page that were not run: %v", rules)
	}
}

// newToken makes a policy and a token of it.
func (w *world) newToken(name, rules string) string {
	w.t.Helper()
	acl, write := w.Consul.Client().ACL(), &consul.WriteOptions{Token: operatorToken}
	policy, _, err := acl.PolicyCreate(&consul.ACLPolicy{Name: name, Rules: rules}, write)
	w.must(err)
	token, _, err := acl.TokenCreate(&consul.ACLToken{Policies: []*consul.ACLLink{{ID: policy.ID}}}, write)
	w.must(err)
	return token.SecretID
}

// startDenyingConsul runs a Consul client agent with ACLs on a host.
func (w *world) startDenyingConsul(h *lab.Host) {
	w.t.Helper()
	path, err := lab.FindConsul()
	w.must(err)
	config := filepath.Join(h.Dir, "acl.json")
	w.must(os.WriteFile(config, fmt.Appendf(nil, denying, ""), 0o600))
	p, err := h.Start(path, "agent", "-config-file="+config, "-data-dir="+filepath.Join(h.Dir, "consul"), "-node="+h.Name,
		"-bind="+h.Addrs[0].String(), "-retry-join="+w.Consul.Addr.String(), "-retry-interval=1s", "-grpc-port=-1", "-dns-port=-1")
	w.must(err)
	w.must(p.WaitFor(w.ctx, "the node of "+h.Name, func(context.Context) error {
		node, _, err := w.Consul.Client().Catalog().Node(h.Name, &consul.QueryOptions{Token: operatorToken})
		if err == nil && node == nil {
			err = fmt.Errorf("not in the catalogue")
		}
		return err
	}))
}

// startWithPolicy runs the agent of a host, with Consul on it, under a token of
// the rules.
func (w *world) startWithPolicy(h *lab.Host, rules, network string) (token string) {
	w.t.Helper()
	token = w.newToken(h.Name, rules)
	file := filepath.Join(h.Dir, "token")
	w.must(os.WriteFile(file, []byte(token+"\n"), 0o600))
	w.must(h.StartAgent(fmt.Sprintf("data_dir = %q\nconsul {\n  token_file = %q\n}\n%s\n%s", h.DataDir(), file, shortLease, h.Network("default", network))))
	w.must(h.WaitReady(w.ctx))
	return token
}

// local is the host's part in the network "default".
func (w *world) local(h *lab.Host) api.Local {
	w.t.Helper()
	var n api.Network
	w.must(getJSON(w.ctx, h, "/v1/network/default", &n))
	if n.Local == nil {
		w.t.Fatalf("%s takes no part", h.Name)
	}
	return *n.Local
}

// unit are the settings of files in examples/systemd, the unit and drop-ins. What
// stands in several lines, as lists may, is joined.
func unit(t *testing.T, files ...string) map[string]string {
	t.Helper()
	lists := []string{"SystemCallFilter", "AmbientCapabilities", "CapabilityBoundingSet"}
	out := map[string]string{}
	for _, file := range files {
		for i, line := range strings.Split(source(t, "examples/systemd/"+file), "\n") {
			key, value, ok := strings.Cut(line, "=")
			switch {
			case line == "", strings.HasPrefix(line, "#"), strings.HasPrefix(line, "["):
			case !ok || out[key] != "" && !slices.Contains(lists, key):
				t.Errorf("%s, line %d: %q", file, i+1, line)
			default:
				out[key] = strings.TrimSpace(out[key] + " " + value)
			}
		}
	}
	return out
}

// TestUnit holds the unit against what the agent does: it may wait for Consul
// without limit, nothing of a host's state goes with it, and only a configuration
// it cannot start with keeps it from starting again.
func TestUnit(t *testing.T) {
	got := unit(t, "leno.service")
	for key, want := range map[string]string{
		"Type": "notify", "Restart": "always", "TimeoutStartSec": "infinity",
		"RestartSec": "200ms", "StartLimitIntervalSec": "0", // systemd gives up after five failures by default
		"RestartPreventExitStatus": "78", // of a configuration that cannot be used
		"ExecStart":                "/usr/local/bin/leno agent -config-dir=/etc/leno.d", "ExecReload": "/bin/kill -HUP $MAINPID",
		"RuntimeDirectoryPreserve": "yes",                   // systemd would remove the subnet files at every stop
		"RuntimeDirectoryMode":     "0755", "UMask": "0077", // container runtimes read them
	} {
		if got[key] != want {
			t.Errorf("%s=%s, want %q", key, got[key], want)
		}
	}
	// It wants the program to be there.
	text := strings.ReplaceAll(source(t, "examples/systemd/leno.service"), "/usr/local/bin/leno", "/bin/true")
	path := filepath.Join(t.TempDir(), "leno.service")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	// Without a systemd that runs, it cannot say what it knows of the host's own units.
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", path).CombinedOutput(); err != nil || strings.Contains(string(out), "leno.service") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	// 10 is no protection at all. What remains is what the agent is for.
	if out, err := exec.Command("systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=25", path).CombinedOutput(); err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}

// TestLeaseRevoked takes a lease from a living host: it takes another subnet and
// the others follow, to its new containers. A record that is merely deleted is
// written again, on the same subnet.
func TestLeaseRevoked(t *testing.T) {
	w := newWorld(t, lab.Options{})
	w.startNetwork("vxlan")
	a, b := w.Hosts[0], w.Hosts[1]
	subnet := w.subnet(b, "default")
	_, err := w.Consul.Client().KV().Delete(leaseKey("default", subnet), nil)
	w.must(err)
	w.eventually("the lease to be taken back", func(context.Context) error {
		if now := w.session(b); now == "" {
			return fmt.Errorf("no lease of %s", subnet)
		}
		return nil
	})
	w.settle("default")
	w.matrix()
	if got := w.subnet(b, "default"); got != subnet {
		t.Errorf("subnet %s, before %s", got, subnet)
	}
	w.waitHealth(b, http.StatusOK)

	w.reserveUnderTraffic(a, b)
	_, err = a.Leno(w.ctx, "lease", "revoke", "default", subnet.String())
	w.must(err)
	var now netip.Prefix
	w.eventually("another subnet", func(context.Context) error {
		if now = w.subnet(b, "default"); now == subnet {
			return fmt.Errorf("still %s", now)
		}
		return nil
	})
	for _, h := range w.Hosts {
		if h == b {
			continue
		}
		w.eventually(h.Name+" to follow", func(context.Context) error {
			routes := strings.Join(w.routes(h), "\n")
			if strings.Contains(routes, subnet.String()) || !strings.Contains(routes, now.String()) {
				return fmt.Errorf("from %s to %s: %s", subnet, now, routes)
			}
			return nil
		})
	}
	w.containers = slices.DeleteFunc(w.containers, func(c *lab.Container) bool {
		if c.Host == b {
			w.must(c.Remove(w.ctx))
		}
		return c.Host == b
	})
	w.container(b, "default")
	w.matrix()
	w.waitHealth(b, http.StatusOK)
	for _, words := range []string{"lease was revoked", "containers must be restarted"} {
		if !strings.Contains(b.Agent().Output(), words) {
			t.Errorf("the log does not say %q", words)
		}
	}
}

// reserveUnderTraffic reserves b's subnet for another host, and takes that back:
// it is refused with b's name unless forced, and neither touches a lease, a route
// or a packet.
func (w *world) reserveUnderTraffic(a, b *lab.Host) {
	w.t.Helper()
	subnet, session := w.subnet(b, "default"), w.session(b)
	deleted := w.routeEvents(a)
	add := []string{"reservation", "add", "-node=somebody", "default", subnet.String()}
	if out, err := a.Leno(w.ctx, add...); err == nil || !strings.Contains(err.Error(), b.Name) {
		w.t.Errorf("reserved the subnet of a living host: %s, %v", out, err)
	}
	for _, args := range [][]string{append(add, "-force"), {"reservation", "remove", "default", subnet.String()}} {
		_, err := a.Leno(w.ctx, args...)
		w.must(err)
		w.matrix()
		if now := w.session(b); now != session || w.subnet(b, "default") != subnet {
			w.t.Errorf("%v: %s under session %q, before %s under %q", args, w.subnet(b, "default"), now, subnet, session)
		}
	}
	if gone := deleted(); len(gone) != 0 {
		w.t.Errorf("routes were deleted: %q", gone)
	}
}
