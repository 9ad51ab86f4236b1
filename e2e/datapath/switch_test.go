package datapath

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
	"github.com/lenonet/leno/registry"
)

// pingEvery is the time between pings of one container to another one. All of them pass through agents with the race
// detector, also when the machine is busy.
const pingEvery = 20 * time.Millisecond

// between starts pings and a TCP connection from each container to each other one.
func (w *testWorld) between(containers []*lab.Container) (pings *traffic, talks []*lab.Talk) {
	w.T.Helper()
	w.Linked(containers)
	pings = &traffic{w: w}
	for i, from := range containers {
		for j, to := range containers {
			if i == j {
				continue
			}
			s, err := from.StartEchoes(w.Ctx, to.Addrs[(i+j)%len(to.Addrs)], pingEvery)
			w.Must(err)
			pings.streams = append(pings.streams, s)
		}
	}
	talks = w.talks(containers)
	pings.flows()
	return pings, talks
}

// talks starts a TCP connection between each two containers.
func (w *testWorld) talks(containers []*lab.Container) (out []*lab.Talk) {
	w.T.Helper()
	for i, from := range containers {
		for _, to := range containers[i+1:] {
			talk, err := from.StartTalk(w.Ctx, to.Namespace, to.Addrs[0])
			w.Must(err)
			out = append(out, talk)
		}
	}
	return out
}

// carriage returns the network's backends in the store, also as JSON.
func (w *testWorld) carriage() (registry.Carriage, string) {
	w.T.Helper()
	c := w.Stored("default", nil).Carriage()
	text, err := json.Marshal(c)
	w.Must(err)
	return c, string(text)
}

// switched blocks until the switch to a backend with an option has ended on all hosts: nothing of the other one is left.
func (w *testWorld) switched(kind, option string) {
	w.T.Helper()
	w.switchedOn(w.Hosts, kind, option)
}

// switchedOn is like switched, for some hosts.
func (w *testWorld) switchedOn(hosts []*lab.Host, kind, option string) {
	w.T.Helper()
	w.Eventually("the network to be switched to "+kind, func(context.Context) error {
		c, b := w.carriage()
		if c.Backend.Type != kind || !strings.Contains(b, option) || c.Switch != nil {
			var all []string
			for _, h := range w.Hosts {
				var n api.Network
				if err := world.GetJSON(w.Ctx, h, "/v1/network/default", &n); err == nil && n.Local != nil {
					all = append(all, fmt.Sprintf("%s: %+v", h.Name, n.Local.Switch))
				}
			}
			return fmt.Errorf("%s\n%s", b, strings.Join(all, "\n"))
		}
		return nil
	})
	c, _ := w.carriage()
	stays, goes := backend.LinkName("default"), backend.LinkNameB("default")
	if c.Epoch.Number%2 != 0 {
		stays, goes = goes, stays
	}
	for _, h := range hosts {
		w.Eventually("only the device of "+kind+" on "+h.Name, func(ctx context.Context) error {
			if _, err := h.Exec(ctx, "ip", "link", "show", "dev", goes); err == nil {
				return fmt.Errorf("%s is still there", goes)
			}
			if _, err := h.Exec(ctx, "ip", "link", "show", "dev", stays); (err == nil) == (kind == "host-gw") {
				return fmt.Errorf("%s: %v", stays, err)
			}
			return nil
		})
	}
}

// A target is a backend with an option, to which a network is switched.
type target struct{ kind, options string }

// TestSwitch switches a network from backend to backend while containers on all hosts ping and talk to each other: no
// ping is lost, and no connection breaks.
func TestSwitch(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 3})
	w.switches(target{"wireguard", ""}, target{"udp", ""}, target{"host-gw", ""}, target{"vxlan", "vni = 7"}, target{"vxlan", ""})
}

