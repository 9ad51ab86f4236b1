package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// keyed is a backend with keys, whose options are a port and the hours between new keys.
type keyed struct {
	Port  int `json:"port"`
	Hours int `json:"hours"`
}

func (k keyed) json() string {
	out, _ := json.Marshal(k)
	return string(out)
}

func parseKeyed(options json.RawMessage) (k keyed) {
	_ = json.Unmarshal(options, &k)
	return k
}

// newKeyedHost returns a host whose networks can have the backend "keyed".
func newKeyedHost(t *testing.T, name string, store *memory.Store) *host {
	h := newHost(t, store, name)
	kind := h.datapath.kind("keyed")
	kind.Port = func(o json.RawMessage) backend.Port { return backend.Port{Number: parseKeyed(o).Port, Socket: "udp"} }
	kind.Rotate = func(o json.RawMessage) (json.RawMessage, error) {
		k := parseKeyed(o)
		k.Port ^= 1
		return json.RawMessage(k.json()), nil
	}
	kind.RotateEvery = func(o json.RawMessage) time.Duration { return time.Duration(parseKeyed(o).Hours) * time.Hour }
	h.deps.Datapaths.Backends = map[string]backend.Type{"recorder": h.datapath.kind("recorder"), "keyed": kind}
	return h
}

// keyedNetwork stores a network with the backend "keyed".
func (h *host) keyedNetwork(name, pool string, options keyed) registry.Network {
	h.t.Helper()
	n := registry.Network{Name: name, Plan: agenttest.Plan(h.t, pool), Backend: agenttest.Backend(h.t, "keyed", options.json())}
	must(h.t, h.store.Client().PutNetwork(h.t.Context(), n))
	n, err := h.store.Client().Network(h.t.Context(), name)
	must(h.t, err)
	return n
}

// see makes the host know the networks of the store, and returns its view of network n with its own lease.
func (h *host) see(own registry.Lease) *peers.View {
	h.t.Helper()
	set, index, err := h.store.Client().WatchNetworks(h.t.Context(), 0)
	must(h.t, err)
	h.deps.Store.Networks.Set(Networks{set, index})
	return &peers.View{Network: h.inStore(), Own: own, Leases: []registry.Lease{own}}
}

// portsInStore returns the ports of the backends of network n: "6", or "6 > 7" during a switch.
func (h *host) portsInStore() string {
	h.t.Helper()
	var out []string
	for _, port := range carriage.Of(h.inStore().Carriage()).Ports(h.deps.Datapaths.Backends) {
		out = append(out, fmt.Sprint(port.Number))
	}
	return strings.Join(out, " > ")
}

