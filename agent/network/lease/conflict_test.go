package lease

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// copyOf gives h the node id and the state file of another host, as a cloned machine has them.
func (h *host) copyOf(from *host) *host {
	h.t.Helper()
	data, err := os.ReadFile(filepath.Join(from.dir, "n.json"))
	must(h.t, err)
	must(h.t, os.WriteFile(filepath.Join(h.dir, "n.json"), data, 0o600))
	h.id.NodeID = from.id.NodeID
	return h
}

// TestCopiedDataDir: a copy of a running host starts, such as a cloned machine. Both say so, and the original keeps its
// lease. When the original has ended, the copy takes it over.
func TestCopiedDataDir(t *testing.T) {
	nat := netip.MustParseAddr("203.0.113.1")
	for _, tt := range []struct {
		name string     // the node name of the copy
		nat  netip.Addr // that both are behind
	}{{"a", netip.Addr{}}, {"b", netip.Addr{}}, {"a", nat}, {"b", nat}} {
		t.Run(fmt.Sprintf("named %s, NAT %s", tt.name, tt.nat), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, name := memory.New(), tt.name
				a, b := newHost(t, store, "a").slow(), newHost(t, store, "b").slow()
				a.nat, b.nat = tt.nat, tt.nat
				a.start()
				lease := a.held()
				synctest.Wait()
				b.copyOf(a).id.Node = name
				b.start()
				b.check(health.Conflict, api.Critical, `host "a" (`, "192.0.2.97", `this host is "`+name+`" (`, "192.0.2.98", "copied")
				a.check(health.Conflict, api.Critical, a.attributes().PublicIPs[0].String(), "192.0.2.98", "copied")
				b.check(health.Lease, api.Critical, "waiting for a lease: ", "copied")
				if now := a.held(); now.Subnet() != lease.Subnet() || now.Session != lease.Session || len(now.PublicIPs) != 1 {
					t.Errorf("the original was disturbed: %+v", now)
				}
				time.Sleep(10 * time.Minute) // both hosts keep reporting the conflict
				for _, h := range []*host{a, b} {
					if c := h.checked(health.Conflict); c.Status != api.Critical {
						t.Errorf("%s: %+v", h.address, c)
					}
				}
				if b.subnet().IsValid() {
					t.Errorf("the copy has %s", b.subnet())
				}
				if n := strings.Count(a.log.String(), "another host uses this host's name or addresses"); n != 1 {
					t.Errorf("the original logs the conflict %d times", n)
				}
				a.end()
				store.EndSession(lease.Session)
				if now := b.held(); now.Subnet() != lease.Subnet() {
					t.Errorf("the copy has %s, the original had %s", now.Subnet(), lease.Subnet())
				}
				b.check(health.Conflict, api.Passing)
			})
		})
	}
}

// TestMovedWhileStopped: a host comes back with another address, and perhaps another name, while its session lives. No
// running host answers for its record.
func TestMovedWhileStopped(t *testing.T) {
	for _, name := range []string{"a", "renamed"} {
		t.Run("as "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newHost(t, memory.New(), "a").slow().start()
				lease := a.held()
				synctest.Wait()
				a.end()
				a.id.Node, a.address = name, netip.MustParseAddr("192.0.2.200")
				began := time.Now()
				a.build().start()
				synctest.Wait()
				want := "waiting for a lease: the record of this host is from another address, 192.0.2.97: " +
					"asking whether that host is there"
				if got := a.keeper.report.State(); got != want {
					t.Errorf("state %q", got)
				}
				again := a.held()
				if again.Subnet() != lease.Subnet() || again.Session != lease.Session || again.Node != name ||
					len(again.PublicIPs) != 1 || again.PublicIPs[0] != a.address {
					t.Errorf("was %+v, is %+v", lease, again)
				}
				if took := time.Since(began); took < answerTime || took > answerTime+time.Second {
					t.Errorf("waited %s for an answer", took)
				}
				a.check(health.Conflict, api.Passing)
			})
		})
	}
}

