package datapath

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
	"github.com/lenonet/leno/registry"
)

// marker is the content of the pings between containers.
const marker = "plain leno text."

// A wiretap looks for packets between containers in what hosts send to each other.
type wiretap struct {
	w       *testWorld
	capture *lab.Capture
	pools   []netip.Prefix
	pairs   [][]byte // the addresses of two containers, as a packet's header has them beside each other

	mu     sync.Mutex
	phase  string
	frames int
	leaks  map[string]int // by phase and kind
}

// listen starts a wiretap on all links between the hosts.
func listen(w *testWorld) *wiretap {
	w.T.Helper()
	tap := &wiretap{w: w, leaks: map[string]int{},
		pools: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("fd00:5::/48")}}
	for _, from := range w.Containers {
		for _, to := range w.Containers {
			for i := range from.Addrs {
				if from != to {
					tap.pairs = append(tap.pairs, append(from.Addrs[i].AsSlice(), to.Addrs[i].AsSlice()...))
				}
			}
		}
	}
	var err error
	tap.capture, err = w.Switch.StartCapture(tap.see)
	w.Must(err)
	return tap
}

// see examines a frame.
func (tap *wiretap) see(frame []byte) {
	kinds := map[string]bool{"the payload": bytes.Contains(frame, []byte(marker))}
	for _, pair := range tap.pairs {
		kinds["both inner addresses"] = kinds["both inner addresses"] || bytes.Contains(frame, pair)
	}
	for _, a := range outerAddresses(frame) {
		for _, pool := range tap.pools {
			kinds["an outer address in the pools"] = kinds["an outer address in the pools"] || pool.Contains(a)
		}
	}
	tap.mu.Lock()
	defer tap.mu.Unlock()
	tap.frames++
	for kind, found := range kinds {
		if found {
			tap.leaks[tap.phase+": "+kind]++
		}
	}
}

// outerAddresses returns source and destination of the IP packet in a frame, if there is one.
func outerAddresses(frame []byte) (out []netip.Addr) {
	const header = 14
	if len(frame) < header+40 {
		return nil
	}
	at, size := 0, 0
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		at, size = header+12, 4
	case 0x86dd:
		at, size = header+8, 16
	default:
		return nil
	}
	for _, raw := range [][]byte{frame[at : at+size], frame[at+size : at+2*size]} {
		a, _ := netip.AddrFromSlice(raw)
		out = append(out, a)
	}
	return out
}

// capture collects the packets between hosts whose outer source and destination are matched. stop ends that and returns
// when each was seen, with its addresses.
func (w *testWorld) capture(matches func(addrs []netip.Addr) bool) (stop func() []string) {
	w.T.Helper()
	var found []string
	capture, err := w.Switch.StartCapture(func(frame []byte) {
		if addrs := outerAddresses(frame); len(addrs) > 0 && matches(addrs) {
			found = append(found, fmt.Sprintf("%s %v", time.Now().UTC().Format("15:04:05.000"), addrs))
		}
	})
	w.Must(err)
	return func() []string {
		w.Must(capture.Stop())
		return found
	}
}

// during runs a phase and leaves time for the pings that flow all the while.
func (tap *wiretap) during(phase string, f func()) {
	tap.w.T.Helper()
	began := time.Now()
	defer func() { tap.w.T.Logf("%s: %s", phase, time.Since(began).Round(time.Millisecond)) }()
	tap.mu.Lock()
	tap.phase = phase
	before := tap.frames
	tap.mu.Unlock()
	f()
	tap.w.Eventually("frames after: "+phase, func(context.Context) error {
		tap.mu.Lock()
		defer tap.mu.Unlock()
		if tap.frames < before+20 { // pings, or what hosts tell the store
			return fmt.Errorf("%d", tap.frames-before)
		}
		return nil
	})
}

// unguarded is a phase in which there may be plain packets.
const unguarded = "unguarded"

// stop ends the wiretap and returns the kinds of plain packets that it has found, with their number, except in the phase
// unguarded.
func (tap *wiretap) stop() map[string]int {
	tap.w.T.Helper()
	if err := tap.capture.Stop(); err != nil {
		tap.w.T.Error(err)
	}
	maps.DeleteFunc(tap.leaks, func(kind string, _ int) bool { return strings.HasPrefix(kind, unguarded+": ") })
	return tap.leaks
}

