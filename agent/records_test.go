package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/memory"
)

// TestPeersRecordOverwritten: a peer whose agent is down cannot repair its record, but its kernel goes on carrying
// packets, so it stays a peer.
func TestPeersRecordOverwritten(t *testing.T) {
	store := memory.New()
	a, b := newHost(t, store, "a").start(), newHost(t, store, "b").start()
	a.ready()
	b.ready()
	subnet := b.subnet()
	want := a.subnet().String() + " <- b@" + subnet.String()
	a.applies(want)
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	for i, value := range []string{`oops`, `{"version":2,"later":true}`, ``} {
		store.Put(leaseKey(subnet), []byte(value))
		a.check(health.Records, api.Warning, "1 record skipped", leaseKey(subnet), []string{"invalid character", "a newer leno's", "empty"}[i], "stays in use")
		a.applies(want)
		list, err := a.client.Leases(context.Background(), "n")
		if err != nil || len(list.Leases) != 2 || len(list.Skipped) != 1 {
			t.Errorf("%+v, %v", list, err)
		}
	}
	b.start().ready()
	a.check(health.Records, api.Passing)
	a.applies(want)
	if now := b.subnet(); now != subnet {
		t.Errorf("came back on %s, was on %s", now, subnet)
	}

	// A peer whose record is deleted is removed.
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	store.Put(leaseKey(subnet), []byte(`oops`))
	a.check(health.Records, api.Warning)
	store.Delete(leaseKey(subnet))
	a.check(health.Records, api.Passing)
	a.applies(a.subnet().String() + " <- ")
}

func TestBadNetworkIsNamed(t *testing.T) {
	store := memory.New()
	key := memory.Prefix + "/networks/other"
	store.Put(key, []byte(`{"version":2}`))
	a := newHost(t, store, "a").start()
	a.ready()
	a.check(health.Records, api.Warning, "1 record skipped (see `leno network list`)", key, "version 2 is a newer leno's")
	if code, _ := a.request("GET", "/healthz", ""); code != http.StatusTooManyRequests {
		t.Errorf("healthz %d", code)
	}
	list, err := a.client.Networks(context.Background())
	if err != nil || len(list.Networks) != 1 || len(list.Skipped) != 1 || list.Skipped[0].Key != key {
		t.Errorf("%+v, %v", list, err)
	}
	for _, path := range []string{"", "/leases", "/reservations", "/peers"} {
		code, body := a.request("GET", "/v1/network/other"+path, "")
		if code != http.StatusConflict || !strings.Contains(body, "its record in the store cannot be used: invalid: version 2") {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if code, body := a.request("DELETE", "/v1/network/other", ""); code != http.StatusConflict {
		t.Errorf("%d %s", code, body)
	}
	if code, body := a.request("DELETE", "/v1/network/other?force=true", ""); code != http.StatusOK {
		t.Errorf("%d %s", code, body)
	}
	a.check(health.Records, api.Passing, "every record is usable")
	if code, _ := a.request("GET", "/v1/network/other", ""); code != http.StatusNotFound {
		t.Errorf("after it was deleted: %d", code)
	}
}

// TestOwnNetworkOverwritten: a network goes on as it is when its definition is overwritten with nonsense.
func TestOwnNetworkOverwritten(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a").start()
	a.ready()
	want := a.subnet().String() + " <- "
	a.applies(want)
	key := memory.Prefix + "/networks/n"
	good, _, _ := store.Get(key)
	store.Put(key, []byte(`{"version":2}`))
	a.check(health.Network, api.Warning, "the definition in the store cannot be used, the one before stays in force: invalid: version 2")
	a.check(health.Records, api.Warning, key)
	a.applies(want)
	if list, err := a.client.Networks(context.Background()); err != nil || len(list.Networks) != 1 || list.Networks[0].Local == nil || len(list.Skipped) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := a.client.Leases(context.Background(), "n"); err != nil || len(list.Leases) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	for path, method := range map[string]string{"": "PUT", "/plan": "POST"} {
		code, body := a.request(method, "/v1/network/n"+path, `{"pools":[{"prefix":"10.5.0.0/22"}],"backend":{"type":"recorder"}}`)
		if code != http.StatusConflict || !strings.Contains(body, "cannot be used") || !strings.Contains(body, "consul kv put") {
			t.Errorf("%q: %d %s", path, code, body)
		}
	}
	store.Put(key, good)
	a.check(health.Network, api.Passing, "defined")
	a.check(health.Records, api.Passing)
	a.applies(want)
}

func TestBadReservationIsNamed(t *testing.T) {
	store := memory.New()
	key := memory.Prefix + "/reservations/n/10.5.1.0-24"
	store.Put(key, []byte(`{"version":1,"subnet":"10.5.1.0/24"}`))
	a := newHost(t, store, "a").start()
	a.ready()
	a.check(health.Records, api.Warning, "1 record skipped (see `leno reservation list`)", key, "names either a node or a node_id")
	store.Put(leaseKey(free(a)), []byte(`{`))
	a.check(health.Records, api.Warning, "2 records skipped (see `leno lease list` and `leno reservation list`)")
	store.Delete(leaseKey(free(a)))
	store.Delete(key)
	// A request for the list need not wait for health.
	if list, err := a.client.Reservations(context.Background(), "n"); err != nil || len(list.Skipped) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	a.check(health.Records, api.Passing)
}

// TestSetBackOnceBesideABadRecord: a store that was set back once is reported once, even while one of its records
// cannot be used.
func TestSetBackOnceBesideABadRecord(t *testing.T) {
	t.Parallel()
	store := memory.New()
	a := newHost(t, store, "a").start()
	a.ready()
	b := newHost(t, store, "b").start()
	b.ready()
	older := store.Backup()
	b.follows("192.0.2.209")
	store.Put(leaseKey(free(a, b)), []byte("{"))
	a.check(health.Records, api.Warning)
	store.Restore(older)
	store.Put(leaseKey(free(a, b)), []byte("{"))
	told := func() (n int) {
		list, _, _ := a.agent.env.Reports.Events.After(0, "n")
		for _, e := range list {
			if e.Kind == api.EventStore {
				n++
			}
		}
		return n
	}
	eventually(t, func() error {
		if n := told(); n == 0 {
			return errors.New("not reported yet")
		}
		return nil
	})
	a.check(health.Records, api.Warning)
	before := told()
	for i := range 3 {
		b.follows(fmt.Sprintf("192.0.2.%d", 210+i))
		a.applies(fmt.Sprintf("%s <- b@%s", a.subnet(), b.subnet()))
		eventually(t, func() error {
			snap, _ := mustRunner(t, a).Leases().Snapshot()
			for _, l := range snap.Set.Leases {
				if l.Node == "b" && l.PublicIPs[0].As4()[3] == byte(210+i) {
					return nil
				}
			}
			return errors.New("not seen yet")
		})
	}
	if n := told(); n != before {
		t.Errorf("reported %d times, %d before", n, before)
	}
}
