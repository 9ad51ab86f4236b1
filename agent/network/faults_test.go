package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/flapping"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/internal/testkit/faulty"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestStateThatCannotBeWritten: when a host cannot write something down for its next process, it warns and tries again.
// Containers and packets do not wait for it.
func TestStateThatCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a, b := newMember(t, store, "a"), newMember(t, store, "b")
		dir := a.config.DataDir
		lease, peers := state.Path(dir, "n"), state.PeersPath(dir, "n")
		must(t, os.MkdirAll(filepath.Join(lease, "x"), 0o755)) // a directory cannot be replaced by a file
		must(t, os.MkdirAll(filepath.Join(peers, "x"), 0o755))
		a.start().ready()
		b.start().ready()
		a.check(health.DataDir, api.Warning, lease, peers)
		must(t, os.RemoveAll(lease))
		a.check(health.DataDir, api.Warning, peers)
		must(t, os.RemoveAll(peers))
		a.check(health.DataDir, api.Passing)
		for _, file := range []string{lease, peers} {
			if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
				t.Errorf("%s: %v", file, err)
			}
		}
		if begun, ended := a.logs(health.DataDir); begun != 1 || ended != 1 {
			t.Errorf("%d lines about the beginning, %d about the end", begun, ended)
		}
	})
}

// TestFaultsOfAnApply: errors of the kernel and of the firewall come with advice, and are logged with two lines each.
func TestFaultsOfAnApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a")
		a.kernel.setFail(fmt.Errorf("create link: %w", unix.EPERM))
		a.start()
		a.check(health.Device, api.Critical, "create link", "CAP_NET_ADMIN")
		a.more("attempts", 2, a.kernel.tries)
		if exists(a.config.Networks[0].SubnetFile) {
			t.Error("the subnet file was written before the datapath was in place")
		}
		a.wall.setErr(fmt.Errorf("write rules: %w", unix.EPERM))
		a.kernel.setFail(nil)
		a.check(health.Firewall, api.Critical, "write rules", "CAP_NET_RAW")
		a.check(health.Device, api.Passing)
		looks := func() int { return len(a.wall.asked()) }
		a.more("attempts", looks()+1, looks)
		if report, _ := a.deps.Reports.Health.Report(); report.Ready {
			t.Error("ready without its rules")
		}
		a.wall.setErr(nil)
		a.ready()
		a.check(health.Firewall, api.Passing)
		for _, check := range []string{health.Device, health.Firewall} {
			if begun, ended := a.logs(check); begun != 1 || ended != 1 {
				t.Errorf("%s: %d lines about the beginning, %d about the end", check, begun, ended)
			}
		}
	})
}

// TestDriftConflict: a program that undoes repairs is named in health and events and slows the host down, and has no other
// effect.
func TestDriftConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a").start()
		a.ready()
		a.kernel.setReport(backend.Report{Writes: 1, Repaired: []backend.Repair{{
			Part: backend.Device, Fault: "device had another MTU", Detail: "1400 instead of 1450"}}})
		a.kernel.setHook(func(backend.State) { a.kick() })
		a.kick()
		a.check(health.Device, api.Warning, "is being changed by another program again and again",
			"device had another MTU: 1400 instead of 1450 (", "repaired each time")
		all, _, _ := a.deps.Reports.Events.After(0, "n")
		all = slices.DeleteFunc(all, func(e api.Event) bool { return e.Kind != api.EventDrift })
		for _, text := range []string{"changed by another program, repaired: ", "changed by another program again and again: "} {
			if !slices.ContainsFunc(all, func(e api.Event) bool {
				return e.Severity == api.Warning && strings.HasPrefix(e.Message, text+"device had another MTU: 1400 instead of 1450")
			}) {
				t.Errorf("no event says %q: %+v", text, all)
			}
		}
		a.more("applies", a.kernel.tries()+1, a.kernel.tries)
		a.kernel.mu.Lock()
		tried := slices.Clone(a.kernel.tried)
		a.kernel.mu.Unlock()
		last := tried[len(tried)-1].Sub(tried[len(tried)-2])
		if last < flapping.LongestPause || last > flapping.LongestPause+time.Second {
			t.Errorf("a pass after %s, want one after %s", last, flapping.LongestPause)
		}
		a.kernel.setHook(nil)
		a.kernel.setReport(backend.Report{})
		a.stop()
	})
}

