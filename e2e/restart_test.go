package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
)

// stands is what the kernel of a host has of leno's: the device and its index, its
// addresses, and all routes.
func (w *world) stands(h *lab.Host) string {
	w.t.Helper()
	text, err := h.Exec(w.ctx, "ip", "-o", "addr", "show", "dev", "leno-default", "scope", "global")
	w.must(err)
	// While nobody reads a device, its routes say so.
	routes := strings.ReplaceAll(strings.Join(w.routes(h), "\n"), " linkdown", "")
	return fmt.Sprintf("%s\n%s\n%s", w.link(h), text, routes)
}

// TestAgentRestarted ends agents whose packets pass through them, both ways, and
// starts them at once: device, addresses and routes stay as they are, and TCP
// connections live.
func TestAgentRestarted(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	w.startNetwork("udp")
	h := w.Hosts[0]
	from, to := w.containers[1], w.containers[0]
	w.linked(w.containers)
	before := w.stands(h)
	var talks []*lab.Talk
	for _, addr := range to.Addrs {
		talk, err := from.StartTalk(w.ctx, to.Namespace, addr)
		w.must(err)
		defer talk.Stop()
		talks = append(talks, talk)
	}
	pings, err := from.StartPing(to.Addrs[0], lab.PingOptions{Interval: 10 * time.Millisecond})
	w.must(err)
	for i := range 4 {
		w.must(pings.WaitAnswers(w.ctx, 20))
		if i%2 == 0 {
			w.must(h.KillAgent())
		} else {
			w.must(h.StopAgent(w.ctx))
		}
		if got := w.stands(h); got != before {
			t.Errorf("nobody runs, and there is\n%s\nbefore\n%s", got, before)
		}
		w.must(h.RestartAgent())
		w.must(pings.WaitAnswers(w.ctx, 20))
		w.must(h.WaitReady(w.ctx))
		for _, talk := range talks {
			w.must(talk.WaitEchoes(w.ctx, 20))
		}
		if got := w.stands(h); got != before {
			t.Errorf("after a restart there is\n%s\nbefore\n%s", got, before)
		}
	}
	result, err := pings.Stop(w.ctx)
	w.must(err)
	t.Logf("%d pings, %d lost, longest gap %s", result.Sent, result.Lost(), result.Gap)
	if result.Gap > 3*time.Second { // hundredths where nothing else is to be done
		t.Errorf("no packet passed for %s", result.Gap)
	}
	for _, talk := range talks {
		if _, err := talk.Stop(); err != nil {
			t.Errorf("a TCP connection ended: %v", err)
		}
	}
}

// TestRestartWithoutConsul starts agents again while Consul is away, or hangs:
// packets flow all the same, and the agent says that nobody has confirmed that.
func TestRestartWithoutConsul(t *testing.T) {
	for _, tt := range []struct {
		backend string
		hangs   bool
	}{{"udp", false}, {"udp", true}, {"vxlan", false}, {"host-gw", false}} {
		name := tt.backend
		if tt.hangs {
			name += ", Consul hangs"
		}
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 2})
			w.startNetwork(tt.backend)
			w.linked(w.containers)
			w.remembered(w.Hosts[0], "host-b")
			h := w.Hosts[0]
			link, routes := w.link(h), fmt.Sprint(w.routes(h))
			talk, err := w.containers[1].StartTalk(w.ctx, w.containers[0].Namespace, w.containers[0].Addrs[0])
			w.must(err)
			defer talk.Stop()
			pings, err := w.containers[0].StartPing(w.containers[1].Addrs[1], lab.PingOptions{Interval: 10 * time.Millisecond})
			w.must(err)
			w.must(pings.WaitAnswers(w.ctx, 20))
			deleted := w.routeEvents(h)
			if tt.hangs {
				w.must(w.Consul.Process().Signal(syscall.SIGSTOP))
			} else {
				w.must(w.Consul.Stop(w.ctx))
			}
			for _, end := range []func() error{h.KillAgent, func() error { return h.StopAgent(w.ctx) }} {
				w.must(end())
				w.must(h.RestartAgent())
				w.must(pings.WaitAnswers(w.ctx, 50))
				w.must(talk.WaitEchoes(w.ctx, 20))
			}
			w.waitHealth(h, http.StatusTooManyRequests, "carried on as the process before left it")
			if status, body, err := h.Get(w.ctx, "/readyz"); err != nil || status != http.StatusServiceUnavailable {
				t.Errorf("readyz %d: %s, %v", status, body, err)
			}
			var list api.PeerList
			w.must(getJSON(w.ctx, h, "/v1/network/default/peers", &list))
			if len(list.Peers) != 1 || list.Peers[0].Node != "host-b" || list.Peers[0].Skipped != "" {
				t.Errorf("peers %+v", list.Peers)
			}
			if got := w.link(h); got != link {
				t.Errorf("device %s, before %s", got, link)
			}
			if gone := deleted(); len(gone) != 0 {
				t.Errorf("routes were deleted: %q", gone)
			}
			if got := fmt.Sprint(w.routes(h)); got != routes {
				t.Errorf("routes %s, before %s", got, routes)
			}

			if tt.hangs {
				w.must(w.Consul.Process().Signal(syscall.SIGCONT))
			} else {
				w.must(w.Consul.Start(w.ctx))
			}
			for _, h := range w.Hosts {
				w.must(h.WaitReady(w.ctx))
				w.waitHealth(h, http.StatusOK)
			}
			result, err := pings.Stop(w.ctx)
			w.must(err)
			t.Logf("%d pings, %d lost, longest gap %s", result.Sent, result.Lost(), result.Gap)
			if tt.backend != "udp" && result.Lost() != 0 {
				t.Errorf("%d of %d pings lost: %v", result.Lost(), result.Sent, result.Missing)
			}
			if _, err := talk.Stop(); err != nil {
				t.Errorf("the TCP connection ended: %v", err)
			}
			w.matrix()
		})
	}
}

// remembered waits until the host has written down a peer for its next process.
func (w *world) remembered(h *lab.Host, node string) {
	w.t.Helper()
	w.eventually(node+" to be written down", func(ctx context.Context) error {
		text, err := h.Exec(ctx, "cat", h.DataDir()+"/peers/default.json")
		if err == nil && !strings.Contains(text, `"node":"`+node+`"`) {
			err = fmt.Errorf("it is not in %s", text)
		}
		return err
	})
}
