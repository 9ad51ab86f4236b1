package consul

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/transport"
)

// follow watches until the slots are as wanted. It fails if a set before that lacks any of least, and retries after
// uncertain answers like an agent.
func follow(t *testing.T, c *Client, n registry.Network, after uint64, want, least []uint64) (registry.LeaseSet, uint64) {
	t.Helper()
	ctx := testContext(t)
	for {
		set, index, err := c.WatchLeases(ctx, n, after)
		if err != nil {
			if !errors.Is(err, registry.ErrUncertain) && !errors.Is(err, registry.ErrUnavailable) || ctx.Err() != nil {
				t.Fatalf("waiting for %v: %v", want, err)
			}
			if err := registry.Sleep(ctx, 20*time.Millisecond); err != nil {
				t.Fatalf("waiting for %v: %v", want, err)
			}
			continue
		}
		for _, slot := range least {
			if !slices.Contains(slots(set), slot) {
				t.Fatalf("slot %d is missing from %v", slot, slots(set))
			}
		}
		after = index
		if slices.Equal(slots(set), want) {
			return set, index
		}
	}
}

// watched returns a watcher that has seen the leases of three hosts on slots 10, 20 and 30.
func watched(t *testing.T, s *store, change ...func(*Config)) (watcher *Client, n registry.Network, leases []registry.Lease, index uint64) {
	t.Helper()
	n = putNetwork(t, s, "default", "10.5.0.0/16")
	for i := range 3 {
		c := claim(i)
		c.Prefer = n.Plan.Subnets(uint64(10 * (i + 1)))[0]
		l, err := s.open(t).Acquire(testContext(t), n, c)
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, l)
	}
	watcher = s.open(t, change...)
	_, index = follow(t, watcher, n, 0, []uint64{10, 20, 30}, nil)
	return watcher, n, leases, index
}

func settle(d time.Duration) func(*Config) { return func(c *Config) { c.Settle = d } }

func TestDeletionsAreSeen(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	watcher, n, leases, index := watched(t, s, settle(time.Hour))
	c := s.open(t)
	// One of three is removed at once, one of two and the last after a probe. Settle is an hour, so none of them waits
	// for the tree to settle.
	for i, want := range [][]uint64{{20, 30}, {30}, {}} {
		if err := c.Revoke(testContext(t), n.Name, leases[i].Subnet()); err != nil {
			t.Fatal(err)
		}
		_, index = follow(t, watcher, n, index, want, want)
	}
	// Many at once.
	acquire(t, c, n, 5)
	acquire(t, c, n, 6)
	set, index, err := watcher.WatchLeases(testContext(t), n, index)
	for err == nil && len(set.Leases) < 2 {
		set, index, err = watcher.WatchLeases(testContext(t), n, index)
	}
	if err != nil {
		t.Fatal(err)
	}
	var ops api.KVTxnOps
	for _, l := range set.Leases {
		ops = append(ops, &api.KVTxnOp{Verb: api.KVDelete, Key: watcher.kv.keys.Lease(n.Name, l.Subnet())})
	}
	if ok, _, _, err := s.admin.KV().Txn(ops, nil); !ok || err != nil {
		t.Fatal(ok, err)
	}
	follow(t, watcher, n, index, []uint64{}, nil)
}

func TestRightsLost(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string]func(s *store) string{
		"all": func(*store) string { return `key_prefix "other/" { policy = "read" }` },
		"of two leases": func(s *store) string {
			return `key_prefix "` + s.prefix + `/" { policy = "read" }
				key "` + s.prefix + `/leases/default/10.5.20.0-24" { policy = "deny" }
				key "` + s.prefix + `/leases/default/10.5.30.0-24" { policy = "deny" }
				key "` + s.prefix + `/networks/default" { policy = "deny" }`
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			full := `key_prefix "` + s.prefix + `/" { policy = "read" }`
			secret, policy := s.newToken(t, full)
			watcher, n, _, index := watched(t, s, func(c *Config) { c.Token = secret; c.Wait = time.Second })
			_, networks, err := watcher.WatchNetworks(testContext(t), 0)
			if err != nil {
				t.Fatal(err)
			}
			s.setRules(t, policy, rules(s))

			// Every answer is either complete or an error.
			var failure error
			eventually(t, "the leases are denied", func() bool {
				set, _, err := watcher.WatchLeases(testContext(t), n, 0)
				if err == nil && len(set.Leases) != 3 {
					t.Fatalf("a short list: %v", slots(set))
				}
				failure = err
				return err != nil
			})
			wantIs(t, failure, registry.ErrDenied, registry.ErrUncertain)
			eventually(t, "the networks are denied", func() bool {
				set, _, err := watcher.WatchNetworks(testContext(t), 0)
				if err == nil && len(set.Networks) != 1 {
					t.Fatalf("a short list: %v", set)
				}
				failure = err
				return err != nil
			})
			wantIs(t, failure, registry.ErrDenied, registry.ErrUncertain)
			if name == "all" {
				// A watch that was already blocking notices as well.
				wantIs(t, errOf(watcher.WatchLeases(testContext(t), n, index)), registry.ErrDenied)
				wantIs(t, errOf(watcher.WatchLease(testContext(t), n, n.Plan.Subnets(10)[0], 0)), registry.ErrDenied)
			}

			s.setRules(t, policy, full)
			eventually(t, "the rights are back", func() bool {
				set, _, err := watcher.WatchLeases(testContext(t), n, 0)
				return err == nil && len(set.Leases) == 3
			})
			eventually(t, "the rights are back", func() bool {
				_, index, err := watcher.WatchNetworks(testContext(t), 0)
				return err == nil && index == networks
			})
		})
	}
}

