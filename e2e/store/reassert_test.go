package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/traffic"
	"github.com/lenonet/leno/e2e/world"
	"github.com/lenonet/leno/registry"
)

// reassertTime is how long hosts may take on a busy machine to restore everything that Consul lost,
// once it responds. It usually takes about 10 s.
const reassertTime = 2 * time.Minute

// whenRestored matches what says in a definition that it was restored.
var whenRestored = regexp.MustCompile(`,"restored":"[^"]*"(,"restored_leases":[0-9]+)?`)

// picture returns the state of a network as seen from outside, one fact per line.
func (w *testWorld) picture() ([]string, error) {
	consistent := (&api.QueryOptions{RequireConsistent: true}).WithContext(w.Ctx)
	var out []string
	pairs, _, err := w.Consul.Client().KV().List("leno/", consistent)
	if err != nil {
		return nil, err
	}
	for _, p := range pairs {
		if strings.HasPrefix(p.Key, "leno/changes/") {
			continue
		}
		value := whenRestored.ReplaceAllString(string(p.Value), "")
		out = append(out, fmt.Sprintf("%s %s held=%t", p.Key, value, p.Session != ""))
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
		out = append(out, fmt.Sprintf("%s has %s", h.Name, w.Subnet(h, "default")))
		for _, r := range w.Routes(h) {
			out = append(out, h.Name+": "+r)
		}
	}
	slices.Sort(out)
	return out, nil
}

// waitServices blocks until every host's agent is in the catalogue.
func (w *testWorld) waitServices() {
	w.T.Helper()
	w.Eventually("the agents to be in the catalogue", func(context.Context) error {
		services, _, err := w.Consul.Client().Catalog().Service("leno", "", nil)
		if err == nil && len(services) != len(w.Hosts) {
			err = fmt.Errorf("%d services", len(services))
		}
		return err
	})
}

// drawn returns the picture once all services are registered.
func (w *testWorld) drawn() []string {
	w.T.Helper()
	w.waitServices()
	p, err := w.picture()
	w.Must(err)
	return p
}

// asBefore blocks until the picture is the same as before.
func (w *testWorld) asBefore(before []string) {
	w.T.Helper()
	began := time.Now()
	w.Eventually("all to be as before", func(context.Context) error {
		now, err := w.picture()
		if err == nil && !slices.Equal(before, now) {
			err = fmt.Errorf("-before +now\n%s", cmp.Diff(before, now))
		}
		return err
	})
	took := time.Since(began).Round(10 * time.Millisecond)
	w.T.Logf("all as before after %s", took)
	if took > reassertTime {
		w.T.Errorf("that took %s", took)
	}
}

// TestConsulEmptied removes leno's records, or all of Consul's data, while hosts are running:
// everything is restored within seconds, and no route or packet is lost in the meantime.
func TestConsulEmptied(t *testing.T) {
	hosts := newWorld(t, lab.Options{})
	hosts.StartNetwork("vxlan")
	before := hosts.drawn()
	for _, tt := range []struct {
		name string
		lose func(w *testWorld)
	}{
		{"records", func(w *testWorld) {
			_, err := w.Consul.Client().KV().DeleteTree("leno/", nil)
			w.Must(err)
		}},
		{"data", func(w *testWorld) {
			w.Must(w.Consul.Stop(w.Ctx))
			w.Must(os.RemoveAll(filepath.Join(w.Dir, "consul", w.Consul.Name, "data")))
			w.Must(w.Consul.Start(w.Ctx))
		}},
	} {
		if !t.Run(tt.name, func(t *testing.T) {
			w := hosts.in(t)
			whole := traffic.Watch(w.World)
			tt.lose(w)
			w.asBefore(before)
			for _, h := range w.Hosts {
				w.WaitHealth(h, 200)
			}
			whole()
		}) {
			return // the hosts are not as the next case expects them
		}
	}
}

