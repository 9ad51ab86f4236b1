package datapath

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// reloading is a host whose configuration changes while its container is pinged.
type reloading struct {
	*testWorld
	a       *lab.Host
	healthy string // the unchanged configuration
}

// write replaces the configuration.
func (r *reloading) write(text string) {
	r.T.Helper()
	r.Must(os.WriteFile(r.a.ConfigFile(), []byte(text), 0o600))
}

// refused checks that a reload changes nothing and reports the reason.
func (r *reloading) refused(name string, words ...string) {
	r.T.Helper()
	out, err := r.a.Leno(r.Ctx, "reload")
	if err == nil {
		r.T.Errorf("%s: taken over: %s", name, out)
		return
	}
	for _, word := range words {
		if !strings.Contains(strings.Join(strings.Fields(err.Error()), " "), word) {
			r.T.Errorf("%s: no %q in %v", name, word, err)
		}
	}
	var self api.Self
	r.Must(world.GetJSON(r.Ctx, r.a, "/v1/agent/self", &self))
	if len(self.Networks) != 1 {
		r.T.Errorf("%s: networks %q", name, self.Networks)
	}
}

// reload makes the agent load the configuration.
func (r *reloading) reload(args ...string) string {
	r.T.Helper()
	out, err := r.a.Leno(r.Ctx, append([]string{"reload"}, args...)...)
	r.Must(err)
	r.Must(r.a.WaitReady(r.Ctx))
	return out
}