// pingAll sends pings with the marker from each container to each other one, and to an address that no host has, until
// the test ends.
func pingAll(w *testWorld) {
	w.T.Helper()
	pattern := hex.EncodeToString([]byte(marker))
	free := w.Free("default").Addr().As4()
	free[3] = 9
	for _, from := range w.Containers {
		targets := []netip.Addr{netip.AddrFrom4(free), netip.MustParseAddr("fd00:5:0:fffe::9")}
		for _, to := range w.Containers {
			if from != to {
				targets = append(targets, to.Addrs...)
			}
		}
		for _, to := range targets {
			_, err := from.Start("ping", "-q", "-i", "0.1", "-s", "64", "-p", pattern, to.String())
			w.Must(err)
		}
	}
}

// sendMore blocks until each container has sent some more pings, whether they leave the host or not.
func sendMore(w *testWorld) {
	w.T.Helper()
	sent := func(c *lab.Container) int {
		var text []byte
		w.Must(c.Do(func() (err error) {
			text, err = os.ReadFile("/proc/thread-self/net/snmp")
			return err
		}))
		// Two lines have the names and the values: "Icmp: InMsgs ... OutEchos ..." and "Icmp: 3 ... 7 ...".
		var lines [][]string
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) > 0 && fields[0] == "Icmp:" {
				lines = append(lines, fields)
			}
		}
		n, err := strconv.Atoi(lines[1][slices.Index(lines[0], "OutMsgs")])
		w.Must(err)
		return n
	}
	before := map[*lab.Container]int{}
	for _, c := range w.Containers {
		before[c] = sent(c)
	}
	for _, c := range w.Containers {
		w.Eventually(c.Name+" to send pings", func(context.Context) error {
			if n := sent(c) - before[c]; n < 20 {
				return fmt.Errorf("%d", n)
			}
			return nil
		})
	}
}

// required is the body of the network with a backend, which must encrypt.
func required(backend string) string {
	return world.Plan(backend) + "\n  ip_masq = true\n  encryption = \"required\""
}

// setDefinition changes the definition in the store as another program could.
func setDefinition(w *testWorld, change func(*registry.Network)) {
	w.T.Helper()
	kv := w.Consul.Client().KV()
	const key = "leno/networks/default"
	pair, _, err := kv.Get(key, &consul.QueryOptions{RequireConsistent: true})
	w.Must(err)
	n, err := registry.ParseNetwork("default", pair.Value)
	w.Must(err)
	change(&n)
	pair.Value, err = registry.FormatNetwork(n)
	w.Must(err)
	if ok, _, err := kv.CAS(pair, nil); err != nil || !ok {
		w.T.Fatal(ok, err)
	}
}

// waitCheck blocks until a check of the network on all hosts has the status and its reason the words.
func waitCheck(w *testWorld, check, status string, words ...string) {
	w.T.Helper()
	for _, h := range w.Hosts {
		w.Eventually(fmt.Sprintf("%s: %s to be %s", h.Name, check, status), func(ctx context.Context) error {
			_, body, err := h.Get(ctx, "/healthz")
			var all api.Health
			if err == nil {
				err = json.Unmarshal([]byte(body), &all)
			}
			if err != nil {
				return err
			}
			for _, n := range all.Networks {
				for _, c := range n.Checks {
					missing := c.Name != check || c.Status != status
					for _, word := range words {
						missing = missing || !strings.Contains(c.Reason, word)
					}
					if !missing {
						return nil
					}
				}
			}
			return fmt.Errorf("%+v", all.Networks)
		})
	}
}

// flows blocks until all containers answer each other.
func flows(w *testWorld, containers ...*lab.Container) {
	w.T.Helper()
	w.Linked(containers)
}

