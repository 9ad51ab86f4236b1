package datapath

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// TestWireGuardKeys checks that a host whose private key was lost takes another one, with the same subnet, and that its
// peers follow; and that a host that becomes a copy of another takes another key, while the other goes on.
func TestWireGuardKeys(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 3})
	w.StartNetwork("wireguard")
	w.Matrix()
	a, b, c := w.Hosts[0], w.Hosts[1], w.Hosts[2]
	flows := func() {
		t.Helper()
		w.Must(errors.Join(w.Pinged(w.Containers[0], w.Containers[1].Addrs[0]), w.Pinged(w.Containers[1], w.Containers[0].Addrs[1])))
	}
	key := func(h *lab.Host) string { return filepath.Join(h.DataDir(), "default", "wireguard.key") }
	read := func(h *lab.Host) string {
		t.Helper()
		text, err := os.ReadFile(key(h))
		w.Must(err)
		return string(text)
	}
	if info, err := os.Stat(key(a)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}

	before, subnet := read(a), w.Subnet(a, "default")
	w.Must(a.KillAgent())
	w.Must(os.Remove(key(a)))
	w.Must(a.RestartAgent())
	w.Must(a.WaitReady(w.Ctx))
	flows()
	if read(a) == before {
		t.Error("the key is the same")
	}
	if now := w.Subnet(a, "default"); now != subnet {
		t.Errorf("subnet %s, before %s", now, subnet)
	}
	w.Matrix()

	// The third host becomes a copy of the second.
	w.Must(c.StopAgent(w.Ctx))
	w.Must(os.WriteFile(key(c), []byte(read(b)), 0o600))
	w.Must(c.RestartAgent())
	w.Must(c.WaitReady(w.Ctx))
	w.Eventually("the copied key to be replaced", func(context.Context) error {
		if read(c) == read(b) {
			return errors.New("it is the same")
		}
		return nil
	})
	w.WaitLog(c, "private key was that of another host")
	flows()
	w.Ping(w.Containers[0], w.Containers[2].Addrs[0]) // the copy
	w.Matrix()
}

// TestWireGuardUnanswered checks that a host whose packets to a peer are dropped by a firewall says so within seconds,
// in its health, in `leno peers` and in `leno doctor`, and is healthy again once they pass.
func TestWireGuardUnanswered(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	a, b := w.Hosts[0], w.Hosts[1]
	_, err := b.Exec(w.Ctx, "nft", "add table inet wall; add chain inet wall in { type filter hook input priority 0; }; "+
		"add rule inet wall in udp dport 51820 drop")
	w.Must(err)
	w.Start(func(h *lab.Host) []string {
		return []string{world.ShortLease, h.Network("default", world.Plan("wireguard"))}
	})
	for _, h := range w.Hosts {
		w.Container(h, "default")
	}
	w.Settle("default")
	pings, err := w.Containers[0].SendEchoes(w.Containers[1].Addrs[0], 100*time.Millisecond)
	w.Must(err)

	routes := func(status string, words ...string) {
		t.Helper()
		w.Eventually("the check of the routes to be "+status, func(context.Context) error {
			_, all := w.Health(a)
			checks := all.Networks[0].Checks
			i := slices.IndexFunc(checks, func(c api.Check) bool { return c.Name == health.Routes })
			if i < 0 || checks[i].Status != status || slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(checks[i].Reason, word) }) {
				return fmt.Errorf("%+v", checks)
			}
			return nil
		})
	}
	peer := func() api.Peer {
		t.Helper()
		var list api.PeerList
		w.Must(world.GetJSON(w.Ctx, a, "/v1/network/default/peers", &list))
		return list.Peers[0]
	}
	shown := func() string {
		t.Helper()
		out, err := a.Leno(w.Ctx, "peers")
		w.Must(err)
		return out
	}

	routes(api.Warning, "1 peers in place; no handshake with "+b.Name+" so far; ", "UDP port")
	if p := peer(); !p.Encrypted || !p.LastHandshake.IsZero() || p.Counters.TxBytes == 0 {
		t.Errorf("%+v, %+v", p, p.Counters)
	}
	if out := shown(); !strings.Contains(out, "HANDSHAKE") || !strings.Contains(out, "never") {
		t.Error(out)
	}
	out, err := a.Leno(w.Ctx, "doctor", "-passive", "-format=json")
	var d api.Diagnosis
	w.Must(errors.Join(json.Unmarshal([]byte(out), &d), err))
	if !slices.ContainsFunc(d.Findings, func(f api.Finding) bool {
		return f.Check == health.Routes && strings.Contains(f.Saw, "no handshake with "+b.Name) && strings.Contains(f.Do, "psk_file")
	}) {
		t.Errorf("%+v", d.Findings)
	}

	passed := time.Now()
	_, err = b.Exec(w.Ctx, "nft", "delete table inet wall")
	w.Must(err)
	routes(api.Passing)
	if p := peer(); p.LastHandshake.Before(passed.Truncate(time.Second)) || p.Counters.RxBytes == 0 {
		t.Errorf("%+v, %+v", p, p.Counters)
	}
	if out := shown(); !strings.Contains(out, " ago") || strings.Contains(out, "never") {
		t.Error(out)
	}
	_, err = pings.Stop()
	w.Must(err)
	w.Matrix()
}