// TestConsulEmptiedWhileAnAgentIsAway removes leno's records while the agent of a host does not run: the other hosts restore
// its lease, without a session, so no packet of its containers is lost and it has the same subnet when it returns. A host
// that starts for the first time waits for that, and not for a TTL, which would be too long for this test.
func TestConsulEmptiedWhileAnAgentIsAway(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 4})
	newcomer := w.Hosts[3]
	w.Hosts = w.Hosts[:3]
	w.StartNetwork("vxlan")
	a, away := w.Hosts[0], w.Hosts[2]
	subnet := w.Subnet(away, "default")
	key := world.LeaseKey("default", subnet)
	record, _, err := w.Consul.Client().KV().Get(key, nil)
	w.Must(err)
	w.Must(away.KillAgent())
	lapsed := func(what string) {
		w.T.Helper()
		w.Eventually("the lease to be "+what, func(context.Context) error {
			now, _, err := w.Consul.Client().KV().Get(key, nil)
			if err == nil && (now == nil || now.Session != "" || !bytes.Equal(now.Value, record.Value)) {
				err = fmt.Errorf("%+v", now)
			}
			return err
		})
	}
	lapsed("lapsed")
	whole := traffic.Watch(w.World)
	_, err = w.Consul.Client().KV().DeleteTree("leno/", nil)
	w.Must(err)
	w.Must(newcomer.StartAgent(newcomer.Config("lease {\n  ttl = \"1h\"\n}", newcomer.Network("default", world.Plan("vxlan")))))
	w.Must(newcomer.WaitReady(w.Ctx))
	lapsed("restored")
	if taken := w.Subnet(newcomer, "default"); taken == subnet {
		t.Errorf("the new host has %s, too", taken)
	}
	w.Eventually("no lease to be missing any more", func(context.Context) error {
		for _, l := range w.Leases(a, "default").Leases {
			if l.Subnets[0] == subnet && !l.Held {
				return nil
			}
		}
		return fmt.Errorf("%+v", w.Leases(a, "default"))
	})
	w.Must(away.RestartAgent())
	w.Must(away.WaitReady(w.Ctx))
	if now := w.Subnet(away, "default"); now != subnet {
		t.Errorf("it had %s, it has %s", subnet, now)
	}
	whole()
}

// save saves Consul's state; restore sets Consul back to it.
func (w *testWorld) save() (restore func()) {
	w.T.Helper()
	snapshot, _, err := w.Consul.Client().Snapshot().Save(nil)
	w.Must(err)
	var saved bytes.Buffer
	_, err = saved.ReadFrom(snapshot)
	w.Must(err)
	w.Must(snapshot.Close())
	return func() {
		w.T.Helper()
		w.Must(w.Consul.Client().Snapshot().Restore(nil, &saved))
	}
}

// TestStoreSetBack restores an older state of Consul under running hosts: one host has moved since,
// another has joined, and the network was changed. They keep their subnets and write their records
// again, including those in the catalogue.
func TestStoreSetBack(t *testing.T) {
	w := newWorld(t, lab.Options{})
	config := func(h *lab.Host) string { return h.Config(world.ShortLease, h.Network("default", world.Plan("vxlan"))) }
	for _, h := range w.Hosts {
		w.Must(h.StartConsul(w.Ctx))
	}
	a, b, c := w.Hosts[0], w.Hosts[1], w.Hosts[2]
	for _, h := range []*lab.Host{a, b} {
		w.Must(h.StartAgent(config(h)))
		w.Must(h.WaitReady(w.Ctx))
	}
	restore := w.save()
	_, now := w.moveAway(b, "default")
	w.Eventually("host-b to have moved", func(context.Context) error {
		if got := w.Subnet(b, "default"); got != now {
			return fmt.Errorf("%s", got)
		}
		return nil
	})
	// The restored state does not contain the reservation.
	_, err := b.Leno(w.Ctx, "reservation", "remove", "default", now.String())
	w.Must(err)
	w.redefine(`{"type":"vxlan","direct_routing":true}`)
	w.Must(c.StartAgent(config(c)))
	w.Must(c.WaitReady(w.Ctx))
	for _, h := range w.Hosts {
		w.Container(h, "default")
	}
	w.Settle("default")
	before := w.drawn()
	whole := traffic.Watch(w.World)
	restore()
	w.asBefore(before)
	for _, h := range w.Hosts {
		w.WaitHealth(h, 200)
	}
	whole()
}

// TestSwitchSetBack empties Consul, switches the network to another backend, and then restores a snapshot from before both.
// The hosts keep the switch and each other.
func TestSwitchSetBack(t *testing.T) {
	w := newWorld(t, lab.Options{})
	w.StartNetwork("vxlan")
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusOK)
	}
	before := w.drawn()
	restore := w.save()
	_, err := w.Consul.Client().KV().DeleteTree("leno/", nil)
	w.Must(err)
	w.asBefore(before)
	w.Apply("default", strings.Replace(world.Plan("vxlan"), `backend "vxlan" {}`, `backend "host-gw" {}`, 1))
	w.Eventually("the network to be switched", func(context.Context) error {
		now, err := w.picture()
		// The routes to a host have the MTU of both backends until the host has written its lease after the switch.
		i := slices.IndexFunc(now, func(fact string) bool {
			return strings.Contains(fact, `"next"`) || strings.Contains(fact, `"vxlan"`) || strings.Contains(fact, " mtu 1450")
		})
		if err == nil && i >= 0 {
			err = errors.New(now[i])
		}
		return err
	})
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusOK)
	}
	w.Settle("default")
	switched := w.drawn()
	whole := traffic.Watch(w.World)
	restore()
	w.asBefore(switched)
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusOK)
	}
	whole()
}

