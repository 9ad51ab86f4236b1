package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/registry"
)

// reassertTime is within what hosts put everything back that Consul lost, once
// it answers. They take 10 s at the most; the machine of the tests is shared.
const reassertTime = 20 * time.Second

// picture is what can be told of a network from outside: every line is one fact.
func (w *world) picture() ([]string, error) {
	consistent := (&api.QueryOptions{RequireConsistent: true}).WithContext(w.ctx)
	var out []string
	pairs, _, err := w.Consul.Client().KV().List("leno/", consistent)
	if err != nil {
		return nil, err
	}
	for _, p := range pairs {
		if strings.HasPrefix(p.Key, "leno/changes/") {
			continue
		}
		out = append(out, fmt.Sprintf("%s %s held=%t", p.Key, p.Value, p.Session != ""))
	}
	services, _, err := w.Consul.Client().Catalog().Service("leno", "", consistent)
	if err != nil {
		return nil, err
	}
	for _, s := range services {
		out = append(out, fmt.Sprintf("service %s on %s at %s", s.ServiceID, s.Node, s.ServiceAddress))
	}
	checks, _, err := w.Consul.Client().Health().Checks("leno", consistent)
	if err != nil {
		return nil, err
	}
	for _, c := range checks {
		out = append(out, fmt.Sprintf("check %s of %s on %s", c.CheckID, c.ServiceID, c.Node))
	}
	for _, h := range w.Hosts {
		out = append(out, fmt.Sprintf("%s has %s", h.Name, w.subnet(h, "default")))
		for _, r := range w.routes(h) {
			out = append(out, h.Name+": "+r)
		}
	}
	slices.Sort(out)
	return out, nil
}

// waitServices waits until every host's agent is in the catalogue.
func (w *world) waitServices() {
	w.t.Helper()
	w.eventually("the agents to be in the catalogue", func(context.Context) error {
		services, _, err := w.Consul.Client().Catalog().Service("leno", "", nil)
		if err == nil && len(services) != len(w.Hosts) {
			err = fmt.Errorf("%d services", len(services))
		}
		return err
	})
}

// drawn is the picture once it stands still.
func (w *world) drawn() []string {
	w.t.Helper()
	w.waitServices()
	p, err := w.picture()
	w.must(err)
	return p
}

// asBefore waits until the picture is the same again.
func (w *world) asBefore(before []string) {
	w.t.Helper()
	began := time.Now()
	w.eventually("all to be as before", func(context.Context) error {
		now, err := w.picture()
		if err == nil && !slices.Equal(before, now) {
			err = fmt.Errorf("-before +now\n%s", cmp.Diff(before, now))
		}
		return err
	})
	took := time.Since(began).Round(10 * time.Millisecond)
	w.t.Logf("all as before after %s", took)
	if took > reassertTime {
		w.t.Errorf("that took %s", took)
	}
}

// undisturbed starts pings between all containers in a ring and watches the
// routes of every host. The function it returns ends that: nothing was lost.
func (w *world) undisturbed() func() {
	w.t.Helper()
	streams := map[string]*lab.PingStream{}
	routes := map[string]func() []string{}
	for i, from := range w.containers {
		to := w.containers[(i+1)%len(w.containers)]
		s, err := from.StartPing(to.Addrs[0], lab.PingOptions{Interval: 20 * time.Millisecond})
		w.must(err)
		streams[from.Name+" to "+to.Name] = s
	}
	for _, h := range w.Hosts {
		routes[h.Name] = w.routeEvents(h)
	}
	return func() {
		w.t.Helper()
		for name, s := range streams {
			w.must(s.WaitAnswers(w.ctx, 10))
			result, err := s.Stop(w.ctx)
			w.must(err)
			w.t.Logf("%s: %d pings, %d lost", name, result.Sent, result.Lost())
			if result.Lost() != 0 {
				w.t.Errorf("%s: %d of %d pings lost: %v", name, result.Lost(), result.Sent, result.Missing)
			}
		}
		for name, deleted := range routes {
			if gone := deleted(); len(gone) != 0 {
				w.t.Errorf("%s: routes were deleted: %q", name, gone)
			}
		}
	}
}

// TestConsulEmptied takes everything of leno's from Consul under running hosts,
// its records or all of Consul's data: all of it is back within seconds, and
// neither a route nor a packet goes meanwhile.
func TestConsulEmptied(t *testing.T) {
	for _, tt := range []struct {
		name string
		lose func(w *world)
	}{
		{"records", func(w *world) {
			_, err := w.Consul.Client().KV().DeleteTree("leno/", nil)
			w.must(err)
		}},
		{"data", func(w *world) {
			w.must(w.Consul.Stop(w.ctx))
			w.must(os.RemoveAll(filepath.Join(w.Dir, "consul", w.Consul.Name, "data")))
			w.must(w.Consul.Start(w.ctx))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, lab.Options{})
			w.startNetwork("vxlan")
			before := w.drawn()
			whole := w.undisturbed()
			tt.lose(w)
			w.asBefore(before)
			for _, h := range w.Hosts {
				w.waitHealth(h, 200)
			}
			whole()
		})
	}
}