// TestWireGuardRevoked revokes the lease of a host that runs and cannot reach Consul, as if someone had taken it over. Its
// peers remove its key, and it can neither send to them nor receive from them, although it goes on as before. The others
// lose no packet. Once it reaches Consul, it takes part again, with another subnet.
func TestWireGuardRevoked(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 3})
	w.StartNetwork("wireguard")
	w.Matrix()
	a, b, c := w.Hosts[0], w.Hosts[1], w.Hosts[2]
	pings := w.traffic(w.Containers[:2], 0)
	subnet := w.Subnet(c, "default")
	_, err := c.Exec(w.Ctx, "nft", "add table inet wall; add chain inet wall out { type filter hook output priority 0; }; "+
		"add rule inet wall out tcp dport 8500 reject with tcp reset")
	w.Must(err)
	_, err = a.Leno(w.Ctx, "lease", "revoke", "default", subnet.String())
	w.Must(err)
	for _, h := range []*lab.Host{a, b} {
		w.WaitPeers(h, "default", 1)
	}
	var ways errgroup.Group
	for _, way := range [][2]*lab.Container{{w.Containers[2], w.Containers[0]}, {w.Containers[0], w.Containers[2]}, {w.Containers[2], w.Containers[1]}} {
		for _, addr := range way[1].Addrs {
			ways.Go(func() error {
				s, err := way[0].SendEchoes(addr, 20*time.Millisecond)
				if err != nil {
					return err
				}
				sent := lab.WaitFor(w.Ctx, "pings to be sent", func(context.Context) error {
					if n := s.Mark(); n < 50 {
						return fmt.Errorf("%d so far", n)
					}
					return nil
				})
				if r, err := s.Stop(); err == nil && r.Lost() < r.Sent {
					return fmt.Errorf("from %s to %s: %d of %d answered", way[0].Name, addr, r.Sent-r.Lost(), r.Sent)
				}
				return sent
			})
		}
	}
	if err := ways.Wait(); err != nil {
		t.Error(err)
	}
	if routes := strings.Join(w.Routes(c), "\n"); !strings.Contains(routes, w.Subnet(a, "default").String()) {
		t.Errorf("the host does not go on as before:\n%s", routes)
	}
	_, err = c.Exec(w.Ctx, "nft", "delete table inet wall")
	w.Must(err)
	w.moved(c, subnet)
	for _, h := range w.Hosts {
		w.WaitPeers(h, "default", 2)
	}
	pings.stop()
}