// TestFilteredSilently: a server does not report that it left out records, as for the anonymous token.
func TestFilteredSilently(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	secret, policy := s.newToken(t, `key_prefix "`+s.prefix+`/" { policy = "read" }`)
	addr := proxy(t, s.server, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		pass.ServeHTTP(headerFilter{w}, r)
	})
	watcher, n, _, index := watched(t, s, func(c *Config) { c.Token, c.Address, c.Wait = secret, addr, time.Second })
	s.setRules(t, policy, `key_prefix "other/" { policy = "read" }`)
	var err error
	eventually(t, "the leases are denied", func() bool {
		set, _, e := watcher.WatchLeases(testContext(t), n, 0)
		if e == nil && len(set.Leases) != 3 {
			t.Fatalf("a short list: %v", slots(set))
		}
		err = e
		return e != nil
	})
	wantIs(t, err, registry.ErrDenied, registry.ErrUncertain)
	_, _, err = watcher.WatchLeases(testContext(t), n, index)
	wantIs(t, err, registry.ErrDenied, registry.ErrUncertain)
}

type headerFilter struct{ http.ResponseWriter }

func (h headerFilter) WriteHeader(code int) {
	h.Header().Del("X-Consul-Results-Filtered-By-ACLs")
	h.ResponseWriter.WriteHeader(code)
}

