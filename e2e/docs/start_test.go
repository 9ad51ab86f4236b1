package docs

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/docpages"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// TestGettingStarted follows that page in order on two hosts that each have a Consul agent: blocks
// of commands on both, console blocks on host-a. -dev runs on a third host, without Consul.
func TestGettingStarted(t *testing.T) {
	w := world.New(t, lab.Options{})
	r := &reader{w: w, alone: newMachine(w, w.Hosts[2])}
	_, err := r.alone.run("install bin/leno /usr/local/bin/")
	w.Must(err)
	for i, h := range w.Hosts[:2] {
		m := newMachine(w, h)
		r.machines = append(r.machines, m)
		r.prefer(m, "10.5."+docHosts[i].subnet+".1/24", "default")
	}
	w.Must(r.systemctl("start"))
	for _, b := range docpages.Blocks(t, docpages.Path("getting-started")) {
		switch {
		case b.Title != "" || b.NoRun != "":
			r.read(b)
		default:
			for _, s := range steps(b) {
				r.commands++
				r.follow(b, s)
			}
		}
	}
	if r.commands < 20 {
		t.Errorf("only %d commands were run: are they still found?", r.commands)
	}
	left, err := r.machines[0].run("ip link; ip route show proto 108; ip netns; ls -A /etc/leno.d /run/leno /var/lib/leno 2>&1 || true")
	w.Must(err)
	for _, name := range []string{"leno-default", "br-try", "10.5.", "try", "leno.hcl", "node-id"} {
		if strings.Contains(left, name) {
			t.Errorf("cleaned up, and there still is %s:\n%s", name, left)
		}
	}
	keys, _, err := w.Consul.Client().KV().Keys("leno/", "", nil)
	if err != nil || len(keys) > 0 {
		t.Errorf("cleaned up, and there still is in Consul: %q, %v", keys, err)
	}
}

// follow runs one step of a block on both hosts. It also does what the page describes in words: the
// agent is stopped before its host is cleaned up.
func (r *reader) follow(b docpages.Block, s step) {
	r.w.T.Helper()
	if what, ok := strings.CutPrefix(s.line, "sudo systemctl "); ok {
		what, ok = strings.CutSuffix(what, " consul")
		if !ok {
			r.w.T.Fatalf("%s: %s", b, s.line)
		}
		if err := r.systemctl(what); err != nil {
			r.w.T.Fatalf("%s: %s: %v", b, s.line, err)
		}
		return
	}
	if strings.HasPrefix(s.line, "sudo leno cleanup ") {
		for _, m := range r.machines {
			r.w.Must(m.agent.Stop(r.w.Ctx))
		}
	}
	r.step(b, s, b.Kind == "sh")
	if strings.Contains(s.line, "leno agent -config") {
		r.mend()
	}
}

// systemctl starts or stops Consul on all machines, which have no systemd, and waits until the
// agents that run have noticed.
func (r *reader) systemctl(what string) error {
	var all errgroup.Group
	for _, m := range r.machines {
		all.Go(func() error {
			want := http.StatusOK
			switch what {
			case "start":
				if err := m.StartConsul(r.w.Ctx); err != nil {
					return err
				}
			case "stop":
				want = http.StatusTooManyRequests
				if err := m.Consul.Stop(r.w.Ctx); err != nil {
					return err
				}
			default:
				return errors.New("neither start nor stop")
			}
			if m.agent == nil {
				return nil
			}
			return m.agent.WaitFor(r.w.Ctx, m.Name+" to know of Consul", func(ctx context.Context) error {
				status, body, err := m.Get(ctx, "/healthz")
				if err == nil && status != want {
					err = errors.New(body)
				}
				return err
			})
		})
	}
	return all.Wait()
}