// redefine changes the network's backend object and returns the network.
func (w *testWorld) redefine(backend string) registry.Network {
	w.T.Helper()
	client := w.Consul.Client().KV()
	pair, _, err := client.Get("leno/networks/default", nil)
	w.Must(err)
	n, err := registry.ParseNetwork("default", pair.Value)
	w.Must(err)
	w.Must(n.Backend.UnmarshalJSON([]byte(backend)))
	pair.Value, err = registry.FormatNetwork(n)
	w.Must(err)
	_, err = client.Put(pair, nil)
	w.Must(err)
	return w.Stored("default", nil)
}

// TestSlotSetBack has three hosts use the subnets that three other hosts had when Consul was saved.
// After the restore, Consul assigns them to those hosts again.
func TestSlotSetBack(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 7})
	watcher := w.Hosts[6]
	type pair struct {
		what        string
		first, then *lab.Host
		lives, exit bool // the first host still runs and believes in its subnet; on_lost of the other one is "exit"
		slot        netip.Prefix
		stream      *lab.Echoes
		result      lab.EchoResult
	}
	pairs := []*pair{
		{what: "of a host that is no more", first: w.Hosts[0], then: w.Hosts[1], exit: true},
		{what: "of a host that lives", first: w.Hosts[2], then: w.Hosts[3], lives: true},
		{what: "of a host that lives, exit", first: w.Hosts[4], then: w.Hosts[5], lives: true, exit: true},
	}
	start := func(h *lab.Host, exit bool) {
		t.Helper()
		lease := world.ShortLease
		if exit {
			lease = "lease {\n  ttl     = \"10s\"\n  on_lost = \"exit\"\n}"
		}
		w.Must(h.StartAgent(h.Config(lease, h.Network("default", world.Plan("vxlan")))))
	}
	first := []*lab.Host{pairs[0].first, pairs[1].first, pairs[2].first, watcher}
	for _, h := range first {
		start(h, false)
	}
	for _, h := range first {
		w.Must(h.WaitReady(w.Ctx))
	}
	restore := w.save()
	for _, p := range pairs {
		p.slot = w.Subnet(p.first, "default")
		if p.lives {
			w.Must(p.first.Agent().Signal(syscall.SIGSTOP))
			_, err := w.Consul.Client().KV().Delete(world.LeaseKey("default", p.slot), nil)
			w.Must(err)
		} else {
			_, err := p.first.Leno(w.Ctx, "lease", "release", "default")
			w.Must(err)
			w.Must(p.first.StopAgent(w.Ctx))
		}
		// A host first asks for the subnet it had before.
		w.Must(os.WriteFile(p.then.SubnetFile("default"), []byte("LENO_SUBNET="+p.slot.String()+"\n"), 0o644))
		start(p.then, p.exit)
	}
	from := w.Container(watcher, "default")
	for _, p := range pairs {
		w.Must(p.then.WaitReady(w.Ctx))
		if got := w.Subnet(p.then, "default"); got != p.slot {
			t.Fatalf("%s has %s, want %s", p.then.Name, got, p.slot)
		}
		w.WaitPeers(p.then, "default", 3)
	}
	w.WaitPeers(watcher, "default", 3)
	for _, p := range pairs {
		var err error
		p.stream, err = from.StartEchoes(w.Ctx, w.Container(p.then, "default").Addrs[0], 20*time.Millisecond)
		w.Must(err)
		w.Must(p.stream.WaitAnswers(w.Ctx, 10))
	}

	restore()
	for _, p := range pairs {
		if p.lives {
			w.Must(p.first.Agent().Signal(syscall.SIGCONT))
		}
	}
	// Each warning ends after a while, so none of them is waited for alone.
	warned := map[*lab.Host]bool{}
	w.Eventually("every host that was set back to warn", func(ctx context.Context) error {
		var missing []string
		for _, p := range pairs {
			status, body, err := p.then.Get(ctx, "/healthz")
			warned[p.then] = warned[p.then] || err == nil && status == http.StatusTooManyRequests && strings.Contains(body, "set back") &&
				strings.Contains(body, p.first.Name) && strings.Contains(body, p.first.Addrs[0].String()) && strings.Contains(body, p.slot.String())
			if !warned[p.then] {
				missing = append(missing, fmt.Sprintf("%s: %d %s %v", p.then.Name, status, body, err))
			}
		}
		if len(missing) > 0 {
			return errors.New(strings.Join(missing, "\n"))
		}
		return nil
	})
	for _, p := range pairs {
		holder := p.then
		if p.lives {
			holder = p.first
		}
		w.Eventually(p.what+": one host to hold the subnet, and the other to have none or another", func(ctx context.Context) error {
			record, _, err := w.Consul.Client().KV().Get(world.LeaseKey("default", p.slot), &api.QueryOptions{RequireConsistent: true})
			if err != nil || record == nil || record.Session == "" || !strings.Contains(string(record.Value), fmt.Sprintf("%q", holder.Name)) {
				return fmt.Errorf("%+v, %v", record, err)
			}
			if p.lives && p.exit {
				if p.then.Agent().IsRunning() {
					return fmt.Errorf("%s goes on", p.then.Name)
				}
				return nil
			}
			if p.lives {
				// Its datapath may be critical, because its containers' bridge still uses the
				// subnet.
				_, body, err := p.then.Get(ctx, "/healthz")
				if err == nil && !strings.Contains(body, "it was "+p.slot.String()+" until") {
					err = errors.New(body)
				}
				if file, readErr := lab.ReadSubnetFile(p.then.SubnetFile("default")); err == nil &&
					(readErr != nil || file.Subnets()[0].Masked() == p.slot) {
					err = errors.New("the subnet file is not written yet")
				}
				return err
			}
			if status, health := w.Health(p.then); status != 200 {
				return fmt.Errorf("%+v", health)
			}
			return nil
		})
	}
	w.Must(pairs[0].stream.WaitAnswers(w.Ctx, 10)) // to the host that keeps its subnet
	var stops errgroup.Group
	for _, p := range pairs {
		stops.Go(func() (err error) {
			p.result, err = p.stream.Stop()
			return err
		})
	}
	w.Must(stops.Wait())
	for _, p := range pairs {
		result := p.result
		t.Logf("%s: %d pings to who had it last, %d lost", p.what, result.Sent, result.Lost())
		log := p.then.Agent().Output()
		switch {
		case !p.lives:
			if now := w.Subnet(p.then, "default"); now != p.slot || result.Lost() != 0 {
				t.Errorf("%s has %s, and had %s; %s", p.then.Name, now, p.slot, result.Losses())
			}
		case p.exit:
			// It has withdrawn its subnet, and the kernel goes on refusing packets to the network.
			if code := p.then.Agent().ExitCode(); code != 1 || !strings.Contains(log, p.slot.String()+" was lost") ||
				slices.ContainsFunc(w.Routes(p.then), func(r string) bool { return !strings.HasPrefix(r, "unreachable") }) {
				t.Errorf("%s: exit code %d, routes %q", p.then.Name, code, w.Routes(p.then))
			}
		default:
			if now := w.Subnet(p.then, "default"); now == p.slot {
				t.Errorf("%s has %s still", p.then.Name, now)
			}
			w.WaitLog(p.then, "[ERROR] leno: this host has another subnet now")
		}
	}
}

// TestRestartIntoEmptiedStore restarts an agent after Consul was emptied and before the other hosts
// have written their leases again: the routes to them stay.
func TestRestartIntoEmptiedStore(t *testing.T) {
	w := newWorld(t, lab.Options{})
	w.StartNetwork("vxlan")
	before := w.drawn()
	whole := traffic.Watch(w.World)
	a := w.Hosts[0]
	w.Must(a.StopAgent(w.Ctx))
	for _, h := range w.Hosts[1:] {
		w.Must(h.Agent().Signal(syscall.SIGSTOP))
	}
	_, err := w.Consul.Client().KV().DeleteTree("leno/", nil)
	w.Must(err)
	w.Must(a.RestartAgent())
	w.Must(a.WaitReady(w.Ctx))
	w.WaitPeers(a, "default", 2)
	for _, h := range w.Hosts[1:] {
		w.Must(h.Agent().Signal(syscall.SIGCONT))
	}
	w.asBefore(before)
	for _, h := range w.Hosts {
		w.WaitHealth(h, 200)
	}
	whole()
}
