package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// slow sets renewals so far apart that only the watch can notice a loss.
func (h *host) slow() *host {
	h.config.Lease.TTL, h.config.Lease.RenewMargin = 2*time.Hour, time.Hour
	return h
}

// empty deletes everything from the store, as restoring a backup may.
func empty(store *memory.Store) {
	for _, key := range store.Keys("") {
		store.Delete(key)
	}
}

func TestStoreEmptied(t *testing.T) {
	store := memory.New()
	a, b := newHost(t, store, "a"), newHost(t, store, "b")
	a.start()
	b.start()
	subnet := a.subnet()
	want := fmt.Sprintf("%s <- b@%s", subnet, b.subnet())
	a.applies(want)
	a.ready()
	b.ready()
	for _, h := range []*host{a, b} { // neither repairs the store before the checks below
		h.registry.setOne("PutNetwork", registry.ErrUnavailable)
		h.registry.setOne("Acquire", registry.ErrUnavailable)
	}
	empty(store)
	a.check(health.Lease, api.Warning, subnet.String())
	a.check(health.Snapshot, api.Warning, "peers keep their routes")
	tries := len(a.recorder.tries())
	a.kick()
	a.more("applies", tries, func() int { return len(a.recorder.tries()) })
	a.applies(want)
	for _, h := range []*host{a, b} {
		h.registry.setOne("PutNetwork", nil)
		h.registry.setOne("Acquire", nil)
	}
	a.check(health.Lease, api.Passing, subnet.String())
	b.check(health.Lease, api.Passing, b.subnet().String())
	for _, key := range []string{leaseKey(subnet), leaseKey(b.subnet())} {
		if _, session, ok := store.Get(key); !ok || session == "" {
			t.Errorf("%s was not put back", key)
		}
	}
	// Both hosts fail once more until the first of them has put the network back.
	eventually(t, func() error {
		if _, err := store.Client().Network(context.Background(), "n"); err == nil {
			return nil
		}
		store.Delete(leaseKey(subnet))
		return errors.New("the network was not put back")
	})
	a.applies(want)
	for _, state := range a.recorder.all() {
		if !strings.HasPrefix(state, subnet.String()) {
			t.Errorf("state %q was applied after the store was emptied", state)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestClaimTellsWhatWasHeld(t *testing.T) {
	a := newHost(t, memory.New(), "a")
	r := a.part()
	p := datapath.Place{Choice: a.place, MTU: 1450}
	subnet, other := netip.MustParsePrefix("10.5.2.0/24"), netip.MustParsePrefix("10.5.3.0/24")
	for _, tt := range []struct {
		name    string
		prepare func()
		session string
		prefer  netip.Prefix
		since   uint64
		lately  bool
	}{
		{"nothing", func() {}, "", netip.Prefix{}, 0, false},
		{"subnet file", func() { must(t, state.WriteFile(r.local.SubnetFile, []byte("LENO_SUBNET=10.5.3.1/24\n"), 0o644)) }, "", other, 0, false},
		{"state file of another store", func() {
			must(t, state.Save(a.config.DataDir, state.Network{Network: "n", Session: "s", Subnets: []netip.Prefix{subnet}, Lease: 5, Definition: 6, Renewed: time.Now()}))
		}, "s", subnet, 0, true},
		{"state file", func() {
			must(t, state.Save(a.config.DataDir, state.Network{Network: "n", Session: "s", Subnets: []netip.Prefix{subnet}, Lease: 5, Definition: 7, Renewed: time.Now().Add(-a.config.Lease.Hold)}))
		}, "s", subnet, 5, false},
		{"lease", func() {
			r.show(func(v *view) { v.local.Renewed = time.Now() })
			r.lease.Set(testLease("a", 1, "now", 9))
		}, "now", netip.MustParsePrefix("10.5.1.0/24"), 9, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.prepare()
			c := r.makeClaim(registry.Network{Name: "n", CreateIndex: 7}, p)
			if c.Session != tt.session || c.Prefer != tt.prefer || c.Since != tt.since || c.Lately != tt.lately {
				t.Errorf("session %q, prefers %s since %d, held lately %t", c.Session, c.Prefer, c.Since, c.Lately)
			}
			if c.Node != "a" || c.NodeID != "id-a" || c.MTU != 1450 || c.TTL != a.config.Lease.TTL || c.Hold != a.config.Lease.Hold || c.Running {
				t.Errorf("%+v", c)
			}
		})
	}
}

// TestClaimAfterALoss: a host that saw the store lose the network gives other hosts time to claim their subnets again,
// unless it claims its own.
func TestClaimAfterALoss(t *testing.T) {
	store := memory.New()
	a, b := newHost(t, store, "a").start(), newHost(t, store, "b")
	a.ready()
	n, subnet := b.inStore(), a.subnet()
	before, _, _ := mustRunner(t, a).lease.Get()
	run := b.part()
	run.known = &knownDefinition{network: n, used: time.Now(), confirmed: true}
	claim := ownClaim(b)
	must(t, a.stop())
	store.EndSession(before.Session)
	empty(store)
	_, err := run.definition(t.Context()) // the definition that it knows stays in force
	must(t, err)
	n.CreateIndex, n.ModifyIndex = 0, 0
	must(t, store.Client().PutNetwork(t.Context(), n))
	n = b.inStore()
	if _, err := run.acquireOnce(t.Context(), n, claim); !errors.Is(err, registry.ErrLeasesLost) {
		t.Errorf("a newcomer: %v", err)
	}
	a.start()
	a.ready()
	if got := a.subnet(); got != subnet {
		t.Errorf("%s, before %s", got, subnet)
	}
	run.mu.Lock()
	run.lossSeen = run.lossSeen.Add(-claim.TTL)
	run.mu.Unlock()
	lease, err := run.acquireOnce(t.Context(), n, claim)
	if must(t, err); lease.Subnet() == subnet {
		t.Errorf("the newcomer has %s, too", subnet)
	}
}

func TestSessionIsSaved(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	lease, _, _ := mustRunner(t, a).lease.Get()
	got, err := state.Load(a.config.DataDir, "n")
	if err != nil || got.Session == "" || got.Session != lease.Session || len(got.Pools) != 1 || got.Backend.Type != "recorder" {
		t.Errorf("%+v, %v", got, err)
	}
	a.store.EndSession(lease.Session) // the new session is saved, too
	eventually(t, func() error {
		got, err := state.Load(a.config.DataDir, "n")
		if now, _, _ := mustRunner(t, a).lease.Get(); err != nil || got.Session == lease.Session || got.Session != now.Session {
			return fmt.Errorf("%+v, %v", got, err)
		}
		return nil
	})
}

// TestLossIsSeenByTheWatch: renewals are an hour apart, so only the watch can notice a loss.
func TestLossIsSeenByTheWatch(t *testing.T) {
	for _, tt := range []struct {
		name string
		lose func(store *memory.Store, l registry.Lease)
	}{
		{"deleted by hand", func(s *memory.Store, l registry.Lease) { s.Delete(leaseKey(l.Subnet())) }},
		{"session ended", func(s *memory.Store, l registry.Lease) { s.EndSession(l.Session) }},
		{"overwritten with nonsense", func(s *memory.Store, l registry.Lease) { s.Put(leaseKey(l.Subnet()), []byte("{")) }},
		{"changed", func(s *memory.Store, l registry.Lease) {
			l.MTU = 1300
			value, err := registry.FormatLease(l)
			must(t, err)
			s.Put(leaseKey(l.Subnet()), value)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newHost(t, memory.New(), "a").slow().start()
			a.ready()
			lease, _, _ := mustRunner(t, a).lease.Get()
			value, _, _ := a.store.Get(leaseKey(lease.Subnet()))
			tt.lose(a.store, lease)
			eventually(t, func() error {
				now, session, ok := a.store.Get(leaseKey(lease.Subnet()))
				if !ok || session == "" || string(now) != string(value) {
					return fmt.Errorf("there: %t, session %q: %s", ok, session, now)
				}
				return nil
			})
			if c := a.registry.claimed(); c.Session != lease.Session || c.Prefer != lease.Subnet() || !c.Running {
				t.Errorf("claimed %+v", c)
			}
			if a.registry.count("own Renew") != 0 {
				t.Error("it was renewed")
			}
			a.check(health.Lease, api.Passing)
			if got := a.recorder.all(); len(got) != 1 {
				t.Errorf("the datapath was disturbed: %q", got)
			}
		})
	}
}

// scripted always answers WatchLease with the same lease.
type scripted struct {
	registry.Registry
	lease registry.Lease
	err   error
}

func (s scripted) WatchLease(ctx context.Context, _ registry.Network, _ netip.Prefix, after uint64) (registry.Lease, uint64, error) {
	if after != 0 {
		<-ctx.Done()
		return registry.Lease{}, 0, ctx.Err()
	}
	return s.lease, 5, s.err
}

func TestWatchOwn(t *testing.T) {
	own := testLease("a", 1, "sa", 1)
	with := func(change func(l *registry.Lease)) registry.Lease { l := own; change(&l); return l }
	for _, tt := range []struct {
		name  string
		lease registry.Lease
		err   error
		want  string
		copy  bool
		// answer means that nothing is lost, but the record has to be written again.
		answer bool
	}{
		{name: "gone", err: registry.ErrLeaseNotFound, want: "gone"},
		{name: "revoked", err: &registry.RevokedError{NodeID: own.NodeID}, want: "revoked"},
		{name: "revoked from an unknown host", err: &registry.RevokedError{}, want: "revoked"},
		{name: "revoked from another host", err: &registry.RevokedError{NodeID: "id-b"}, want: "its record is gone"},
		{name: "nonsense", err: registry.ErrInvalid, want: "overwritten"},
		{name: "lapsed", lease: with(func(l *registry.Lease) { l.Session = "" }), want: "session ended"},
		{name: "another's", lease: testLease("b", 1, "sb", 2), want: `host "b" ([192.0.2.98]) holds it`},
		{name: "another session of ours", lease: with(func(l *registry.Lease) { l.Session = "new" }), want: "holds it"},
		{name: "other name", lease: with(func(l *registry.Lease) { l.Node = "b" }), want: "copied", copy: true},
		{name: "other id", lease: with(func(l *registry.Lease) { l.NodeID = "id-b" }), want: "copied", copy: true},
		{name: "asked by a copy", lease: with(func(l *registry.Lease) {
			l.PublicIPs = append(slices.Clone(l.PublicIPs), netip.MustParseAddr("192.0.2.9"))
		}), answer: true, copy: true},
		{name: "other address and session", lease: with(func(l *registry.Lease) {
			l.Session, l.PublicIPs = "new", []netip.Addr{netip.MustParseAddr("192.0.2.9")}
		}), want: "copied", copy: true},
		{name: "other address", lease: with(func(l *registry.Lease) { l.PublicIPs = []netip.Addr{netip.MustParseAddr("192.0.2.9")} }), want: "192.0.2.9", copy: true},
		{name: "other value", lease: with(func(l *registry.Lease) { l.MTU = 9 }), want: "changed"},
		{name: "ours"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, memory.New(), "a")
			h.catalog = scripted{h.registry, tt.lease, tt.err}
			if tt.name == "ours" {
				h.catalog = scripted{h.registry, own, nil}
			}
			r := h.part()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			quiet := tt.want == "" && !tt.answer
			if quiet {
				cancel()
				ctx, cancel = context.WithTimeout(context.Background(), 20*time.Millisecond)
			}
			defer cancel()
			got, err := r.watchOwn(ctx, registry.Network{Name: "n"}, own)
			if quiet {
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%q, %v", got, err)
				}
				return
			}
			if err != nil || !strings.Contains(got, tt.want) || tt.answer && got != "" {
				t.Errorf("%q, %v", got, err)
			}
			report, _ := h.agent.env.health.Report()
			if conflict := report.Status == api.Critical && strings.Contains(fmt.Sprint(report), "copied"); conflict != tt.copy {
				t.Errorf("conflict %t: %+v", conflict, report)
			}
		})
	}
}

