package host

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/hosts"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// TestHosts: every host shows a host whose Consul agent has failed, and one that is cut off, and the examination of all hosts
// names the cause once.
func TestHosts(t *testing.T) {
	w := newWorld(t, lab.Options{})
	for _, h := range w.Hosts {
		w.Must(h.StartConsul(w.Ctx))
	}
	w.Start(func(h *lab.Host) []string {
		listen := fmt.Sprintf("http {\n  address = \"0.0.0.0:5366\"\n  socket  = %q\n}\n", filepath.Join(h.Dir, "leno.sock"))
		return []string{listen, h.Network("default", world.Plan("vxlan"))}
	})
	w.Settle("default")
	a, b, c := w.Hosts[0], w.Hosts[1], w.Hosts[2]
	healthy := func(h api.Host) bool {
		return (h.State == api.Passing || h.State == api.HostUnknown) && h.Member == "alive" && (h.Own || h.Path != nil && h.Path.State == api.PathReached)
	}
	for _, h := range w.Hosts {
		w.shows(h, "all hosts as healthy", func(list []api.Host) bool {
			return len(list) == 3 && !slices.ContainsFunc(list, func(h api.Host) bool { return !healthy(h) })
		})
	}
	w.finds(a, 3, nil)

	// Through the tunnel, nothing reaches the host. Its agent is asked over the underlay.
	closed := func(script string) {
		_, err := c.Exec(w.Ctx, "sh", "-euc", script)
		w.Must(err)
	}
	closed("nft add table inet closed; nft 'add chain inet closed in { type filter hook input priority 0; }'; nft add rule inet closed in udp dport 8472 drop")
	w.shows(a, "the host whose port is closed", func(list []api.Host) bool {
		return list[0].Node == c.Name && list[0].Path != nil && list[0].Path.State == api.PathLost
	})
	w.finds(a, 3, []string{c.Name + " does not reach any other host"})
	closed("nft delete table inet closed")
	w.shows(a, "all hosts as healthy once the port is open", func(list []api.Host) bool {
		return !slices.ContainsFunc(list, func(h api.Host) bool { return !healthy(h) })
	})

	w.Must(c.Consul.Kill())
	for _, h := range []*lab.Host{a, b} {
		w.shows(h, "the failed Consul agent", func(list []api.Host) bool {
			return list[0].Node == c.Name && list[0].State == api.HostFailed && list[0].Held && strings.Contains(list[0].Reason, "packets reach the host")
		})
		for command, want := range map[string]string{"hosts": c.Name + "  failed (consul)", "peers": "held, failed (consul)"} {
			text, err := h.Leno(w.Ctx, command)
			w.Must(err)
			if !strings.Contains(text, want) {
				t.Errorf("leno %s on %s: %q is not in\n%s", command, h.Name, want, text)
			}
		}
	}
	w.Must(c.Consul.Start(w.Ctx))
	w.shows(a, "the Consul agent that is back", func(list []api.Host) bool {
		return !slices.ContainsFunc(list, func(h api.Host) bool { return !healthy(h) })
	})

	w.Must(c.Cut(w.Ctx))
	for _, h := range []*lab.Host{a, b} {
		w.shows(h, "the host that is cut off", func(list []api.Host) bool {
			return list[0].Node == c.Name && list[0].State == api.HostFailed && list[0].Path != nil && list[0].Path.State == api.PathLost
		})
	}
	w.finds(a, 2, []string{c.Name + " does not reach any other host, and Consul reports it as failed"})
	w.finds(b, 2, []string{c.Name + " does not reach any other host, and Consul reports it as failed"})
	w.shows(c, "all others as lost", func(list []api.Host) bool {
		return !slices.ContainsFunc(list, func(h api.Host) bool { return !h.Own && (h.Path == nil || h.Path.State != api.PathLost) })
	})
	w.finds(c, 1, []string{c.Name + " does not reach any other host"})
	w.Must(c.Mend(w.Ctx))
	for _, h := range w.Hosts {
		w.shows(h, "all hosts as healthy again", func(list []api.Host) bool {
			return !slices.ContainsFunc(list, func(h api.Host) bool { return !healthy(h) })
		})
	}
}

// shows waits until `leno hosts` on a host shows what a test wants.
func (w *testWorld) shows(h *lab.Host, what string, is func([]api.Host) bool) {
	w.T.Helper()
	began := time.Now()
	w.Eventually(h.Name+" to show "+what, func(ctx context.Context) error {
		text, err := h.Leno(ctx, "hosts", "-json")
		if err != nil {
			return err
		}
		var list api.HostList
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			return err
		}
		if len(list.Hosts) == 0 || !is(list.Hosts) {
			return fmt.Errorf("it shows %s", text)
		}
		return nil
	})
	w.T.Logf("%s shows %s after %s", h.Name, what, time.Since(began).Round(time.Second))
}

// finds waits until `leno doctor -all` asks that many agents and its faults in the paths are those wanted.
func (w *testWorld) finds(h *lab.Host, asked int, want []string) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("doctor -all on %s to find %q", h.Name, want), func(ctx context.Context) error {
		text, failed := h.Leno(ctx, "doctor", "-all", "-json")
		var got hosts.Diagnosis
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			return fmt.Errorf("%w: %w: %s", failed, err, text)
		}
		var found []string
		for _, f := range got.Findings {
			if f.Check == "paths" {
				found = append(found, f.Saw)
			}
		}
		isSame := func(saw, want string) bool { return strings.HasPrefix(saw, want) }
		if got.Hosts != 3 || got.Asked != asked || !slices.EqualFunc(found, want, isSame) {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
}