// TestRequiredEncryption captures what hosts send to each other, and finds no plain packet between containers of a
// network that requires encryption, whatever happens to agents, devices, routes, hosts, the store and the definition. The
// same capture finds them in a network of vxlan before, and after `leno cleanup`.
func TestRequiredEncryption(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 3})
	a, b, c := w.Hosts[0], w.Hosts[1], w.Hosts[2]
	w.Start(func(h *lab.Host) []string {
		return []string{world.ShortLease, h.Network("default", world.Plan("vxlan")+"\n  ip_masq = true")}
	})
	for _, h := range w.Hosts {
		w.Container(h, "default")
	}
	w.Settle("default")
	control := listen(w)
	pingAll(w)
	flows(w, w.Containers...)
	found := control.stop()
	for _, kind := range []string{"the payload", "both inner addresses", "an outer address in the pools"} {
		// The last kind is not sent by vxlan: pings to an address that no host has are refused.
		if seen := found[": "+kind] > 0; seen != (kind != "an outer address in the pools") {
			t.Errorf("control: %s: %v", kind, found)
		}
	}

	// The definition contradicts itself, while a datapath carries packets plainly.
	setDefinition(w, func(n *registry.Network) { n.Encryption = registry.EncryptionRequired })
	waitCheck(w, health.Network, api.Critical, "not carried", "vxlan does not encrypt", "wireguard")
	for _, h := range w.Hosts {
		w.Eventually("the device of "+h.Name+" to be removed", func(context.Context) error {
			if link := w.Link(h); link != "none" {
				return errors.New(link)
			}
			return nil
		})
	}
	run := func(h *lab.Host, script string) {
		t.Helper()
		_, err := h.Exec(w.Ctx, "sh", "-ec", script)
		w.Must(err)
	}
	run(b, "ip route del unreachable 10.5.0.0/16") // packets may leave until the agent has noticed
	w.Eventually("the refusing route to be put back", func(context.Context) error {
		if routes := strings.Join(w.Routes(b), "\n"); !strings.Contains(routes, "unreachable 10.5.0.0/16 metric 16777217") {
			return errors.New(routes)
		}
		return nil
	})
	tap := listen(w)
	pause := func() { sendMore(w) }
	tap.during("a contradictory definition", func() {
		w.Must(a.KillAgent())
		pause()
		w.Must(a.RestartAgent())
		waitCheck(w, health.Network, api.Critical, "not carried")
		pause()
	})
	tap.during("another backend", func() {
		w.Apply("default", required("wireguard"), "-force")
		waitCheck(w, health.Network, api.Passing)
		flows(w, w.Containers...)
	})
	tap.during("the requirement ends and begins", func() {
		flows(w, w.Containers...)
		pings, err := w.Containers[0].StartEchoes(w.Ctx, w.Containers[1].Addrs[0], 20*time.Millisecond)
		w.Must(err)
		for _, definition := range []string{world.Plan("wireguard"), required("wireguard")} {
			w.Apply("default", definition, "-force")
			for _, h := range w.Hosts {
				guarded := strings.Contains(definition, "required")
				w.Eventually("the refusing route of "+h.Name, func(context.Context) error {
					if routes := strings.Join(w.Routes(h), "\n"); strings.Contains(routes, "metric 16777217") != guarded {
						return errors.New(routes)
					}
					return nil
				})
			}
		}
		if r, err := pings.Stop(); err != nil || r.Lost() > 0 {
			t.Errorf("%+v, %v", r, err)
		}
	})
	tap.during("an agent is killed", func() {
		w.Must(a.KillAgent())
		pause()
		w.Must(a.RestartAgent())
		w.Must(a.WaitReady(w.Ctx))
		flows(w, w.Containers...)
	})
	tap.during("an agent stops, and its device is deleted", func() {
		w.Must(a.StopAgent(w.Ctx))
		run(a, "ip link del leno-default")
		pause()
		w.Must(a.RestartAgent())
		w.Must(a.WaitReady(w.Ctx))
		flows(w, w.Containers...)
	})
	tap.during("a device is deleted, and one is down", func() {
		run(a, "ip link del leno-default")
		run(b, "ip link set leno-default down")
		flows(w, w.Containers...)
	})
	tap.during("another program deletes the routes of a backend", func() {
		run(a, "ip route del 10.5.0.0/16 metric 16777216; ip -6 route del fd00:5::/48 metric 16777216")
		run(a, "ip link del leno-default")
		flows(w, w.Containers...)
	})
	tap.during("the store is down, and agents start", func() {
		w.Must(w.Consul.Stop(w.Ctx))
		w.Must(a.KillAgent())
		run(b, "ip link del leno-default")
		pause()
		w.Must(a.RestartAgent())
		flows(w, w.Containers[0], w.Containers[1])
		w.Must(w.Consul.Start(w.Ctx))
		for _, h := range w.Hosts {
			w.Must(h.WaitReady(w.Ctx))
		}
		flows(w, w.Containers...)
	})
	tap.during(unguarded, func() { // a host boots: it has no routes until its agent starts, which needs no store for them
		w.Must(w.Consul.Stop(w.Ctx))
		w.Must(a.KillAgent())
		run(a, "ip link del leno-default; ip route flush proto 108; ip -6 route flush proto 108")
		w.Must(a.RestartAgent())
		w.Eventually("the refusing routes", func(context.Context) error {
			if routes := strings.Join(w.Routes(a), "\n"); !strings.Contains(routes, "10.5.0.0/16 metric 16777217") || !strings.Contains(routes, "fd00:5::/48") {
				return errors.New(routes)
			}
			return nil
		})
		pause()
	})
	tap.during("a host has booted, and the store is down", pause)
	tap.during("the store is back", func() {
		w.Must(w.Consul.Start(w.Ctx))
		for _, h := range w.Hosts {
			w.Must(h.WaitReady(w.Ctx))
		}
		flows(w, w.Containers...)
	})
	tap.during("a peer is removed", func() {
		subnet := w.Subnet(c, "default").String()
		w.Must(c.StopAgent(w.Ctx))
		_, err := a.Leno(w.Ctx, "lease", "revoke", "default", subnet)
		w.Must(err)
		w.WaitPeers(a, "default", 1)
		w.WaitPeers(b, "default", 1)
		pause()
	})
	tap.during("a peer's backend does not encrypt", func() {
		w.Must(c.RestartAgent())
		w.Must(c.WaitReady(w.Ctx))
		w.Settle("default")
		plainLease(w, c)
		waitPeerSkipped(w, a, c.Name, `runs backend "vxlan"`)
		pause()
		w.Must(c.RestartAgent())
		w.Must(c.WaitReady(w.Ctx))
	})
	tap.during("the network is deleted", func() {
		_, err := a.Leno(w.Ctx, "network", "delete", "-force", "default")
		w.Must(err)
		for _, h := range w.Hosts {
			w.Eventually(h.Name+" to leave", func(context.Context) error {
				if link := w.Link(h); link != "none" {
					return errors.New(link)
				}
				return nil
			})
		}
		pause()
	})
	if leaks := tap.stop(); len(leaks) > 0 {
		t.Errorf("plain packets: %v", leaks)
	}

	// From here on the host is no longer leno's.
	after := listen(w)
	for _, h := range w.Hosts {
		w.Must(h.StopAgent(w.Ctx))
		_, err := h.Leno(w.Ctx, "cleanup", "-config-file="+h.ConfigFile())
		w.Must(err)
	}
	pause()
	if found := after.stop(); found[": an outer address in the pools"] == 0 {
		t.Errorf("after cleanup: %v", found)
	}
}