// TestLossIsSeenByRenewing: a renewal notices a loss when the watch does not work.
func TestLossIsSeenByRenewing(t *testing.T) {
	a := newHost(t, memory.New(), "a")
	a.registry.setOne("WatchLease", registry.ErrUnavailable)
	a.start()
	a.ready()
	lease, _, _ := mustRunner(t, a).lease.Get()
	a.store.EndSession(lease.Session)
	eventually(t, func() error {
		if _, session, _ := a.store.Get(leaseKey(lease.Subnet())); session == "" {
			return errors.New("not taken back")
		}
		return nil
	})
	a.check(health.Lease, api.Passing, lease.Subnet().String())
}

// TestSessionComesBackToLife: a session was found dead, and a store that was set back has it again, with the lease. The
// host renews it from then on.
func TestSessionComesBackToLife(t *testing.T) {
	t.Parallel()
	a := newHost(t, memory.New(), "a")
	a.registry.setOne("WatchLease", registry.ErrUnavailable)
	a.start()
	a.ready()
	lease, _, _ := mustRunner(t, a).lease.Get()
	session := func() string {
		_, session, _ := a.store.Get(leaseKey(lease.Subnet()))
		return session
	}
	backup := a.store.Backup()
	a.store.EndSession(lease.Session)
	eventually(t, func() error {
		if now := session(); now == "" || now == lease.Session {
			return fmt.Errorf("not taken back: session %q", now)
		}
		return nil
	})
	// The watch, not another renewal, should see the restored record. The watch works once it has had an answer and
	// asks for the next.
	a.registry.setOne("WatchLease", nil)
	a.more("watches", a.registry.count("own WatchLease")+1, func() int { return a.registry.count("own WatchLease") })
	a.registry.setOne("Renew", registry.ErrUnavailable)
	a.store.Restore(backup)
	eventually(t, func() error {
		now, _, _ := mustRunner(t, a).lease.Get()
		if now.Session != lease.Session {
			return fmt.Errorf("session %q, that of the record is %q", now.Session, session())
		}
		return nil
	})
	a.registry.setOne("Renew", nil)
	a.check(health.Lease, api.Passing, lease.Subnet().String())
	a.more("renewals", a.registry.count("own Renew")+2, func() int { return a.registry.count("own Renew") })
	if got := session(); got != lease.Session {
		t.Errorf("session %q, want %q", got, lease.Session)
	}
}