// TestSubnetFileFollowsALostSubnet: the subnet file names the new subnet even while the datapath fails, because the
// containers on the former subnet may be what keeps the datapath from being complete.
func TestSubnetFileFollowsALostSubnet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a").start()
		a.ready()
		before := a.subnet()
		a.kernel.setFail(errors.New("put route: the bridge is in the way"))
		must(t, a.store.Client().Revoke(t.Context(), "n", before))
		agenttest.Eventually(t, func() error {
			if got := state.SubnetInFile(a.config.Networks[0].SubnetFile); got == before || got != a.subnet() {
				return fmt.Errorf("the file says %s, the lease is %s", got, a.subnet())
			}
			return nil
		})
		a.check(health.Device, api.Critical, "in the way")
	})
}

// reconnecting counts how often the connections from lost addresses were closed.
type reconnecting struct {
	*faulty.Registry
	times atomic.Int32
}

func (c *reconnecting) Reconnect() { c.times.Add(1) }

// TestMovedDialsAnew: a host whose address has changed closes its connections to the store, because those from the
// former address are useless.
func TestMovedDialsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a")
		c := &reconnecting{Registry: a.registry}
		a.deps.Store.Registry = c
		a.start().ready()
		a.kick()
		claims := func() int { return a.registry.Count("own Acquire") }
		before := claims()
		a.move([]netip.Addr{netip.MustParseAddr("192.0.2.200")}, nil)
		a.more("claims", before, claims)
		if n := c.times.Load(); n != 1 {
			t.Errorf("reconnected %d times", n)
		}
	})
}

// disturbs tells the host that a program changed rules, as soon as the host watches.
func (m *member) disturbs() {
	m.t.Helper()
	var changed func()
	agenttest.Eventually(m.t, func() error {
		m.wall.mu.Lock()
		defer m.wall.mu.Unlock()
		if changed = m.wall.changed; changed == nil {
			return fmt.Errorf("%s does not watch the firewall", m.name)
		}
		return nil
	})
	changed()
}

// TestFirewallKeptWithoutStore: while the store is away after a start, the rules of remembered datapaths that exist are
// kept.
func TestFirewallKeptWithoutStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a")
		a.config.Networks[0].Forward = true
		a.start().ready()
		subnet := a.subnet()
		a.stop()
		a.registry.Set(registry.ErrUnavailable)
		a.remains = datapath.KernelState{Device: true, Up: true, Carrier: true, Addrs: []netip.Addr{subnet.Addr()}}
		count := func() int { return len(a.wall.asked()) }
		before := count()
		a.start()
		a.more("looks", before, count)
		for _, networks := range a.wall.asked()[before:] {
			if len(networks) != 1 || !slices.Equal(networks[0].Subnets, []netip.Prefix{subnet}) {
				t.Errorf("wanted %+v", networks)
			}
		}
		a.check(health.Firewall, api.Passing, "rules are in place")
		before = count()
		a.disturbs()
		a.more("looks", before, count)
	})
}

// TestFirewallUntouchedAfterReboot: after a reboot no datapath exists, so the rules of a subnet that the store has not
// confirmed are not written.
func TestFirewallUntouchedAfterReboot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a")
		a.start().ready()
		a.stop()
		a.registry.Set(registry.ErrUnavailable)
		looks := len(a.wall.asked())
		a.start()
		a.check(health.Network, api.Critical)
		a.disturbs()
		a.check(health.Consul, api.Warning)
		if got := len(a.wall.asked()); got != looks {
			t.Errorf("%d looks", got-looks)
		}
	})
}