// TestReloadRefused makes every kind of mistake in an agent's configuration under traffic: no
// packet is lost, and each mistake is reported.
func TestReloadRefused(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	a := w.Hosts[0]
	r := &reloading{testWorld: w, a: a}
	blocks := func(h *lab.Host) []string {
		return []string{world.ShortLease, h.Network("default", world.Plan("vxlan"))}
	}
	w.Start(blocks)
	for _, h := range w.Hosts {
		w.Container(h, "default")
	}
	w.Settle("default")
	r.healthy = a.Config(blocks(a)...)
	pings := w.traffic(w.Containers, 0)

	r.write("")
	r.refused("an empty file", "is empty, and was not when it was read last", "would leave default", "leno reload -force")
	r.write("# " + strings.ReplaceAll(r.healthy, "\n", "\n# "))
	r.refused("a file of comments", "is empty")
	r.write(a.Config(world.ShortLease))
	r.refused("no network", "would leave default", "leno reload -force")
	w.Must(a.Agent().Signal(syscall.SIGHUP))
	w.Must(a.Agent().WaitFor(w.Ctx, "the signal to be refused", func(context.Context) error {
		if n := strings.Count(a.Agent().Output(), "reload refused"); n != 4 {
			return fmt.Errorf("%d reloads were refused", n)
		}
		return nil
	}))

	pipe := filepath.Join(a.Dir, "pipe")
	w.Must(syscall.Mkfifo(pipe, 0o600))
	w.Must(os.Remove(a.ConfigFile()))
	w.Must(syscall.Mkfifo(a.ConfigFile(), 0o600))
	r.refused("a FIFO", a.ConfigFile()+": is not a regular file")
	w.Must(os.Remove(a.ConfigFile()))
	r.write(strings.Replace(r.healthy, "consul {", "consul {\n  token_file = \""+pipe+"\"", 1))
	r.refused("a token out of a FIFO", pipe)
	second := a.Network("blue", strings.NewReplacer("10.5.", "10.6.", "fd00:5:", "fd00:6:").Replace(world.Plan("vxlan")))
	r.write(r.healthy + second)
	r.refused("two networks with one VNI", "blue", "vxlan vni 1 on port 8472", a.ConfigFile()+":")
	r.write(strings.Replace(r.healthy, `ttl = "10s"`, "ttl = \"10s\"\n  renew_margin = \"9999ms\"", 1))
	r.refused("renewals without a pause", "renew_margin", "at least 1s")

	// The block's VNI differs from the one in Consul, which takes precedence.
	r.write(strings.Replace(r.healthy, `backend "vxlan" {}`, `backend "vxlan" { vni = 7 }`, 1))
	const command = "leno network apply "
	if out := r.reload(); !strings.Contains(out, "network.default.backend") {
		t.Errorf("reload: %s", out)
	}
	w.Eventually("status to show the difference", func(ctx context.Context) error {
		out, err := a.Leno(ctx, "status")
		if err == nil && (!strings.Contains(out, "stays in force") || !strings.Contains(out, "\n    "+command+a.ConfigFile()+"\n")) {
			err = errors.New(out)
		}
		return err
	})
	w.WaitHealth(a, http.StatusOK, "run: "+command+a.ConfigFile())

	// The same subnet file under another name.
	link := filepath.Join(t.TempDir(), "link")
	w.Must(os.Symlink(a.Dir, link))
	named := filepath.Join(link, filepath.Base(a.SubnetFile("default")))
	r.write(strings.Replace(r.healthy, a.SubnetFile("default"), named, 1))
	before := w.Subnet(a, "default")
	for _, way := range []func(){
		func() { r.reload() },
		func() { // back to the first name, by a restart
			w.Must(a.StopAgent(w.Ctx))
			named = a.SubnetFile("default")
			r.write(r.healthy)
			w.Must(a.RestartAgent())
			w.Must(a.WaitReady(w.Ctx))
		},
	} {
		way()
		w.Eventually("the state file to have "+named, func(context.Context) error {
			var saved struct {
				SubnetFile string `json:"subnet_file"`
			}
			text, err := os.ReadFile(filepath.Join(a.DataDir(), "default.json"))
			if err == nil {
				err = json.Unmarshal(text, &saved)
			}
			if err == nil && saved.SubnetFile != named {
				err = fmt.Errorf("it has %s", saved.SubnetFile)
			}
			return err
		})
		if got := w.Subnet(a, "default"); got != before {
			t.Errorf("subnet %s, before %s", got, before)
		}
	}

	// An agent that is started without networks does not leave its network.
	w.Must(a.StopAgent(w.Ctx))
	r.write(a.Config(world.ShortLease))
	w.Must(a.RestartAgent())
	w.WaitHealth(a, http.StatusServiceUnavailable, "takes part in default", "leno reload -force")
	if status, body, err := a.Get(w.Ctx, "/readyz"); err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("readyz: %d %s %v", status, body, err)
	}
	if out, err := a.Leno(w.Ctx, "status"); err == nil || !strings.Contains(out+err.Error(), "NOT healthy") {
		t.Errorf("status: %v\n%s", err, out)
	}
	if got := w.Subnet(a, "default"); got != before {
		t.Errorf("subnet %s, before %s", got, before)
	}
	r.write(r.healthy)
	r.reload()
	if got := w.Subnet(a, "default"); got != before {
		t.Errorf("subnet %s, before %s", got, before)
	}
	pings.stop()

	// With -force the change is made; it is undone afterwards.
	r.write(a.Config(world.ShortLease))
	r.reload("-force")
	w.Eventually("the subnet file to be removed", func(context.Context) error {
		if _, err := os.Stat(a.SubnetFile("default")); !os.IsNotExist(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
	r.write(r.healthy)
	r.reload()
	if got := w.Subnet(a, "default"); got != before {
		t.Errorf("subnet %s, before it left %s", got, before)
	}
	w.Settle("default")
}

// TestForeignHosts checks that an agent that listens for other hosts accepts requests under its own
// names only.
func TestForeignHosts(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	a, b := w.Hosts[0], w.Hosts[1]
	w.Start(func(h *lab.Host) []string {
		return []string{world.ShortLease, "http {\n  address       = \"0.0.0.0:5366\"\n  allowed_hosts = [\"*.internal\"]\n}\n", h.Network("default", world.Plan("alloc"))}
	})
	ask := func(from *lab.Host, to netip.Addr, host string) (int, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(w.Ctx, http.MethodDelete, "http://"+netip.AddrPortFrom(to, 5366).String()+"/v1/network/none", nil)
		w.Must(err)
		request.Host = host
		request.Header.Set("Origin", "http://"+host)
		answer, err := from.HTTP().Do(request)
		w.Must(err)
		defer answer.Body.Close()
		var refused api.Error
		w.Must(json.NewDecoder(answer.Body).Decode(&refused))
		return answer.StatusCode, refused.Message
	}
	loopback := netip.MustParseAddr("127.0.0.1")
	for _, tt := range []struct {
		from *lab.Host
		to   netip.Addr
		host string
		code int
	}{
		{b, a.Addrs[0], a.Addrs[0].String() + ":5366", http.StatusNotFound},
		{b, a.Addrs[0], a.Name + ":5366", http.StatusNotFound},
		{b, a.Addrs[0], "leno.internal", http.StatusNotFound},
		{b, a.Addrs[0], "evil.example:5366", http.StatusMisdirectedRequest},
		{a, loopback, "localhost:5366", http.StatusNotFound},
		{a, loopback, "evil.example:5366", http.StatusMisdirectedRequest},
		{a, a.Addrs[0], "evil.example:5366", http.StatusMisdirectedRequest},
	} {
		if code, text := ask(tt.from, tt.to, tt.host); code != tt.code || code == http.StatusMisdirectedRequest && !strings.Contains(text, "http.allowed_hosts") {
			t.Errorf("%s asks %s of %s: %d %s", tt.from.Name, tt.host, tt.to, code, text)
		}
	}
}