func TestWaitIsCriticalOnlyWithoutALease(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	r := h.part()
	r.report.Wait(health.Network, "one")
	h.check(health.Network, api.Critical, "one")
	r.lease.Set(testLease("a", 1, "s", 1))
	r.report.Wait(health.Network, "two")
	h.check(health.Network, api.Warning, "two")
	if got := r.shown().local.State; got != "two" {
		t.Errorf("state %q", got)
	}
}

// TestRenewalGoesOn: a host renews its lease whatever its network waits for.
func TestRenewalGoesOn(t *testing.T) {
	t.Parallel()
	t.Run("unknown backend", func(t *testing.T) {
		a := newHost(t, memory.New(), "a").start()
		a.ready()
		subnet := a.subnet()
		a.define(func(n *registry.Network) { n.Backend = mustBackend(t, "pigeon", "") })
		a.check(health.Network, api.Warning, `no backend "pigeon"`)
		a.more("renewals", a.registry.count("own Renew")+1, func() int { return a.registry.count("own Renew") })
		a.define(func(n *registry.Network) { n.Backend = mustBackend(t, "recorder", "") })
		a.check(health.Network, api.Passing)
		a.applies(subnet.String() + " <- ")
	})
	t.Run("claim refused", func(t *testing.T) {
		store := memory.New()
		a, b := newHost(t, store, "a").start(), newHost(t, store, "b").start()
		a.ready()
		b.ready()
		a.move(b.place.Addrs, nil)
		a.kick()
		a.check(health.Conflict, api.Critical, `"b"`, "192.0.2.98")
		a.check(health.Lease, api.Warning, "same public address")
		a.more("renewals", a.registry.count("own Renew")+1, func() int { return a.registry.count("own Renew") })
		a.move([]netip.Addr{netip.MustParseAddr("192.0.2.97")}, nil)
		a.kick()
		a.check(health.Conflict, api.Passing)
		a.check(health.Lease, api.Passing)
	})
}

