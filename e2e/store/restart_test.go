package store

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// stands returns what leno has in a host's kernel: the device with its index and addresses, and all
// routes.
func (w *testWorld) stands(h *lab.Host) string {
	w.T.Helper()
	text, err := h.Exec(w.Ctx, "ip", "-o", "addr", "show", "dev", "leno-default", "scope", "global")
	w.Must(err)
	// The kernel marks routes while no process has the device open.
	routes := strings.ReplaceAll(strings.Join(w.Routes(h), "\n"), " linkdown", "")
	return fmt.Sprintf("%s\n%s\n%s", w.Link(h), text, routes)
}

// TestAgentRestarted stops agents that forward packets themselves, in both ways, and restarts them
// at once: device, addresses and routes stay the same, and TCP connections survive.
func TestAgentRestarted(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	w.StartNetwork("udp")
	h := w.Hosts[0]
	from, to := w.Containers[1], w.Containers[0]
	w.Linked(w.Containers)
	before := w.stands(h)
	var talks []*lab.Talk
	for _, addr := range to.Addrs {
		talk, err := from.StartTalk(w.Ctx, to.Namespace, addr)
		w.Must(err)
		defer talk.Stop()
		talks = append(talks, talk)
	}
	pings, err := from.StartEchoes(w.Ctx, to.Addrs[0], 10*time.Millisecond)
	w.Must(err)
	for i := range 4 {
		w.Must(pings.WaitAnswers(w.Ctx, 20))
		if i%2 == 0 {
			w.Must(h.KillAgent())
		} else {
			w.Must(h.StopAgent(w.Ctx))
		}
		if got := w.stands(h); got != before {
			t.Errorf("no agent runs, and there is\n%s\nbefore\n%s", got, before)
		}
		w.Must(h.RestartAgent())
		w.Must(pings.WaitAnswers(w.Ctx, 20))
		w.Must(h.WaitReady(w.Ctx))
		for _, talk := range talks {
			w.Must(talk.WaitEchoes(w.Ctx, 20))
		}
		if got := w.stands(h); got != before {
			t.Errorf("after a restart there is\n%s\nbefore\n%s", got, before)
		}
	}
	result, err := pings.Stop()
	w.Must(err)
	t.Logf("%d pings, %d lost, longest gap %s", result.Sent, result.Lost(), result.Gap)
	if result.Gap > 15*time.Second { // tens of milliseconds on a quiet machine
		t.Errorf("no packet passed for %s", result.Gap)
	}
	for _, talk := range talks {
		if _, err := talk.Stop(); err != nil {
			t.Errorf("a TCP connection ended: %v", err)
		}
	}
}

// consulOf returns the agent of Consul that a host uses. An unnamed host has one of its own, which alone knows its name.
func (w *testWorld) consulOf(h *lab.Host, unnamed bool) *lab.Consul {
	w.T.Helper()
	if h.Unnamed = unnamed; unnamed {
		w.Must(h.StartConsul(w.Ctx))
		return h.Consul
	}
	return w.Consul
}

// TestStartFromSaved boots a host while Consul is down and its interface is gone: with start_from_saved it gets its subnet
// file, and its containers reach each other. When both are back, it keeps the subnet. It does not need to know its name.
func TestStartFromSaved(t *testing.T) {
	for _, unnamed := range []bool{false, true} {
		t.Run(fmt.Sprintf("unnamed %t", unnamed), func(t *testing.T) { startFromSaved(t, unnamed) })
	}
}

func startFromSaved(t *testing.T, unnamed bool) {
	w := newWorld(t, lab.Options{Hosts: 2})
	h := w.Hosts[0]
	consul := w.consulOf(h, unnamed)
	const saves = "lease {\n  ttl = \"10s\"\n  start_from_saved = true\n}"
	w.Start(func(h *lab.Host) []string { return []string{saves, h.Network("default", world.Plan("vxlan"))} })
	w.Settle("default")
	before := w.Subnet(h, "default")
	w.Must(consul.Stop(w.Ctx))
	w.Must(h.KillAgent())
	run := func(script string) {
		t.Helper()
		_, err := h.Exec(w.Ctx, "sh", "-euc", script)
		w.Must(err)
	}
	run("ip link del leno-default; ip route flush proto 108; ip -6 route flush proto 108; nft flush ruleset; ip link set eth0 down")
	w.Must(os.Remove(h.SubnetFile("default")))
	w.Must(h.RestartAgent())
	w.Must(h.WaitReady(w.Ctx))
	first, second := w.Container(h, "default"), w.Container(h, "default")
	if !before.Contains(first.Addrs[0]) {
		t.Errorf("the container has %s, outside of %s", first.Addrs[0], before)
	}
	w.Must(first.Reach(w.Ctx, second.Addrs[0]))
	w.Eventually("a warning", func(ctx context.Context) error {
		_, health, err := h.Get(ctx, "/healthz")
		if err == nil && !strings.Contains(health, "stays in use as this host has saved it") {
			err = errors.New(health)
		}
		return err
	})

	// As a network daemon does.
	run(fmt.Sprintf("ip link set eth0 up; ip addr replace %s/64 dev eth0 nodad; ip route replace default via 192.0.2.254", h.Addrs[1]))
	w.Must(consul.Start(w.Ctx))
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusOK)
	}
	w.Linked([]*lab.Container{first, w.Container(w.Hosts[1], "default")})
	if now := w.Subnet(h, "default"); now != before {
		t.Errorf("has %s, had %s", now, before)
	}
}