// switches switches a network of vxlan to one target after the other.
func (w *testWorld) switches(targets ...target) {
	t := w.T
	t.Helper()
	w.StartNetwork("vxlan")
	pings, talks := w.between(w.Containers)
	for _, to := range targets {
		began, before := time.Now(), w.Stored("default", nil)
		w.apply(to.kind, to.options)
		w.switched(to.kind, strings.Replace(to.options, " = ", `":`, 1))
		if now := w.Stored("default", nil); !now.Replaced(before) || now.Generation < before.Generation+2 {
			t.Errorf("the begin and the end of the switch are not two revisions: %d after %d",
				now.Generation, before.Generation)
		}
		pings.flows()
		w.echo(talks)
		t.Logf("to %s %s from %s for %s", to.kind, to.options, began.UTC().Format("15:04:05.000"), time.Since(began).Round(time.Millisecond))
	}
	pings.stop()
	for _, talk := range talks {
		_, err := talk.Stop()
		w.Must(err)
	}
	for _, h := range w.Hosts {
		w.WaitHealth(h, 200)
	}
}

// turn changes where a switch is going, as an operator does.
func (w *testWorld) turn(flag string) {
	w.T.Helper()
	out, err := w.Hosts[0].Leno(w.Ctx, "network", "switch", flag)
	if err != nil {
		w.T.Fatal(err, out)
	}
}

// apply changes the network's backend, as an operator does.
func (w *testWorld) apply(kind, options string) {
	w.T.Helper()
	w.Apply("default", strings.Replace(world.Plan("vxlan"), `backend "vxlan" {}`, fmt.Sprintf("backend %q {\n%s\n}", kind, options), 1))
}

// setBack changes the time in the definition since when the network has its keys.
func (w *testWorld) setBack(by time.Duration) {
	w.T.Helper()
	kv := w.Consul.Client().KV()
	pair, _, err := kv.Get("leno/networks/default", nil)
	w.Must(err)
	n := w.Stored("default", nil)
	n.Epoch.Since = time.Now().Add(-by).UTC().Truncate(time.Second)
	pair.Value, err = registry.FormatNetwork(n)
	w.Must(err)
	_, err = kv.Put(pair, nil)
	w.Must(err)
}

// TestRotateKeys gives all hosts new keys, by command and because they are due, while containers ping and talk to each
// other.
func TestRotateKeys(t *testing.T) { newWorld(t, lab.Options{Hosts: 3}).rotatesKeys() }

func (w *testWorld) rotatesKeys() {
	t := w.T
	t.Helper()
	w.StartNetwork("wireguard")
	pings, talks := w.between(w.Containers)
	keys := func() map[string]bool {
		out := map[string]bool{}
		for _, l := range w.Leases(w.Hosts[0], "default").Leases {
			var b struct {
				Key string `json:"public_key"`
			}
			w.Must(json.Unmarshal(l.Backend, &b))
			out[b.Key] = true
		}
		return out
	}
	before := keys()
	for _, epoch := range []string{`"epoch":{"number":1,"rotated":true`, `"epoch":{"number":2,"since"`} {
		w.turn("-rotate-keys")
		w.switched("wireguard", epoch)
		w.Eventually("new keys in all leases", func(context.Context) error {
			now := keys()
			for key := range now {
				if before[key] {
					return fmt.Errorf("%s is a key from before", key)
				}
			}
			if len(now) != len(w.Hosts) {
				return fmt.Errorf("%d keys", len(now))
			}
			return nil
		})
		before = keys()
		pings.flows()
	}
	// The same happens when they are due.
	w.setBack(2 * time.Hour)
	w.apply("wireguard", "rotate_keys = \"1h\"")
	w.switched("wireguard", `"epoch":{"number":3,"rotated":true`)

	pings.stop()
	for _, talk := range talks {
		w.Must(talk.WaitEchoes(w.Ctx, lab.LargeEcho))
		_, err := talk.Stop()
		w.Must(err)
	}
	for _, h := range w.Hosts {
		if out, err := h.Exec(w.Ctx, "find", h.DataDir(), "-name", "wireguard.key"); err != nil || strings.Count(out, "\n") != 1 {
			t.Errorf("key files of %s: %s, %v", h.Name, out, err)
		}
		w.WaitHealth(h, 200)
	}
}