func TestStoreEmptied(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	watcher, n, leases, index := watched(t, s, settle(time.Hour))
	hasty := s.open(t, settle(3*time.Second))
	follow(t, hasty, n, 0, []uint64{10, 20, 30}, nil)
	_, nindex, err := watcher.WatchNetworks(testContext(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	s.empty(t)
	for range 3 {
		_, _, err := watcher.WatchLeases(testContext(t), n, index)
		wantIs(t, err, registry.ErrUncertain)
		_, _, err = watcher.WatchLeases(testContext(t), n, 0)
		wantIs(t, err, registry.ErrUncertain)
	}
	// It is certain that there are no networks, and none of them was deleted.
	networks, after, err := watcher.WatchNetworks(testContext(t), nindex)
	if err != nil || len(networks.Networks)+len(networks.Deleted) > 0 || after == nindex {
		t.Fatalf("got %+v at %d after %d, %v", networks, after, nindex, err)
	}
	nindex = after
	_, err = watcher.Network(testContext(t), "default")
	wantIs(t, err, registry.ErrNetworkNotFound)
	if deleted := (*registry.DeletedError)(nil); errors.As(err, &deleted) {
		t.Errorf("lost, and taken for deleted: %v", err)
	}
	// Each host's runner sees that its own lease is gone, and takes it again.
	_, _, err = watcher.WatchLease(testContext(t), n, leases[0].Subnet(), 0)
	wantIs(t, err, registry.ErrLeaseNotFound)
	claim0 := claim(0)
	claim0.Prefer, claim0.Session = leases[0].Subnet(), leases[0].Session
	back, err := s.open(t).Acquire(testContext(t), n, claim0)
	if err != nil || back.Slot != 10 || back.Session != leases[0].Session {
		t.Fatalf("got %+v, %v", back, err)
	}
	// A new host waits for the hosts that have not returned yet.
	c3 := claim(3)
	c3.Prefer = leases[1].Subnet()
	_, err = watcher.Acquire(testContext(t), n, c3)
	wantIs(t, err, registry.ErrLeasesLost)
	// The other leases stay as last known until the tree has settled.
	set, index := follow(t, watcher, n, index, []uint64{10, 20, 30}, []uint64{10, 20, 30})
	if set.Leases[1].Session != leases[1].Session || set.Leases[0].CreateIndex != back.CreateIndex {
		t.Fatalf("got %+v", set.Leases)
	}
	// One host seems to return on another slot: its old lease stays as the others do.
	claim2 := claim(2)
	claim2.Prefer, claim2.Session = n.Plan.Subnets(31)[0], leases[2].Session
	if _, err := s.open(t).Acquire(testContext(t), n, claim2); err != nil {
		t.Fatal(err)
	}
	follow(t, watcher, n, index, []uint64{10, 20, 30, 31}, []uint64{10, 20, 30})
	// One host never returns, and its lease is given up without any change in Consul.
	set, index = follow(t, hasty, n, 0, []uint64{10, 20, 30, 31}, []uint64{10, 20, 30, 31})
	follow(t, hasty, n, index, []uint64{10, 31}, []uint64{10, 31})

	if err := s.open(t).PutNetwork(testContext(t), network("other", "10.6.0.0/16")); err != nil {
		t.Fatal(err)
	}
	networks, _, err = watcher.WatchNetworks(testContext(t), nindex)
	if err != nil || len(networks.Networks) != 1 || networks.Networks[0].Name != "other" {
		t.Fatalf("got %+v, %v", networks, err)
	}
}

func TestMarkerDeletedByHand(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	watcher, n, leases, index := watched(t, s, settle(time.Hour))
	marker := s.prefix + "/leases/default/_"
	s.Delete(t, marker)
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(testContext(t))
	go func() {
		defer close(done)
		_, _, _ = watcher.WatchLeases(ctx, n, index) // the leases do not change for the caller
	}()
	eventually(t, "the marker is back", func() bool { _, _, ok := s.Get(t, marker); return ok })
	cancel()
	<-done
	follow(t, watcher, n, 0, []uint64{10, 20, 30}, []uint64{10, 20, 30})
	if err := s.open(t).Revoke(testContext(t), n.Name, leases[0].Subnet()); err != nil {
		t.Fatal(err)
	}
	follow(t, watcher, n, index, []uint64{20, 30}, []uint64{20, 30})
}

func TestSnapshotRestored(t *testing.T) {
	t.Parallel()
	server := newServer(t, "")
	s := &store{server: server, prefix: "leno"}
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	first := acquire(t, s.open(t), n, 0)
	snapshot, _, err := server.admin.Snapshot().Save(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer snapshot.Close()
	data, err := io.ReadAll(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	second := acquire(t, s.open(t), n, 1)
	want := []uint64{first.Slot, second.Slot}
	slices.Sort(want)
	patient, hasty := s.open(t, settle(time.Hour)), s.open(t, settle(time.Second))
	_, index := follow(t, patient, n, 0, want, nil)
	follow(t, hasty, n, 0, want, nil)

	waiting := make(chan error, 1)
	ctx, cancel := context.WithCancel(testContext(t))
	go func() {
		// The leases do not change for the caller.
		set, _, err := patient.WatchLeases(ctx, n, index)
		if err == nil && (set.SetBack != 1 || !slices.Equal(slots(set), want)) {
			err = fmt.Errorf("set back %d times: %v", set.SetBack, slots(set))
		}
		waiting <- err
	}()
	if err := server.admin.Snapshot().Restore(nil, strings.NewReader(string(data))); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := s.Get(t, patient.kv.keys.Lease(n.Name, second.Subnet())); ok {
		t.Fatal("the second lease survived the restore")
	}
	follow(t, patient, n, 0, want, want)
	follow(t, hasty, n, 0, []uint64{first.Slot}, []uint64{first.Slot})
	follow(t, patient, n, 0, want, want)
	if err := <-waiting; err != nil && !errors.Is(err, registry.ErrUnavailable) {
		t.Errorf("the waiting watch ended with %v", err)
	}
	cancel()
}

// TestConsulStartsAnew: Consul's indexes begin again, and a blocking query with the old index would miss all changes.
func TestConsulStartsAnew(t *testing.T) {
	t.Parallel()
	server := newServer(t, "")
	s := &store{server: server, prefix: "leno"}
	watcher, n, leases, index := watched(t, s)
	for range 50 {
		s.Put(t, "other", []byte(time.Now().String())) // so that the old index is out of reach
	}
	l := acquire(t, s.open(t), n, 3)
	want := append([]uint64{10, 20, 30}, l.Slot)
	slices.Sort(want)
	_, index = follow(t, watcher, n, index, want, nil)

	one := make(chan error, 1)
	ctx := testContext(t)
	go func() {
		_, _, err := watcher.WatchLease(ctx, n, l.Subnet(), l.ModifyIndex)
		one <- err
	}()
	server.kill()
	wantIs(t, <-one, registry.ErrUnavailable)
	_, _, err := watcher.WatchLeases(ctx, n, index)
	wantIs(t, err, registry.ErrUnavailable)
	if err := server.start(); err != nil {
		t.Fatal(err)
	}
	_, _, err = watcher.WatchLease(ctx, n, l.Subnet(), l.ModifyIndex)
	wantIs(t, err, registry.ErrLeaseNotFound)
	_, _, err = watcher.WatchLeases(ctx, n, index)
	wantIs(t, err, registry.ErrUncertain)

	back := claim(1)
	back.Prefer, back.Session = leases[1].Subnet(), leases[1].Session
	if _, err := s.open(t).Acquire(ctx, n, back); err != nil {
		t.Fatal(err)
	}
	_, next := follow(t, watcher, n, 0, want, want)
	if next <= index {
		t.Errorf("index went from %d to %d", index, next)
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	c, err := New(Config{Config: transport.Config{Address: "127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	n := network("default", "10.5.0.0/16")
	ctx := testContext(t)
	for name, err := range map[string]error{
		"network": errOf2(c.Network(ctx, "default")),
		"put":     c.PutNetwork(ctx, n),
		"acquire": errOf2(c.Acquire(ctx, n, claim(0))),
		"renew":   c.Renew(ctx, registry.Lease{Subnets: n.Plan.Subnets(1), Session: "x"}),
		"watch":   errOf(c.WatchLeases(ctx, n, 7)),
		"one":     errOf(c.WatchLease(ctx, n, n.Plan.Subnets(1)[0], 7)),
		"all":     errOf(c.WatchNetworks(ctx, 7)),
		"service": c.Announce(ctx, registry.Service{Name: "leno", ID: "leno"}, registry.Verdict{Status: "passing"}),
		"node":    errOf2(c.NodeName(ctx)),
	} {
		t.Run(name, func(t *testing.T) { wantIs(t, err, registry.ErrUnavailable) })
	}
	if ctx.Err() != nil {
		t.Error("took too long")
	}
}

// TestServerTroubles: invalid answers never become a short list.
func TestServerTroubles(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	trouble := make(chan func(w http.ResponseWriter, r *http.Request, pass http.Handler), 1)
	addr := proxy(t, s.server, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		select {
		case f := <-trouble:
			f(w, r, pass)
		default:
			pass.ServeHTTP(w, r)
		}
	})
	watcher, n, _, _ := watched(t, s, func(c *Config) { c.Address = addr })
	for name, tt := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request, pass http.Handler)
		want   error
	}{
		"no leader":  {answer(500, "No cluster leader"), registry.ErrUnavailable},
		"rate limit": {answer(429, "rate limit"), registry.ErrUnavailable},
		"cut off": {func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("X-Consul-Knownleader", "true")
			_, _ = io.WriteString(w, `[{"Key":`)
		}, registry.ErrUnavailable},
		"no known leader": {func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("X-Consul-Knownleader", "false")
			w.Header().Set("X-Consul-Lastcontact", "0")
			w.WriteHeader(404)
		}, registry.ErrUncertain},
		"empty once": {func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("X-Consul-Knownleader", "true")
			w.Header().Set("X-Consul-Lastcontact", "0")
			w.Header().Set("X-Consul-Index", "1")
			w.WriteHeader(404)
		}, nil}, // a stale answer: read again
	} {
		t.Run(name, func(t *testing.T) {
			trouble <- tt.answer
			set, _, err := watcher.WatchLeases(testContext(t), n, 0)
			if tt.want != nil {
				wantIs(t, err, tt.want)
				set, _, err = watcher.WatchLeases(testContext(t), n, 0)
			}
			if err != nil || len(set.Leases) != 3 {
				t.Fatalf("got %v, %v", slots(set), err)
			}
		})
	}
}

// TestWatchTellsThatItGoesOn: after a failure the next watch returns even if nothing has changed and another call has
// read everything in between.
func TestWatchTellsThatItGoesOn(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	trouble := make(chan bool, 1)
	addr := proxy(t, s.server, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		select {
		case <-trouble:
			http.Error(w, "No cluster leader", 500)
		default:
			pass.ServeHTTP(w, r)
		}
	})
	watcher, n, _, index := watched(t, s, func(c *Config) { c.Address = addr }, never)
	for name, interfere := range map[string]func() error{
		"alone":      func() error { return nil },
		"all leases": func() error { return errOf(watcher.WatchLeases(testContext(t), n, 0)) },
	} {
		t.Run(name, func(t *testing.T) {
			trouble <- true
			wantIs(t, errOf(watcher.WatchLeases(testContext(t), n, index)), registry.ErrUnavailable)
			if err := interfere(); err != nil {
				t.Fatal(err)
			}
			set, next, err := watcher.WatchLeases(testContext(t), n, index)
			if err != nil || next != index || len(set.Leases) != 3 {
				t.Errorf("got %v at %d, want all at %d: %v", slots(set), next, index, err)
			}
		})
	}
}

func answer(code int, body string) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { http.Error(w, body, code) }
}
