package consul

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	claims "github.com/lenonet/leno/registry/claim"
	"github.com/lenonet/leno/registry/consul/keys"
)

// meter counts what clients ask of a server, and how many bytes they receive.
type meter struct {
	mu    sync.Mutex
	bytes int
	seen  []string // such as "GET /v1/kv/leno/leases/default/?recurse="
}

// take returns what was counted since the last call.
func (r *meter) take() (bytes int, seen []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	bytes, seen, r.bytes, r.seen = r.bytes, r.seen, 0, nil
	return bytes, seen
}

// count returns a client whose requests are counted.
func (r *meter) count(t *testing.T, s *store) *Client {
	addr := proxy(t, s.server, func(w http.ResponseWriter, req *http.Request, pass http.Handler) {
		r.mu.Lock()
		r.seen = append(r.seen, req.Method+" "+req.URL.RequestURI())
		r.mu.Unlock()
		pass.ServeHTTP(countingWriter{w, r}, req)
	})
	return s.open(t, func(c *Config) { c.Address = addr })
}

type countingWriter struct {
	http.ResponseWriter
	*meter
}

func (w countingWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	w.bytes += len(b)
	w.mu.Unlock()
	return w.ResponseWriter.Write(b)
}

// fill writes the records of hosts that are away.
func fill(t *testing.T, s *store, n registry.Network, hosts int) {
	t.Helper()
	ls := s.open(t).leaseStore
	var ops []*api.KVTxnOp
	for i := range hosts {
		c := claim(i)
		c.Node, c.NodeID = fmt.Sprintf("away-%d", i), fmt.Sprintf("id-away-%d", i)
		lease, value, err := claims.Record(n, c, uint64(i+1000))
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, &api.KVTxnOp{Verb: api.KVSet, Key: ls.kv.keys.Lease(n.Name, lease.Subnet()), Value: value})
	}
	for part := range slices.Chunk(ops, txnWrites/2) {
		if _, err := ls.kv.Transact(testContext(t), part...); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCostStart: a host that starts costs Consul the same in a small and in a large network. With a lease, it reads its
// own record; with knowledge of the network, only what has changed since. Without, it lists the leases once, and neither
// consistently nor the sessions.
func TestCostStart(t *testing.T) {
	t.Parallel()
	cost := func(hosts int) (restart, claimed int) {
		s := newStore(t)
		n := putNetwork(t, s, "default", "10.0.0.0/8")
		fill(t, s, n, hosts)
		acquire(t, s.open(t), n, 0)
		mine := claim(1)
		l := acquire(t, s.open(t), n, 1)
		mine.Session, mine.Prefer = l.Session, l.Subnet()
		var r meter

		again, err := r.count(t, s).Acquire(testContext(t), n, mine)
		if err != nil || again.Subnet() != l.Subnet() || again.Session != l.Session || again.ModifyIndex != l.ModifyIndex {
			t.Fatalf("had %+v, has %+v, %v", l, again, err)
		}
		restart, seen := r.take()
		if len(seen) > 2 {
			t.Errorf("a host with a lease: %q", seen)
		}

		fresh := r.count(t, s)
		acquire(t, fresh, n, 2)
		_, seen = r.take()
		lists := 0
		for _, request := range seen {
			if strings.Contains(request, "/leases/default/?") {
				lists++
			}
			if strings.Contains(request, "session/list") || lists > 0 && strings.Contains(request, "leases/default/?consistent") {
				t.Errorf("a host without knowledge: %q", request)
			}
		}
		if lists != 1 {
			t.Errorf("a host without knowledge: %d lists of %q", lists, seen)
		}

		next := claim(3)
		next.Prefer = n.Plan.Subnets(40)[0]
		if _, err := fresh.Acquire(testContext(t), n, next); err != nil {
			t.Fatal(err)
		}
		claimed, _ = r.take()
		return restart, claimed
	}
	restart, claimed := cost(10)
	restartLarge, claimedLarge := cost(2000)
	if restartLarge > restart*3/2 || claimedLarge > claimed*3/2 {
		t.Errorf("with 10 leases %d and %d bytes, with 2000 %d and %d", restart, claimed, restartLarge, claimedLarge)
	}
}

// TestOldView: what a client knows may be old when it claims, and it still takes no slot that another host has, that is
// reserved, or that its own lease was revoked from, and finds its own lapsed record.
func TestOldView(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	c, other := s.open(t), s.open(t)
	own := acquire(t, c, n, 0)
	mine := claim(0)
	mine.Session, mine.Prefer, mine.Since = own.Session, own.Subnet(), own.ModifyIndex

	s.EndSession(t, own.Session) // the directory of changes does not tell
	back, err := c.Acquire(testContext(t), n, mine)
	if err != nil || back.Subnet() != own.Subnet() || back.Session == own.Session {
		t.Fatalf("had %+v, has %+v, %v", own, back, err)
	}
	mine.Session, mine.Since = back.Session, back.ModifyIndex
	if err := other.Revoke(testContext(t), n.Name, back.Subnet()); err != nil {
		t.Fatal(err)
	}
	mine.Avoid = back.Subnet()
	moved, err := c.Acquire(testContext(t), n, mine)
	if err != nil || moved.Subnet() == back.Subnet() {
		t.Fatalf("had %+v, has %+v, %v", back, moved, err)
	}

	// Neither of these writes is in the directory of changes.
	free := slices.DeleteFunc([]uint64{50, 51, 52}, func(slot uint64) bool { return slot == moved.Slot })
	taken, reserved := n.Plan.Subnets(free[0])[0], n.Plan.Subnets(free[1])[0]
	fillSlot(t, s, n, free[0])
	r := registry.Reservation{Network: n.Name, Subnet: reserved, Node: "other"}
	if err := other.AddReservation(testContext(t), n, r, false); err != nil {
		t.Fatal(err)
	}
	for i, wanted := range []netip.Prefix{taken, reserved} {
		next := claim(10 + i)
		next.Prefer = wanted
		if l, err := c.Acquire(testContext(t), n, next); err != nil || l.Subnet() == wanted {
			t.Errorf("%+v, %v", l, err)
		}
	}
	full := putNetwork(t, s, "full", "10.6.0.0/22") // three slots
	for i := range 3 {
		l := acquire(t, c, full, i)
		defer func() { _ = other.Release(testContext(t), l) }()
	}
	set, _, err := other.WatchLeases(testContext(t), full, 0)
	if err != nil || len(set.Leases) != 3 {
		t.Fatal(set, err)
	}
	s.Delete(t, s.prefix+"/leases/full/"+registry.SubnetKey(set.Leases[1].Subnet())) // c does not know
	if l := acquire(t, c, full, 5); l.Slot != set.Leases[1].Slot {
		t.Errorf("%+v", l)
	}
}

// TestLongList: a list of leases may begin later and take longer than other answers, as long as it makes progress, and ends
// soon if it makes none.
func TestLongList(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := putNetwork(t, s, "default", "10.0.0.0/8")
	fill(t, s, n, 500)
	const timeout = 1500 * time.Millisecond
	stalls := false
	var once sync.Once
	var answer *httptest.ResponseRecorder // the server may be busy with other tests
	addr := proxy(t, s.server, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if !strings.Contains(r.URL.RequestURI(), "/leases/default/?") {
			pass.ServeHTTP(w, r)
			return
		}
		once.Do(func() {
			answer = httptest.NewRecorder()
			pass.ServeHTTP(answer, r.WithContext(t.Context()))
		})
		maps.Copy(w.Header(), answer.Header())
		time.Sleep(2 * timeout)
		body := answer.Body.Bytes()
		for part := range slices.Chunk(body, len(body)/8+1) {
			_, _ = w.Write(part)
			_ = http.NewResponseController(w).Flush()
			if stalls {
				<-r.Context().Done()
				return
			}
			time.Sleep(timeout / 4) // in all, twice the limit
		}
	})
	c := s.open(t, func(c *Config) { c.Address, c.Timeout = addr, timeout })
	set, _, err := c.WatchLeases(testContext(t), n, 0)
	for deadline := time.Now().Add(2 * time.Minute); errors.Is(err, registry.ErrUnavailable) && time.Now().Before(deadline); {
		set, _, err = c.WatchLeases(testContext(t), n, 0) // a busy machine is late with other answers
	}
	if err != nil || len(set.Leases) != 500 {
		t.Fatalf("%d leases, %v", len(set.Leases), err)
	}
	stalls = true
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, _, err := c.WatchLeases(ctx, n, 0); !errors.Is(err, registry.ErrUnavailable) || ctx.Err() != nil {
		t.Error(err)
	}
}