// TestSwitchHalfway stops a switch when the first host is away, reverses it, and goes on with it: no ping between the
// other hosts is lost, the host that was away joins later, and the switch ends only then. An option that changes live does
// so in between.
func TestSwitchHalfway(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 3})
	w.StartNetwork("vxlan")
	away := w.Hosts[2]
	w.Must(away.StopAgent(w.Ctx))
	pings := w.traffic(w.Containers, 0) // through away too: its kernel forwards without an agent
	moved := func(h *lab.Host, to string, n int) {
		t.Helper()
		w.Eventually(fmt.Sprintf("%s to send to %d peers over %s", h.Name, n, to), func(context.Context) error {
			var got api.Network
			err := world.GetJSON(w.Ctx, h, "/v1/network/default", &got)
			if err == nil && (got.Local == nil || got.Local.Switch == nil || got.Local.Switch.To != to || got.Local.Switch.Moved != n) {
				err = fmt.Errorf("%+v", got.Local.Switch)
			}
			return err
		})
	}
	w.apply("wireguard", "")
	for _, h := range w.Hosts[:2] {
		moved(h, "wireguard", 1)
	}
	out, err := w.Hosts[0].Leno(w.Ctx, "network", "switch")
	if err != nil || !strings.Contains(out, "from vxlan to wireguard: 0 of 3 hosts") || !strings.Contains(out, "host-c") {
		t.Errorf("%s, %v", out, err)
	}
	for _, tt := range []struct{ what, body, says string }{
		{"a third backend", `backend "udp" {}`, "being switched from vxlan to wireguard"},
		{"other options", `backend "wireguard" { listen_port = 51999 }`, "being switched from vxlan to wireguard"},
	} {
		file := w.Definition("default", strings.Replace(world.Plan("vxlan"), `backend "vxlan" {}`, tt.body, 1))
		if out, err := w.Hosts[0].Leno(w.Ctx, "network", "apply", file); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v\n%s", tt.what, err, out)
		}
	}
	w.turn("-stop")
	w.turn("-reverse")
	w.switchedOn(w.Hosts[:2], "vxlan", "")
	pings.flows()

	w.apply("wireguard", "")
	for _, h := range w.Hosts[:2] {
		moved(h, "wireguard", 1)
	}
	w.WaitHealth(w.Hosts[0], 200, "the network is being switched from vxlan to wireguard")
	w.apply("wireguard", "persistent_keepalive = 21") // which changes live, also now
	w.Must(away.RestartAgent())
	w.Must(away.WaitReady(w.Ctx))
	w.switched("wireguard", `"persistent_keepalive":21`)
	pings.stop()
}

// TestSwitchImpossible: a host that cannot use the new backend says so, and stays reachable. When it can, the switch goes
// on.
func TestSwitchImpossible(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 3})
	w.StartNetwork("host-gw")
	b := w.Hosts[1]
	var listener net.PacketConn
	w.Must(b.Do(func() (err error) {
		listener, err = net.ListenPacket("udp4", ":51820")
		return err
	}))
	pings := w.traffic(w.Containers, 0)
	w.apply("wireguard", "")
	w.WaitHealth(b, 429, "this host cannot use it", "udp port 51820 is used by another program")
	w.Eventually("the others to hear of it", func(ctx context.Context) error {
		out, err := w.Hosts[0].Leno(ctx, "network", "switch")
		if err == nil && !strings.Contains(strings.Join(strings.Fields(out), " "), "host-b cannot use wireguard: udp port 51820 is used by another program") {
			err = errors.New(out)
		}
		return err
	})
	w.Must(listener.Close())
	w.switched("wireguard", "")
	pings.stop()
}