// TestChallengeFails: a challenge that the store refuses, or that meets another record, is an error of the claim.
func TestChallengeFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		them := a.rival("a", netip.Prefix{})
		a.address = netip.MustParseAddr("192.0.2.200")
		r := &conflictResolver{keeper: a.keeper, network: a.network()}
		c := a.own()
		rival := func(l registry.Lease) error {
			return &registry.RivalError{Lease: l, Err: registry.ErrDuplicateNode}
		}
		a.registry.SetOne("Acquire", registry.ErrUnavailable)
		if again, err := r.resolve(t.Context(), c, rival(them)); again || !errors.Is(err, registry.ErrUnavailable) {
			t.Errorf("refused: %t, %v", again, err)
		}
		a.registry.SetOne("Acquire", nil)
		elsewhere := them
		elsewhere.Slot = them.Slot%3 + 1
		if again, err := r.resolve(t.Context(), c, rival(elsewhere)); again || !errors.Is(err, registry.ErrConflict) {
			t.Errorf("the record has moved: %t, %v", again, err)
		}
		a.registry.SetOne("WatchLease", registry.ErrUnavailable)
		if again, err := r.resolve(t.Context(), c, rival(them)); again || !errors.Is(err, registry.ErrUnavailable) {
			t.Errorf("the answer cannot be read: %t, %v", again, err)
		}
		a.registry.SetOne("WatchLease", nil)
		other := them
		other.NodeID = "id-b"
		if again, err := r.resolve(t.Context(), c, rival(other)); again || !errors.Is(err, registry.ErrDuplicateNode) {
			t.Errorf("another node id: %t, %v", again, err)
		}
		a.check(health.Conflict, api.Critical, registry.ErrDuplicateNode.Error())
		again, err := r.resolve(t.Context(), c, registry.ErrNetworkFull)
		if again || !errors.Is(err, registry.ErrNetworkFull) {
			t.Errorf("another error: %t, %v", again, err)
		}
		if a.lease().Subnet().IsValid() {
			t.Error("a challenge counts as a lease")
		}
	})
}

// TestAnswerCountsForAWhile: a host that has answered is not challenged again at once.
func TestAnswerCountsForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a, b := newHost(t, store, "a").slow().start(), newHost(t, store, "b")
		lease := a.held()
		synctest.Wait()
		b.copyOf(a)
		r := &conflictResolver{keeper: b.keeper, network: b.network()}
		refused := &registry.RivalError{Lease: lease, Err: registry.ErrDuplicateNode}
		for _, tt := range []struct {
			after time.Duration
			want  int
		}{{0, 1}, {0, 1}, {challengeAgain, 1}, {time.Second, 2}} {
			time.Sleep(tt.after)
			if again, err := r.resolve(t.Context(), b.own(), refused); again || !errors.Is(err, registry.ErrDuplicateNode) {
				t.Errorf("again %t, %v", again, err)
			}
			if n := len(b.registry.At("Acquire")); n != tt.want {
				t.Errorf("after %s: challenged %d times, want %d", tt.after, n, tt.want)
			}
		}
	})
}