// fillSlot writes the record of a host that is away on a slot.
func fillSlot(t *testing.T, s *store, n registry.Network, slot uint64) {
	t.Helper()
	lease, value, err := claims.Record(n, claim(200), slot)
	if err != nil {
		t.Fatal(err)
	}
	s.Put(t, s.open(t).kv.keys.Lease(n.Name, lease.Subnet()), value)
}

// TestSettled: the sessions are not listed again once a claim has seen that none is older than the marker without a
// lease. A token that may not see all sessions does not decide that.
func TestSettled(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	flags := func() uint64 {
		pair, _, err := s.admin.KV().Get(s.prefix+"/leases/default/"+keys.Marker, nil)
		if err != nil || pair == nil {
			t.Fatal(pair, err)
		}
		if copied := (api.KVPair{CreateIndex: pair.CreateIndex + 1, Flags: pair.Flags}); pair.Flags != 0 && (!isSettled(pair) || isSettled(&copied)) {
			t.Errorf("%+v", pair)
		}
		return pair.Flags
	}
	acquire(t, s.open(t), n, 0)
	if got := flags(); got == 0 {
		t.Errorf("after a claim: %d", got)
	}

	self, err := s.admin.Agent().NodeName()
	if err != nil {
		t.Fatal(err)
	}
	away := "away" + strings.ReplaceAll(s.prefix, "/", "-")
	if _, err := s.admin.Catalog().Register(&api.CatalogRegistration{Node: away, Address: "192.0.2.200"}, nil); err != nil {
		t.Fatal(err)
	}
	lost := &api.SessionEntry{Name: s.prefix + "/default/host-9", Node: away, TTL: "10m"}
	if _, _, err := s.admin.Session().CreateNoChecks(lost, nil); err != nil {
		t.Fatal(err)
	}
	for _, id := range s.sessions(t, n.Name) {
		if entry, _, err := s.admin.Session().Info(id, nil); err == nil && entry.Node == self {
			s.EndSession(t, id)
		}
	}
	s.empty(t)
	n = putNetwork(t, s, "default", "10.5.0.0/16")
	secret, _ := s.newToken(t, fmt.Sprintf(`key_prefix "%s/" { policy = "write" }
		session %q { policy = "write" }`, s.prefix, self))
	acquire(t, s.open(t, func(c *Config) { c.Token = secret }), n, 1)
	if got := flags(); got != 0 {
		t.Errorf("without the right to see all sessions: %d", got)
	}
	wantIs(t, errOf2(s.open(t).Acquire(testContext(t), n, claim(2))), registry.ErrLeasesLost)
}