// TestSameNameAtOnce: two hosts of one name that took leases at the same moment could not see each other's lease. The
// conflict is found afterwards.
func TestSameNameAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a").start()
		a.ready()
		like := agenttest.Lease("b", 0, "", 0)
		rival, err := a.store.Client().Acquire(t.Context(), a.inStore(), registry.Claim{Node: "b", NodeID: like.NodeID,
			PublicIPs: like.PublicIPs, MTU: 1450, Backend: like.Backend, TTL: time.Hour, Hold: time.Hour})
		must(t, err)
		rival.Node = "a" // a moment later, the store would have refused the name
		value, err := registry.FormatLease(rival)
		must(t, err)
		a.store.Put(leaseKey(rival.Subnet()), value)
		a.check(health.Conflict, api.Warning, "same name", "192.0.2.97", "192.0.2.98")
		a.applies(a.subnet().String() + " <- a@" + rival.Subnet().String())
	})
}

// TestCopiedDataDir: while a copy of a running host asks whether the host is there, and while both report it, peers
// send to the host only.
func TestCopiedDataDir(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a, b, c := newMember(t, store, "a"), newMember(t, store, "b"), newMember(t, store, "c").start()
		for _, m := range []*member{a, b} { // only the watch can notice a loss
			m.config.Lease.TTL, m.config.Lease.RenewMargin = 2*time.Hour, time.Hour
		}
		a.start().ready()
		c.applies(c.with(a))
		must(t, os.CopyFS(b.config.DataDir, os.DirFS(a.config.DataDir)))
		b.deps.Identity.SetNodeID("id-a")
		b.start()
		b.check(health.Conflict, api.Critical, "copied")
		a.check(health.Conflict, api.Critical, "copied")
		for _, pass := range c.kernel.applied() {
			for _, p := range pass.Peers {
				if p.PublicIPs[0] != a.addrs[0] { // the copy's comes after it, as a question
					t.Errorf("a peer sent to %s at %v", p.Node, p.PublicIPs)
				}
			}
		}
	})
}

// TestLeaseGoesLast: the lease is released last, so that no other host gets the subnet while packets flow here.
func TestLeaseGoesLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a")
		a.start().ready()
		subnet := a.subnet()
		order := make(chan string, 10)
		note := func(what string, lease bool) {
			if _, _, held := a.store.Get(leaseKey(subnet)); held != lease {
				t.Errorf("%s: record there: %t", what, held)
			}
			order <- what
		}
		a.kernel.setHook(func(s backend.State) {
			if s.Zero() {
				note("datapath", true)
			}
		})
		a.registry.SetBefore(func(call string) {
			if call == "Release" {
				if exists(a.config.Networks[0].SubnetFile) || exists(state.Path(a.config.DataDir, "n")) {
					t.Error("released while the files are there")
				}
				if asked := a.wall.asked(); len(asked[len(asked)-1]) != 0 {
					t.Error("released while the rules are there")
				}
				note("lease", true)
			}
		})
		a.run.SetEnding(Leave)
		a.stop()
		note("end", false)
		close(order)
		var got []string
		for what := range order {
			got = append(got, what)
		}
		if strings.Join(got, " ") != "datapath lease end" {
			t.Errorf("order %q", got)
		}
	})
}

// forgetful records which networks the registry was told to forget.
type forgetful struct {
	*faulty.Registry
	forgotten atomic.Int32
}

func (f *forgetful) Abilities() registry.Abilities {
	can := f.Registry.Abilities()
	can.Followed = func(string) time.Time { return time.Now() }
	can.Forget = func(network string) {
		if network == "n" {
			f.forgotten.Add(1)
		}
	}
	return can
}

// TestDeletedNetworkIsForgotten: the registry forgets a network when it is deleted, not when the store has lost it.
func TestDeletedNetworkIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a")
		f := &forgetful{Registry: a.registry}
		a.deps.Store.Registry = f
		a.start().ready()
		a.store.Delete(networkKey)
		agenttest.Eventually(t, func() error {
			events, _, _ := a.deps.Reports.Events.After(0, "n")
			if !slices.ContainsFunc(events, func(e api.Event) bool { return strings.Contains(e.Message, "restored it") }) {
				return fmt.Errorf("not restored: %+v", events)
			}
			return nil
		})
		if n := f.forgotten.Load(); n != 0 {
			t.Errorf("forgotten %d times after a loss", n)
		}
		a.remove()
		agenttest.Eventually(t, func() error {
			if n := f.forgotten.Load(); n != 1 {
				return fmt.Errorf("forgotten %d times", n)
			}
			return nil
		})
	})
}