// save is Consul's state at this moment; restore sets it back to that.
func (w *world) save() (restore func()) {
	w.t.Helper()
	snapshot, _, err := w.Consul.Client().Snapshot().Save(nil)
	w.must(err)
	var saved bytes.Buffer
	_, err = saved.ReadFrom(snapshot)
	w.must(err)
	w.must(snapshot.Close())
	return func() {
		w.t.Helper()
		w.must(w.Consul.Client().Snapshot().Restore(nil, &saved))
	}
}

// TestStoreSetBack restores an older state of Consul under running hosts: one
// has moved since, another has come, and the network was changed. They stay where they are, and write it
// down again, also in the catalogue.
func TestStoreSetBack(t *testing.T) {
	w := newWorld(t, lab.Options{})
	config := func(h *lab.Host) string { return h.Config(shortLease, h.Network("default", plan("vxlan"))) }
	for _, h := range w.Hosts {
		w.must(h.StartConsul(w.ctx))
	}
	a, b, c := w.Hosts[0], w.Hosts[1], w.Hosts[2]
	for _, h := range []*lab.Host{a, b} {
		w.must(h.StartAgent(config(h)))
		w.must(h.WaitReady(w.ctx))
	}
	restore := w.save()
	_, now := w.moveAway(b, "default")
	w.eventually("host-b to have moved", func(context.Context) error {
		if got := w.subnet(b, "default"); got != now {
			return fmt.Errorf("%s", got)
		}
		return nil
	})
	// The reservation is not in what is restored.
	_, err := b.Leno(w.ctx, "reservation", "remove", "default", now.String())
	w.must(err)
	w.redefine(`{"type":"vxlan","direct_routing":true}`)
	w.must(c.StartAgent(config(c)))
	w.must(c.WaitReady(w.ctx))
	for _, h := range w.Hosts {
		w.container(h, "default")
	}
	w.settle("default")
	before := w.drawn()
	whole := w.undisturbed()
	restore()
	w.asBefore(before)
	for _, h := range w.Hosts {
		w.waitHealth(h, 200)
	}
	whole()
}

// redefine gives the network another backend object.
func (w *world) redefine(backend string) {
	w.t.Helper()
	client := w.Consul.Client().KV()
	pair, _, err := client.Get("leno/networks/default", nil)
	w.must(err)
	n, err := registry.ParseNetwork("default", pair.Value)
	w.must(err)
	w.must(n.Backend.UnmarshalJSON([]byte(backend)))
	pair.Value, err = registry.FormatNetwork(n)
	w.must(err)
	_, err = client.Put(pair, nil)
	w.must(err)
}