// TestNoClaimAfterRelease: a released lease is not claimed again, although the watch may notice that the record is gone
// before the round has ended.
func TestNoClaimAfterRelease(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	r := h.part()
	r.released = &releaseRequest{done: make(chan error, 1)}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := r.acquire(ctx, registry.Network{Name: "n"}, func() registry.Claim { return registry.Claim{} })
	if !errors.Is(err, errReleased) || h.registry.count("own Acquire") != 0 {
		t.Errorf("%v", err)
	}
}

func TestLostErrorNamesBothSubnets(t *testing.T) {
	err := &LostError{Network: "n", Old: "10.5.1.0/24", New: "10.5.2.0/24"}
	for _, word := range []string{"n", "10.5.1.0/24", "10.5.2.0/24", config.OnLostExit} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not name %s", err, word)
		}
	}
}

// TestSessionSaidToBeGone: a store that has just come back may not know a living session yet. The host keeps the
// session.
func TestSessionSaidToBeGone(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	lease, _, _ := mustRunner(t, a).lease.Get()
	a.registry.setOne("Renew", registry.ErrLeaseLost)
	a.check(health.Lease, api.Warning, "its session ended")
	a.registry.setOne("Renew", nil)
	a.check(health.Lease, api.Passing)
	renewals := a.registry.count("own Renew")
	a.more("renewals", renewals, func() int { return a.registry.count("own Renew") })
	if now, _, _ := mustRunner(t, a).lease.Get(); now.Session != lease.Session {
		t.Errorf("session %s, was %s", now.Session, lease.Session)
	}
}

// TestClaimFollowsTheDefinition: a claim that waits for the network to be defined again
// is made as soon as it is, before a host that knows nothing of the lease can take the
// subnet.
func TestClaimFollowsTheDefinition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, memory.New(), "a")
		h.pace = retry.DefaultPolicy()
		define := func() {
			n := registry.Network{Name: "n", Plan: mustPlan(t, "10.5.0.0/22"), Backend: mustBackend(t, "recorder", "")}
			must(t, h.store.Client().PutNetwork(t.Context(), n))
		}
		define()
		r, n := h.part(), h.inStore()
		h.store.Delete(networkKey)
		h.registry.setOne("Acquire", registry.ErrUnavailable)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = h.agent.watchNetworks(ctx) }()
		claimed := make(chan error, 1)
		go func() { claimed <- errOf(r.acquire(ctx, n, func() registry.Claim { return ownClaim(h) })) }()
		time.Sleep(5 * time.Minute)
		h.registry.setOne("Acquire", nil)
		define()
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		select {
		case err := <-claimed:
			must(t, err)
		default:
			t.Error("no claim yet")
		}
	})
}