// TestStoreSetBack: a host took the slot of another host after the store was backed up. After a restore, the store says
// again that the slot is the other host's.
func TestStoreSetBack(t *testing.T) {
	type then func(t *testing.T, a *host, b registry.Lease, other *memory.Client)
	nothing := func(*testing.T, *host, registry.Lease, *memory.Client) {}
	for _, tt := range []struct {
		name string
		then then // is called after the restore
		keep bool
		exit bool
		soon bool // the wait ends before the session of the other host would have
	}{
		{name: "the other is no more", keep: true, soon: true,
			then: func(_ *testing.T, a *host, b registry.Lease, _ *memory.Client) {
				a.store.EndSession(b.Session)
			}},
		{name: "the other has another slot", keep: true, soon: true,
			then: func(t *testing.T, a *host, b registry.Lease, other *memory.Client) {
				_, err := other.Acquire(t.Context(), a.network(), registry.Claim{
					Node:      b.Node,
					NodeID:    b.NodeID,
					PublicIPs: b.PublicIPs,
					MTU:       1450,
					Backend:   b.Backend,
					Session:   b.Session,
					Prefer:    a.network().Plan.Subnets(b.Slot%3 + 1)[0],
					Running:   true,
					TTL:       time.Hour,
					Hold:      time.Hour,
				})
				must(t, err)
			}},
		{name: "the other lives", then: nothing},
		{name: "the other lives, exit", exit: true, then: nothing},
		{name: "the other changed its record since", soon: true,
			then: func(_ *testing.T, a *host, b registry.Lease, _ *memory.Client) {
				b.MTU = 1400
				a.put(b)
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newHost(t, memory.New(), "a")
				if tt.exit {
					a.configure(func(o *Options) { o.Settings.OnLost = config.OnLostExit })
				}
				other := a.store.Client()
				subnet := netip.MustParsePrefix("10.5.2.0/24")
				b := a.rival("b", subnet)
				backup := a.store.Backup()
				must(t, other.Release(t.Context(), b))
				must(t, os.WriteFile(a.options.SubnetFile, []byte("LENO_SUBNET=10.5.2.1/24\n"), 0o644))
				if got := a.start().held().Subnet(); got != subnet {
					t.Fatalf("subnet %s, want %s", got, subnet)
				}
				a.store.Restore(backup)
				a.check(health.Lease, api.Warning, subnet.String()+": ", `"b" (192.0.2.98`, "set back", "; waiting until ")
				began := time.Now()
				tt.then(t, a, b, other)
				if tt.exit {
					var lost *LostError
					if err := <-a.exited; !errors.As(err, &lost) || lost.Old != subnet.String() {
						t.Errorf("ended with %v", err)
					}
					return
				}
				now := a.held().Subnet()
				if (now == subnet) != tt.keep {
					t.Errorf("subnet %s, before %s", now, subnet)
				}
				if c := a.checked(health.Lease); tt.keep && c.Reason != subnet.String()+" is held" ||
					!tt.keep && !strings.Contains(c.Reason, "it was "+subnet.String()+" until") {
					t.Errorf("check %q", c.Reason)
				}
				if _, session := a.record(b.Subnet()); (session == b.Session) == tt.keep {
					t.Errorf("the slot is held by %q, the other's session is %q", session, b.Session)
				}
				if patience := a.options.Settings.TTL * 5 / 2; (time.Since(began) < patience-time.Second) != tt.soon {
					t.Errorf("held again after %s", time.Since(began))
				}
			})
		})
	}
}

// TestStoreSetBackInAnOutage: a store that does not answer while this host waits for the other host's record to end
// shows nothing about that host.
func TestStoreSetBackInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		b := a.rival("b", netip.Prefix{})
		r := &conflictResolver{keeper: a.keeper, network: a.network()}
		a.registry.SetOne("Network", registry.ErrNetworkNotFound) // the store has lost the definition
		a.registry.SetOne("WatchLease", registry.ErrUnavailable)
		time.AfterFunc(30*time.Second, func() { a.registry.SetOne("WatchLease", nil) })
		time.AfterFunc(time.Minute, func() { a.store.EndSession(b.Session) })
		began := time.Now()
		again, err := r.awaitExpiry(t.Context(), b, registry.ErrSetBack)
		if err != nil || !again || r.gaveUpSlot || r.oldBelow <= b.ModifyIndex || time.Since(began) < time.Minute {
			t.Errorf("again %t, %v, after %s: %+v", again, err, time.Since(began), r)
		}
		if c := r.complete(registry.Claim{Since: 1, Running: true}); c.Since != r.oldBelow || !c.Running {
			t.Errorf("%+v", c)
		}
		a.registry.SetOne("Network", registry.ErrUnavailable)
		again, err = r.awaitExpiry(t.Context(), b, registry.ErrSetBack)
		if again || !errors.Is(err, registry.ErrUnavailable) {
			t.Errorf("the definition cannot be read: again %t, %v", again, err)
		}
	})
}