// TestRestartWithoutConsul restarts agents while Consul is down or hangs: packets flow all the
// same, and the agent reports that Consul has not confirmed its state.
func TestRestartWithoutConsul(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		backend string
		hangs   bool
		unnamed bool
	}{
		{"udp", false, false}, {"udp", true, false}, {"vxlan", false, false}, {"vxlan", false, true}, {"host-gw", false, false},
		{"wireguard", false, false},
	} {
		name := tt.backend
		if tt.hangs {
			name += ", Consul hangs"
		}
		if tt.unnamed {
			name += ", unnamed"
		}
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 2})
			h := w.Hosts[0]
			consul := w.consulOf(h, tt.unnamed)
			w.StartNetwork(tt.backend)
			w.Linked(w.Containers)
			w.Remembered(h, "host-b")
			link, routes := w.Link(h), fmt.Sprint(w.Routes(h))
			talk, err := w.Containers[1].StartTalk(w.Ctx, w.Containers[0].Namespace, w.Containers[0].Addrs[0])
			w.Must(err)
			defer talk.Stop()
			pings, err := w.Containers[0].StartEchoes(w.Ctx, w.Containers[1].Addrs[1], 10*time.Millisecond)
			w.Must(err)
			w.Must(pings.WaitAnswers(w.Ctx, 20))
			deleted := w.RouteEvents(h)
			if tt.hangs {
				w.Must(consul.Process().Signal(syscall.SIGSTOP))
			} else {
				w.Must(consul.Stop(w.Ctx))
			}
			for _, end := range []func() error{h.KillAgent, func() error { return h.StopAgent(w.Ctx) }} {
				w.Must(end())
				w.Must(h.RestartAgent())
				w.Must(pings.WaitAnswers(w.Ctx, 50))
				w.Must(talk.WaitEchoes(w.Ctx, 20))
				w.WaitHealth(h, http.StatusTooManyRequests, "stays in use as the previous process left it")
			}
			if status, body, err := h.Get(w.Ctx, "/readyz"); err != nil || status != http.StatusServiceUnavailable {
				t.Errorf("readyz %d: %s, %v", status, body, err)
			}
			var list api.PeerList
			w.Must(world.GetJSON(w.Ctx, h, "/v1/network/default/peers", &list))
			if len(list.Peers) != 1 || list.Peers[0].Node != "host-b" || list.Peers[0].Skipped != "" {
				t.Errorf("peers %+v", list.Peers)
			}
			own, other := w.Subnet(h, "default").String(), w.Subnet(w.Hosts[1], "default").String()
			for command, says := range map[string][]string{
				"status":             {own},
				"network list":       {"10.5.0.0/16"},
				"lease list default": {own, other},
				"peers default":      {other},
			} {
				out, err := h.Leno(w.Ctx, strings.Fields(command)...)
				for _, says := range says {
					if !strings.Contains(out, says) {
						t.Errorf("leno %s: %v, without %s:\n%s", command, err, says, out)
					}
				}
			}
			if got := w.Link(h); got != link {
				t.Errorf("device %s, before %s", got, link)
			}
			if gone := deleted(); len(gone) != 0 {
				t.Errorf("routes were deleted: %q", gone)
			}
			if got := fmt.Sprint(w.Routes(h)); got != routes {
				t.Errorf("routes %s, before %s", got, routes)
			}

			if tt.hangs {
				w.Must(consul.Process().Signal(syscall.SIGCONT))
			} else {
				w.Must(consul.Start(w.Ctx))
			}
			for _, h := range w.Hosts {
				w.Must(h.WaitReady(w.Ctx))
				w.WaitHealth(h, http.StatusOK)
			}
			result, err := pings.Stop()
			w.Must(err)
			t.Logf("%d pings, %d lost, longest gap %s", result.Sent, result.Lost(), result.Gap)
			if !w.InProcess(h) && result.Lost() != 0 {
				t.Error(result.Losses())
			}
			if _, err := talk.Stop(); err != nil {
				t.Errorf("the TCP connection ended: %v", err)
			}
			w.Matrix()
		})
	}
}