// TestRotateKeys follows periodic rotations of a network: they begin when they are due, not while another network has the
// port, and not without the right to.
func TestRotateKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newKeyedHost(t, "a", memory.New())
		h.keyedNetwork("n", "10.5.0.0/22", keyed{Port: 6, Hours: 2})
		s, own := h.runner().switcher, leaseOf(0, "s", 1)
		pass := func() error { return s.rotateKeys(t.Context(), h.inStore(), h.see(own)) }
		want := func(when, ports, reason string) {
			t.Helper()
			if got := h.portsInStore(); got != ports || !strings.Contains(h.reason(health.Keys), reason) || reason == "" {
				t.Errorf("%s: ports %s, want %s; reason %q, want %q", when, got, ports, h.reason(health.Keys), reason)
			}
		}
		began := time.Now().UTC()
		pass()
		if since := h.inStore().Epoch.Since; !since.Equal(began.Truncate(time.Second)) {
			t.Errorf("the time counts from %s, want %s", since, began)
		}
		pass()
		want("at first", "6", "all hosts get new keys at "+began.Add(2*time.Hour).Format(time.RFC3339)+", and every 2h")
		time.Sleep(2*time.Hour - time.Second)
		pass()
		want("before they are due", "6", "all hosts get new keys at")

		other := h.keyedNetwork("other", "10.6.0.0/22", keyed{Port: 7})
		pass()
		want("with a neighbour", "6", "keys cannot be rotated, as they should be every 2h: "+
			"new keys need udp port 7, which network other uses: choose another in the backend's options")
		time.Sleep(time.Hour)
		pass()
		want("due, with a neighbour", "6", "network other uses")
		must(t, h.store.Client().DeleteNetwork(t.Context(), other.Name))

		h.registry.SetOne("PutNetwork", registry.ErrDenied)
		if err := pass(); !errors.Is(err, registry.ErrDenied) {
			t.Errorf("without the right: %v", err)
		}
		want("without the right", "6", "permission denied")
		h.registry.SetOne("PutNetwork", nil)
		pass()
		if got := h.portsInStore(); got != "6 > 7" {
			t.Errorf("due: ports %s, want 6 > 7", got)
		}
		pass()
		ended, err := definition.ChangeSwitch(h.inStore(), api.EndSwitch, time.Now(), nil, h.deps.Datapaths.Backends)
		must(t, err)
		must(t, h.store.Client().PutNetwork(t.Context(), ended.Replacing(h.inStore())))
		pass()
		want("after the switch", "7", "all hosts get new keys at "+time.Now().UTC().Add(2*time.Hour).Format(time.RFC3339))

		// A switch that another host ended at the wrong time, by its clock, changes nothing about the next one.
		for _, ahead := range []time.Duration{30 * 24 * time.Hour, -30 * 24 * time.Hour} {
			n := h.inStore()
			n.Epoch.Since = time.Now().Add(ahead).UTC().Truncate(time.Second)
			must(t, h.store.Client().PutNetwork(t.Context(), n.Replacing(h.inStore())))
			began, when := time.Now().UTC(), fmt.Sprintf("with a clock that differs by %s", ahead)
			pass()
			want(when, "7", "all hosts get new keys at "+began.Add(2*time.Hour).Format(time.RFC3339))
			if got := strings.Contains(h.reason(health.Keys), "set the clocks"); got != (ahead > 0) {
				t.Errorf("%s: %s", when, h.reason(health.Keys))
			}
			time.Sleep(2*time.Hour - time.Second)
			pass()
			want(when, "7", "all hosts get new keys at")
			time.Sleep(time.Second)
			pass()
			if got := h.portsInStore(); got != "7 > 6" {
				t.Errorf("%s, due: ports %s", when, got)
			}
			back, err := definition.ChangeSwitch(h.inStore(), api.ReverseSwitch, time.Now(), nil, h.deps.Datapaths.Backends)
			must(t, err)
			ended, err := definition.ChangeSwitch(back, api.EndSwitch, time.Now(), nil, h.deps.Datapaths.Backends)
			must(t, err)
			must(t, h.store.Client().PutNetwork(t.Context(), ended.Replacing(h.inStore())))
			pass()
			want(when+", reversed", "7", "all hosts get new keys at "+time.Now().UTC().Add(2*time.Hour).Format(time.RFC3339))
		}

		h.define(func(now *registry.Network) { now.Backend = agenttest.Backend(t, "keyed", `{"port":7}`) })
		pass()
		if got := h.reason(health.Keys); got != "" {
			t.Errorf("without rotations: %q", got)
		}
	})
}

// TestRotationByHand: new keys are refused if another network has their port, and so is a definition that would rotate to
// that port one day.
func TestRotationByHand(t *testing.T) {
	h := newKeyedHost(t, "a", memory.New())
	n, other := h.keyedNetwork("n", "10.5.0.0/22", keyed{Port: 6}), h.keyedNetwork("other", "10.6.0.0/22", keyed{Port: 7})
	kinds := h.deps.Datapaths.Backends
	all := []registry.Network{n, other}
	if _, err := definition.ChangeSwitch(n, api.RotateKeys, time.Now(), all, kinds); !errors.Is(err, definition.ErrSwitch) {
		t.Errorf("%v", err)
	}
	if _, err := definition.ChangeSwitch(n, api.RotateKeys, time.Now(), all[:1], kinds); err != nil {
		t.Error(err)
	}
	for _, tt := range []struct {
		options keyed
		refused bool
	}{
		{keyed{Port: 6}, false},
		{keyed{Port: 6, Hours: 2}, true},
		{keyed{Port: 8, Hours: 2}, false},
	} {
		changed := n
		changed.Backend = agenttest.Backend(t, "keyed", tt.options.json())
		c := definition.Change{Old: n, New: changed, Others: all, Backends: kinds}.Gradual()
		if p := c.Plan(); (len(p.Refused) > 0) != tt.refused {
			t.Errorf("%+v: %+v", tt.options, p.Refused)
		}
	}
}