// TestStoreMadeAgain: in a new store, versions count from the start again, so that an old version is no sign of a
// record that was brought back.
func TestStoreMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		n := a.network()
		empty(a.store)
		must(t, a.store.Client().PutNetwork(t.Context(), definition(t)))
		r := &conflictResolver{keeper: a.keeper, network: n}
		again, err := r.awaitExpiry(t.Context(), registry.Lease{ModifyIndex: 1}, registry.ErrSetBack)
		if err != nil || !again || !r.gaveUpSlot {
			t.Errorf("again %t, %v, gave up %t", again, err, r.gaveUpSlot)
		}
		c := r.complete(registry.Claim{
			Prefer:    netip.MustParsePrefix("10.5.1.0/24"),
			Running:   true,
			RecentUse: true,
			Since:     9,
		})
		if c.Since != 1 || !c.Running || !c.RecentUse || !c.Prefer.IsValid() {
			t.Errorf("%+v", c)
		}
	})
}

// TestStoreSetBackWhileStopped: the state file is newer than a store that was set back while no agent ran.
func TestStoreSetBackWhileStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").start()
		before := a.held().Subnet()
		backup := a.store.Backup()
		a.end()
		a.store.Delete(leaseKey(before))
		if b := a.rival("b", before); b.Subnet() != before {
			t.Fatalf("b has %s", b.Subnet())
		}
		a.build().start()
		now := a.held().Subnet()
		synctest.Wait()
		a.end()
		a.store.Restore(backup)
		a.build().start()
		if got := a.held().Subnet(); got != now || now == before {
			t.Errorf("subnet %s, then %s, and after the restore %s", before, now, got)
		}
		if value, _ := a.record(before); value != "" {
			t.Error("the record of before is still there")
		}
	})
}

// TestStoreSetBackWhileAway: a host was away for longer than lease.hold, so that another one may have been given its
// subnet, and the store was set back: its record has a lower index than that of the first host. When that one returns, it
// withdraws the subnet at once.
func TestStoreSetBackWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").configure(func(o *Options) { o.Settings.Hold = 10 * time.Minute })
		subnet := netip.MustParsePrefix("10.5.2.0/24")
		b := a.rival("b", subnet)
		backup := a.store.Backup()
		must(t, a.store.Client().Release(t.Context(), b))
		must(t, os.WriteFile(a.options.SubnetFile, []byte("LENO_SUBNET=10.5.2.1/24\n"), 0o644))
		if got := a.start().held().Subnet(); got != subnet {
			t.Fatalf("subnet %s, want %s", got, subnet)
		}
		synctest.Wait()
		a.end()
		time.Sleep(a.options.Settings.Hold + time.Minute)
		a.store.Restore(backup)
		began := time.Now()
		a.build().start()
		now, took := a.held().Subnet(), time.Since(began)
		if now == subnet || took > a.options.Settings.TTL || !slices.Contains(a.changes(), "superseded "+subnet.String()) {
			t.Errorf("subnet %s after %s, with %q", now, took, a.changes())
		}
	})
}

func TestSuspicionsEndOnTheirOwn(t *testing.T) {
	a := newHost(t, memory.New(), "a")
	for _, tt := range []struct {
		source       string
		suspicion    Suspicion
		status, want string
	}{
		{"claim", Suspicion{Reason: "one"}, api.Critical, "one"},
		{"leases", Suspicion{Reason: "two", Older: true}, api.Critical, "one; two"},
		{"claim", Suspicion{}, api.Warning, "two"},
		{"leases", Suspicion{Reason: "three"}, api.Critical, "three"},
		{"leases", Suspicion{}, api.Passing, "no other host uses this host's name or addresses"},
	} {
		a.keeper.Suspect(tt.source, tt.suspicion)
		if c := a.checked(health.Conflict); c.Status != tt.status || c.Reason != tt.want {
			t.Errorf("%s %+v: %+v", tt.source, tt.suspicion, c)
		}
	}
	a.keeper.Suspect("leases", Suspicion{Reason: "four"})
	a.keeper.Reset()
	a.keeper.Suspect("claim", Suspicion{})
	if c := a.checked(health.Conflict); c.Status != api.Passing {
		t.Errorf("after a reset: %+v", c)
	}
	if n := strings.Count(a.log.String(), "another host uses this host's name or addresses"); n != 3 {
		t.Errorf("logged %d times", n)
	}
}