// TestSlotSetBack: three hosts have the subnets that three others had when
// Consul was saved. Restored, Consul says that they are the others'.
func TestSlotSetBack(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 7})
	watcher := w.Hosts[6]
	type pair struct {
		what        string
		first, then *lab.Host
		lives, exit bool // the first, and believes in its subnet; on_lost of the other
		slot        netip.Prefix
		stream      *lab.PingStream
	}
	pairs := []*pair{
		{what: "of a host that is no more", first: w.Hosts[0], then: w.Hosts[1], exit: true},
		{what: "of a host that lives", first: w.Hosts[2], then: w.Hosts[3], lives: true},
		{what: "of a host that lives, exit", first: w.Hosts[4], then: w.Hosts[5], lives: true, exit: true},
	}
	start := func(h *lab.Host, exit bool) {
		t.Helper()
		lease := shortLease
		if exit {
			lease = "lease {\n  ttl     = \"10s\"\n  on_lost = \"exit\"\n}"
		}
		w.must(h.StartAgent(h.Config(lease, h.Network("default", plan("vxlan")))))
	}
	first := []*lab.Host{pairs[0].first, pairs[1].first, pairs[2].first, watcher}
	for _, h := range first {
		start(h, false)
	}
	for _, h := range first {
		w.must(h.WaitReady(w.ctx))
	}
	restore := w.save()
	for _, p := range pairs {
		p.slot = w.subnet(p.first, "default")
		if p.lives {
			w.must(p.first.Agent().Signal(syscall.SIGSTOP))
			_, err := w.Consul.Client().KV().Delete(leaseKey("default", p.slot), nil)
			w.must(err)
		} else {
			_, err := p.first.Leno(w.ctx, "lease", "release", "default")
			w.must(err)
			w.must(p.first.StopAgent(w.ctx))
		}
		// What a host had before is what it asks for first.
		w.must(os.WriteFile(p.then.SubnetFile("default"), []byte("LENO_SUBNET="+p.slot.String()+"\n"), 0o644))
		start(p.then, p.exit)
	}
	from := w.container(watcher, "default")
	for _, p := range pairs {
		w.must(p.then.WaitReady(w.ctx))
		if got := w.subnet(p.then, "default"); got != p.slot {
			t.Fatalf("%s has %s, want %s", p.then.Name, got, p.slot)
		}
		w.waitPeers(p.then, "default", 3)
	}
	w.waitPeers(watcher, "default", 3)
	for _, p := range pairs {
		var err error
		p.stream, err = from.StartPing(w.container(p.then, "default").Addrs[0], lab.PingOptions{Interval: 20 * time.Millisecond})
		w.must(err)
		w.must(p.stream.WaitAnswers(w.ctx, 10))
	}

	restore()
	for _, p := range pairs {
		if p.lives {
			w.must(p.first.Agent().Signal(syscall.SIGCONT))
		}
		w.waitHealth(p.then, 429, "set back", p.first.Name, p.first.Addrs[0].String(), p.slot.String())
	}
	for _, p := range pairs {
		holder := p.then
		if p.lives {
			holder = p.first
		}
		w.eventually(p.what+": one host to hold the subnet, and the other to have none or another", func(ctx context.Context) error {
			record, _, err := w.Consul.Client().KV().Get(leaseKey("default", p.slot), &api.QueryOptions{RequireConsistent: true})
			if err != nil || record == nil || record.Session == "" || !strings.Contains(string(record.Value), fmt.Sprintf("%q", holder.Name)) {
				return fmt.Errorf("%+v, %v", record, err)
			}
			if p.lives && p.exit {
				if p.then.Agent().Running() {
					return fmt.Errorf("%s goes on", p.then.Name)
				}
				return nil
			}
			if p.lives {
				// Its datapath may be critical: the bridge of its containers stands on the subnet.
				_, body, err := p.then.Get(ctx, "/healthz")
				if err == nil && !strings.Contains(body, "it was "+p.slot.String()+" until") {
					err = errors.New(body)
				}
				if err == nil && w.subnet(p.then, "default") == p.slot {
					err = errors.New("the subnet file is not written yet")
				}
				return err
			}
			if status, health := w.health(p.then); status != 200 {
				return fmt.Errorf("%+v", health)
			}
			return nil
		})
		if !p.lives {
			w.must(p.stream.WaitAnswers(w.ctx, 10))
		}
		result, err := p.stream.Stop(w.ctx)
		w.must(err)
		t.Logf("%s: %d pings to who had it last, %d lost", p.what, result.Sent, result.Lost())
		now, log := w.subnet(p.then, "default"), p.then.Agent().Output()
		switch {
		case !p.lives:
			if now != p.slot || result.Lost() != 0 {
				t.Errorf("%s has %s, and had %s; %d of %d pings lost: %v", p.then.Name, now, p.slot, result.Lost(), result.Sent, result.Missing)
			}
		case p.exit:
			if code := p.then.Agent().ExitCode(); code != 1 || !strings.Contains(log, p.slot.String()+" was lost") || len(w.routes(p.then)) == 0 {
				t.Errorf("%s: exit code %d, routes %q", p.then.Name, code, w.routes(p.then))
			}
		case now == p.slot || !strings.Contains(log, "[ERROR] leno: this host has another subnet now"):
			t.Errorf("%s has %s, and had %s, or does not say so loudly", p.then.Name, now, p.slot)
		}
	}
}

// TestRestartIntoEmptiedStore starts an agent again after Consul was emptied and
// before the other hosts have written their leases: their routes stay.
func TestRestartIntoEmptiedStore(t *testing.T) {
	w := newWorld(t, lab.Options{})
	w.startNetwork("vxlan")
	before := w.drawn()
	whole := w.undisturbed()
	a := w.Hosts[0]
	w.must(a.StopAgent(w.ctx))
	for _, h := range w.Hosts[1:] {
		w.must(h.Agent().Signal(syscall.SIGSTOP))
	}
	_, err := w.Consul.Client().KV().DeleteTree("leno/", nil)
	w.must(err)
	w.must(a.RestartAgent())
	w.must(a.WaitReady(w.ctx))
	w.waitPeers(a, "default", 2)
	for _, h := range w.Hosts[1:] {
		w.must(h.Agent().Signal(syscall.SIGCONT))
	}
	w.asBefore(before)
	for _, h := range w.Hosts {
		w.waitHealth(h, 200)
	}
	whole()
}