// TestEndSwitch: a switch ends when all leases have said for a while that their hosts have moved. The host with the first
// slot ends it, and the others only if it does not.
func TestEndSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		first, second := newKeyedHost(t, "a", store), newKeyedHost(t, "b", store)
		n := first.keyedNetwork("n", "10.5.0.0/22", keyed{Port: 6})
		begun, err := definition.ChangeSwitch(n, api.RotateKeys, time.Now(), nil, first.deps.Datapaths.Backends)
		must(t, err)
		must(t, store.Client().PutNetwork(t.Context(), begun.Replacing(n)))
		leases := []registry.Lease{leaseOf(0, "sa", 1), leaseOf(1, "sb", 2)}
		leases[1].Node, leases[1].NodeID = "b", "id-b"
		moved := func(all ...bool) {
			for i := range leases {
				sends := ""
				if all[i] {
					sends = `,"sends":"b"`
				}
				leases[i].Backend = agenttest.Backend(t, "keyed", `{"next":{"type":"keyed","device":"b"}`+sends+`}`)
			}
		}
		a, b := first.runner().switcher, second.runner().switcher
		pass := func(s *switcher, own int) {
			_, _ = s.endSwitch(t.Context(), first.inStore(), &peers.View{Network: first.inStore(), Own: leases[own], Leases: leases})
		}
		both := func() { pass(a, 0); pass(b, 1) }
		want := func(when, ports string) {
			t.Helper()
			if got := first.portsInStore(); got != ports {
				t.Errorf("%s: ports %s, want %s", when, got, ports)
			}
		}
		moved(true, false)
		both()
		time.Sleep(time.Minute)
		both()
		want("one host has not moved", "6 > 7")
		const progress = "the network is being switched from keyed to keyed; `leno network switch n` shows which hosts have moved"
		if got := first.reason(health.Switch); got != progress {
			t.Errorf("reason %q", got)
		}
		moved(true, true)
		both()
		time.Sleep(endAfter - time.Millisecond)
		both()
		want("all have just moved", "6 > 7")
		moved(true, false)
		both()
		moved(true, true)
		both()
		time.Sleep(endAfter - time.Millisecond)
		both()
		want("one went back in between", "6 > 7")
		time.Sleep(time.Millisecond)
		pass(b, 1)
		want("the second host is early", "6 > 7")

		first.registry.SetOne("PutNetwork", registry.ErrDenied)
		pass(a, 0)
		want("without the right", "6 > 7")
		const denied = "all hosts send over keyed only, and this agent cannot end the switch: permission denied"
		if got := first.reason(health.Switch); !strings.Contains(got, denied) || !strings.Contains(got, "run `leno network switch n -end`") {
			t.Errorf("reason %q", got)
		}
		moved(true, false)
		pass(a, 0)
		if got := first.reason(health.Switch); got != progress {
			t.Errorf("after one went back: reason %q", got)
		}
		moved(true, true)
		time.Sleep(writeInterval)
		pass(b, 1)
		want("in place of the first host", "7")
		first.registry.SetOne("PutNetwork", nil)
		both()
		want("ended", "7")
		if got := first.inStore().Epoch.Since; time.Since(got) > 2*time.Second {
			t.Errorf("since %s", got)
		}
	})
}

// newMovedHost returns a host that is alone in a network whose keys are being rotated, its lease, which says that it has
// moved, and a view of both.
func newMovedHost(t *testing.T, options keyed) (*host, registry.Lease, *watch.Value[*peers.View]) {
	h := newKeyedHost(t, "a", memory.New())
	n := h.keyedNetwork("n", "10.5.0.0/22", options)
	begun, err := definition.ChangeSwitch(n, api.RotateKeys, time.Now(), nil, h.deps.Datapaths.Backends)
	must(t, err)
	must(t, h.store.Client().PutNetwork(t.Context(), begun.Replacing(n)))
	own := leaseOf(0, "s", 1)
	own.Backend = agenttest.Backend(t, "keyed", `{"next":{"type":"keyed"},"sends":"b"}`)
	views := watch.New[*peers.View]()
	views.Set(h.see(own))
	return h, own, views
}

// TestSwitcherPauses: a switcher that may not change the definition tries again once a minute, however often leases change.
func TestSwitcherPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, own, views := newMovedHost(t, keyed{Port: 6})
		h.registry.SetOne("PutNetwork", registry.ErrDenied)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		s := h.runner().switcher
		go func() { done <- s.run(ctx, views) }()
		for range 100 { // leases change all the time
			time.Sleep(6 * time.Second)
			views.Set(h.see(own))
		}
		if got := h.registry.Count("own PutNetwork"); got < 9 || got > 11 {
			t.Errorf("%d attempts in ten minutes", got)
		}
		h.registry.SetOne("PutNetwork", nil)
		time.Sleep(deniedPause)
		if got := h.portsInStore(); got != "7" {
			t.Errorf("with the right to: ports %s", got)
		}
		views.Set(h.see(own))
		synctest.Wait()
		if got := h.reason(health.Switch); got != "" {
			t.Errorf("after the switch: %q", got)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestSwitcherEnds: when a round ends, the checks of a switcher do, too, and a request that ends with it is no failure. The
// next round waits again before it ends a switch.
func TestSwitcherEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, views := newMovedHost(t, keyed{Port: 6, Hours: 2})
		h.registry.SetOne("PutNetwork", registry.ErrUnavailable)
		h.registry.SetHanging(true) // until the context of the call ends
		var log bytes.Buffer
		h.deps.Log = hclog.New(&hclog.LoggerOptions{Output: &log})
		s := h.runner().switcher
		for range 2 {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- s.run(ctx, views) }()
			time.Sleep(endAfter - time.Millisecond)
			before := h.registry.Count("own PutNetwork")
			time.Sleep(time.Second + time.Millisecond)
			if n := h.registry.Count("own PutNetwork") - before; n != 1 {
				t.Errorf("%d attempts after %s", n, endAfter)
			}
			if h.reason(health.Switch) == "" || h.reason(health.Keys) == "" {
				t.Error("no checks")
			}
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			if got := h.reason(health.Switch) + h.reason(health.Keys); got != "" {
				t.Errorf("after the round: %s", got)
			}
			if got := log.String(); strings.Contains(got, "cannot") {
				t.Errorf("logged %s", got)
			}
		}
	})
}