// TestSwitchToEncrypted switches a network to a backend that encrypts and requires that at the same time. After the
// switch, no packet between containers is plain, and leno finds nothing wrong on its hosts.
func TestSwitchToEncrypted(t *testing.T) { newWorld(t, lab.Options{Hosts: 2}).switchesToEncrypted(nil) }

// switchesToEncrypted switches the network to one that requires encryption, and runs more while a wiretap listens.
func (w *testWorld) switchesToEncrypted(more func(*wiretap)) {
	t := w.T
	t.Helper()
	w.StartNetwork("vxlan")
	pingAll(w)
	pings := w.traffic(w.Containers, 1)
	w.Apply("default", required("wireguard"))
	w.switched("wireguard", "")
	pings.stop()
	for _, h := range w.Hosts {
		w.Eventually("the refusing route of "+h.Name, func(context.Context) error {
			if routes := strings.Join(w.Routes(h), "\n"); !strings.Contains(routes, "metric 16777217") {
				return errors.New(routes)
			}
			return nil
		})
	}
	tap := listen(w)
	tap.during("after the switch", func() { flows(w, w.Containers...) })
	if more != nil {
		more(tap)
	}
	if leaks := tap.stop(); len(leaks) > 0 {
		t.Errorf("plain packets: %v", leaks)
	}
	file := w.Definition("default", world.Plan("udp"))
	if out, err := w.Hosts[0].Leno(w.Ctx, "network", "plan", file); err != nil || !strings.Contains(out, "encryption") {
		t.Errorf("%s, %v", out, err)
	}
	for _, h := range w.Hosts {
		w.WaitHealth(h, 200)
		if out, err := h.Leno(w.Ctx, "doctor"); err != nil {
			t.Errorf("%s: %v\n%s", h.Name, err, out)
		}
	}
	w.cleanedUpHalfway(w.Hosts[0])
}

// cleanedUpHalfway checks that `leno cleanup` removes both backends of a network while it is being switched, and their keys.
func (w *testWorld) cleanedUpHalfway(h *lab.Host) {
	w.T.Helper()
	w.turn("-rotate-keys")
	w.turn("-stop")
	remains := func() string {
		out, err := h.Exec(w.Ctx, "sh", "-ec", "{ ip -br link | grep -o leno-default.. || true; }; ip route show proto 108; find "+h.DataDir()+" -name '*wireguard*' -type f 2>/dev/null || true")
		w.Must(err)
		return out
	}
	w.Eventually("both devices", func(context.Context) error {
		if out := remains(); strings.Count(out, "leno-default") < 2 || strings.Count(out, "wireguard.key") != 2 {
			return errors.New(out)
		}
		return nil
	})
	w.Must(h.KillAgent())
	out, code := w.Cleanup(h, "", "-config-file="+h.ConfigFile())
	if left := remains(); code != 0 || left != "" {
		w.T.Errorf("cleanup: %d, %s\nleft:\n%s", code, out, left)
	}
}

// TestSwitchNeedsProof: packets move to another backend only when they arrive over it. While the underlay drops its
// packets, they stay with the present one, and the switch does not end.
func TestSwitchNeedsProof(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ from, to, rule string }{
		{"wireguard", "vxlan", "udp dport 8472 drop"},
		{"vxlan", "udp", "udp dport 8285 drop"},
		{"vxlan", "host-gw", "ip daddr 10.5.0.0/16 drop"},
	} {
		t.Run(tt.to, func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 3})
			w.StartNetwork(tt.from)
			pings, talks := w.between(w.Containers)
			// A middlebox, which no host sees.
			_, err := w.Switch.Exec(w.Ctx, "sh", "-euc", `nft add table bridge box
				nft add chain bridge box c '{ type filter hook forward priority 0; }'
				nft add rule bridge box c "$1"`, "sh", tt.rule)
			w.Must(err)
			w.apply(tt.to, "")
			for _, h := range w.Hosts {
				w.Eventually("no peer of "+h.Name+" to have moved", func(ctx context.Context) error {
					var n api.Network
					if err := world.GetJSON(ctx, h, "/v1/network/default", &n); err != nil {
						return err
					}
					s := n.Local.Switch
					if s == nil || s.Moved != 0 || len(s.Waiting) != 2 {
						return fmt.Errorf("%+v", s)
					}
					for _, waiting := range s.Waiting {
						if !strings.Contains(waiting.Reason, "has not answered a test packet over "+tt.to) {
							return fmt.Errorf("%+v", s)
						}
					}
					return nil
				})
			}
			pings.flows()
			_, err = w.Switch.Exec(w.Ctx, "nft", "delete", "table", "bridge", "box")
			w.Must(err)
			w.switched(tt.to, "")
			w.echo(talks)
			pings.stop()
			for _, talk := range talks {
				_, err := talk.Stop()
				w.Must(err)
			}
		})
	}
}