// plainLease changes a host's lease in the store to one of a backend that does not encrypt.
func plainLease(w *testWorld, h *lab.Host) {
	w.T.Helper()
	w.Must(h.KillAgent()) // it would put its lease right
	kv := w.Consul.Client().KV()
	pair, _, err := kv.Get(world.LeaseKey("default", w.Subnet(h, "default")), &consul.QueryOptions{RequireConsistent: true})
	w.Must(err)
	pair.Value = bytes.Replace(pair.Value, []byte(`"type":"wireguard"`), []byte(`"type":"vxlan"`), 1)
	if ok, _, err := kv.CAS(pair, nil); err != nil || !ok {
		w.T.Fatal(ok, err)
	}
}

// waitPeerSkipped blocks until a host leaves a peer out of its datapath for a reason.
func waitPeerSkipped(w *testWorld, h *lab.Host, node, reason string) {
	w.T.Helper()
	w.Eventually(node+" to be skipped", func(ctx context.Context) error {
		var list api.PeerList
		if err := world.GetJSON(ctx, h, "/v1/network/default/peers", &list); err != nil {
			return err
		}
		for _, p := range list.Peers {
			if p.Node == node && strings.Contains(p.Skipped, reason) && !p.Encrypted {
				return nil
			}
		}
		return fmt.Errorf("%+v", list.Peers)
	})
}