// TestSwitcherRecovers: a check that failed recovers when it ends, and not when it comes again.
func TestSwitcherRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, own, _ := newMovedHost(t, keyed{Port: 6, Hours: 2})
		h.registry.SetOne("PutNetwork", registry.ErrDenied)
		s := h.runner().switcher
		pass := func(want string) { // want are the beginnings of all events
			t.Helper()
			_, _ = s.endSwitch(t.Context(), h.inStore(), h.see(own))
			_ = s.rotateKeys(t.Context(), h.inStore(), h.see(own))
			var got []string
			all, _, _ := h.deps.Reports.Events.After(0, "n")
			for _, e := range all {
				what, _, _ := strings.Cut(e.Message, ":")
				got = append(got, what)
			}
			if strings.Join(got, ", ") != want {
				t.Errorf("events %q, want %q", got, want)
			}
		}
		operate := func(action string) {
			changed, err := definition.ChangeSwitch(h.inStore(), action, time.Now(), nil, h.deps.Datapaths.Backends)
			must(t, err)
			must(t, h.store.Client().PutNetwork(t.Context(), changed.Replacing(h.inStore())))
		}
		pass("")
		time.Sleep(time.Minute)
		pass("switch") // it cannot be ended
		operate(api.EndSwitch)
		pass("switch, switch recovered")
		operate(api.RotateKeys)
		pass("switch, switch recovered")
		operate(api.EndSwitch)
		time.Sleep(3 * time.Hour)
		pass("switch, switch recovered, keys") // they cannot be rotated
		h.registry.SetOne("PutNetwork", nil)
		for _, hours := range []int{0, 2} {
			options := keyed{Port: 6, Hours: hours}.json()
			h.define(func(n *registry.Network) { n.Backend = agenttest.Backend(t, "keyed", options) })
			pass("switch, switch recovered, keys, keys recovered")
		}
	})
}

// TestKeyAge covers the clocks of the hosts that end switches.
func TestKeyAge(t *testing.T) {
	now := time.Now()
	at := func(d time.Duration) time.Time { return now.Add(d) }
	for _, tt := range []struct {
		name    string
		written []time.Time // in the order in which they are read, now
		want    time.Time   // about
	}{
		{"the first one", []time.Time{at(-3 * time.Hour)}, at(-3 * time.Hour)},
		{"the first one, in the future", []time.Time{at(3 * time.Hour)}, now},
		{"a switch that has just ended", []time.Time{at(-3 * time.Hour), at(-time.Second)}, at(-time.Second)},
		{"by a clock that is behind", []time.Time{at(-5 * time.Hour), at(-3 * time.Hour)}, now},
		{"by a clock that is ahead", []time.Time{at(-5 * time.Hour), at(3 * time.Hour)}, now},
		{"the first switch of all, by a clock that is behind", []time.Time{{}, at(-3 * time.Hour)}, now},
		{"again", []time.Time{at(-5 * time.Hour), at(-3 * time.Hour), at(-3 * time.Hour)}, now},
	} {
		var k keyAge
		var got time.Time
		for _, written := range tt.written {
			got = k.from(written)
		}
		if got.Sub(tt.want).Abs() > time.Minute/2 {
			t.Errorf("%s: counts from %s, want %s", tt.name, got, tt.want)
		}
	}
}

// TestProbedPort: a probe uses the port that the backend has after a rotation of its keys.
func TestProbedPort(t *testing.T) {
	h := newKeyedHost(t, "a", memory.New())
	n := h.keyedNetwork("n", "10.5.0.0/22", keyed{Port: 6})
	n.Epoch = registry.Epoch{Number: 1, Rotated: true}
	r := h.runner()
	backends, config, err := r.datapath.Configure(n.Carriage(), n.Plan.Prefixes())
	must(t, err)
	must(t, r.datapath.Build(backends, config))
	_, err = r.datapath.SelectUnderlay(n)
	must(t, err)
	r.lease.Lease().Set(leaseOf(0, "s", 1))
	r.definition.inForce.Set(n)
	if got, err := r.Probed(); err != nil || parseKeyed(got.Options).Port != 7 {
		t.Errorf("%s, %v", got.Options, err)
	}
}