// TestSwitchWithFirewall: hosts that accept neither echo requests nor what belongs to no connection can be switched.
func TestSwitchWithFirewall(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 3})
	w.StartNetwork("vxlan")
	for _, h := range w.Hosts {
		_, err := h.Exec(w.Ctx, "sh", "-euc", `nft add table inet strict
			nft add chain inet strict c '{ type filter hook input priority 0; policy drop; }'
			nft add rule inet strict c iif lo accept
			nft add rule inet strict c ct state established,related accept
			nft add rule inet strict c udp dport '{ 8472, 8285, 51820 }' accept
			nft add rule inet strict c icmpv6 type != echo-request accept
			for f in all eth0; do echo 1 > /proc/sys/net/ipv4/conf/$f/rp_filter; done`)
		w.Must(err)
	}
	pings, talks := w.between(w.Containers)
	for _, to := range []string{"udp", "host-gw", "wireguard", "vxlan"} {
		w.apply(to, "")
		w.switched(to, "")
		pings.flows()
		w.echo(talks)
	}
	for _, talk := range talks {
		_, err := talk.Stop()
		w.Must(err)
	}
}

// TestStartHalfway: a host that starts while a switch is stopped, or runs, is ready when it has routes to all peers.
func TestStartHalfway(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 4})
	for _, h := range w.Hosts[:2] {
		w.Must(h.StartAgent(h.Config(world.ShortLease, h.Network("default", world.Plan("vxlan")))))
		w.Must(h.WaitReady(w.Ctx))
		w.Container(h, "default")
	}
	w.WaitPeers(w.Hosts[0], "default", 1)
	starts := func(h *lab.Host, peers int) {
		t.Helper()
		w.Must(h.StartAgent(h.Config(world.ShortLease, h.Network("default", ""))))
		w.Must(h.WaitReady(w.Ctx))
		if routes := w.Routes(h); len(routes) < 2*peers {
			t.Errorf("%s is ready with the routes %q", h.Name, routes)
		}
		c := w.Container(h, "default")
		for _, other := range w.Containers {
			if other != c {
				w.Must(c.Reach(w.Ctx, other.Addrs[0]))
			}
		}
	}
	// While two hosts do not reach each other over the new backend, the switch cannot end.
	_, err := w.Switch.Exec(w.Ctx, "sh", "-euc", `nft add table bridge box
		nft add chain bridge box c '{ type filter hook forward priority 0; }'
		nft add rule bridge box c ip saddr "$1" ip daddr "$2" udp dport 8285 drop`, "sh", w.Hosts[0].Addrs[0].String(), w.Hosts[1].Addrs[0].String())
	w.Must(err)
	w.apply("udp", "")
	w.turn("-stop")
	starts(w.Hosts[2], 2)
	w.turn("-continue")
	starts(w.Hosts[3], 3)
	if c, text := w.carriage(); c.Switch == nil {
		t.Errorf("the switch has ended before the last host was ready: %s", text)
	}
	_, err = w.Switch.Exec(w.Ctx, "nft", "delete", "table", "bridge", "box")
	w.Must(err)
	w.switched("udp", "")
	w.Matrix()
}
