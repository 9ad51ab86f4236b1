package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// boardUnderTest returns a board, its log, the status and reason it reported last, and its clock.
func boardUnderTest() (b *recordBoard, log *bytes.Buffer, said *[2]string, now *time.Time) {
	log, said, now = &bytes.Buffer{}, new([2]string), new(time.Time)
	*now = time.Unix(1_000_000, 0)
	b = newRecordBoard(hclog.New(&hclog.LoggerOptions{Output: log}), func(status, reason string) { *said = [2]string{status, reason} })
	b.now = func() time.Time { return *now }
	return b, log, said, now
}

func TestRecordBoard(t *testing.T) {
	b, log, said, _ := boardUnderTest()
	lease := registry.BadRecord{Key: "leno/leases/n/x", Reason: "invalid: nonsense"}
	steering := registry.BadRecord{Key: "leno/leases/n/\x1b[2J\u202e\n", Reason: "invalid: more"}
	reservation := registry.BadRecord{Key: "leno/reservations/n/y", Reason: "invalid: else"}
	for _, step := range []struct {
		list           string
		bad            []registry.BadRecord
		status, reason string
		logged         int // lines logged in this step
	}{
		{"lease list", nil, api.Passing, "every record is usable", 0},
		{"lease list", []registry.BadRecord{lease}, api.Warning, "1 record skipped (see `leno lease list`), the first leno/leases/n/x: invalid: nonsense", 1},
		{"lease list", []registry.BadRecord{lease}, api.Warning, "1 record skipped (see `leno lease list`), the first leno/leases/n/x: invalid: nonsense", 0},
		{"reservation list", []registry.BadRecord{reservation}, api.Warning, "2 records skipped (see `leno lease list` and `leno reservation list`), the first leno/leases/n/x: invalid: nonsense", 1},
		{"lease list", nil, api.Warning, "1 record skipped (see `leno reservation list`), the first leno/reservations/n/y: invalid: else", 0},
		{"lease list", []registry.BadRecord{steering}, api.Warning, "2 records skipped (see `leno lease list` and `leno reservation list`), the first \"leno/leases/n/\\x1b[2J\\u202e\\n\": invalid: more", 1},
		{"lease list", []registry.BadRecord{lease}, api.Warning, "2 records skipped (see `leno lease list` and `leno reservation list`), the first leno/leases/n/x: invalid: nonsense", 1},
		{"lease list", nil, api.Warning, "1 record skipped (see `leno reservation list`), the first leno/reservations/n/y: invalid: else", 0},
		{"reservation list", nil, api.Passing, "every record is usable", 0},
	} {
		log.Reset()
		b.set(step.list, step.bad)
		if want := [2]string{step.status, step.reason}; *said != want {
			t.Errorf("%s %v: says %q, want %q", step.list, step.bad, *said, want)
		}
		if got := strings.Count(log.String(), "\n"); got != step.logged || strings.ContainsAny(log.String(), "\x1b\u202e") {
			t.Errorf("%s %v: logged %q, want %d lines", step.list, step.bad, log, step.logged)
		}
	}
}

// TestRecordBoardIsBounded: logs and reasons stay short, however many records are bad and however large they are.
func TestRecordBoardIsBounded(t *testing.T) {
	b, log, said, now := boardUnderTest()
	many := func(what string) []registry.BadRecord {
		var bad []registry.BadRecord
		for i := range 10_000 {
			key := fmt.Sprintf("leno/leases/n/%s-%d", what, i)
			if i < 3 {
				key += strings.Repeat("k", 100_000)
			}
			bad = append(bad, registry.BadRecord{Key: key, Reason: strings.Repeat("r", 5000)})
		}
		return bad
	}
	for _, step := range []struct {
		what   string
		passes time.Duration
		lines  int
	}{
		{"a", 0, maxLogged + 1},
		{"a", 0, 0},
		{"b", time.Second, 1}, // the number alone: names are not logged within the same minute
		{"c", time.Second, 1},
		{"d", time.Second, 1},
		{"e", time.Second, 1},
		{"f", time.Second, 0}, // the number is not logged for ever, either
		{"f", time.Minute, 0},
		{"g", 0, maxLogged + 1},
	} {
		*now = now.Add(step.passes)
		log.Reset()
		b.set("lease list", many(step.what))
		if got := strings.Count(log.String(), "\n"); got != step.lines || log.Len() > step.lines*(registry.MaxShownKey+registry.MaxShownReason+200) {
			t.Errorf("%+v: logged %d lines, %d bytes", step, got, log.Len())
		}
		if step.lines > 0 && !strings.Contains(log.String(), "total=10000") {
			t.Errorf("%+v: does not say how many", step)
		}
		if len(said[1]) > registry.MaxShownKey+registry.MaxShownReason+200 || !strings.HasPrefix(said[1], "10000 records skipped") {
			t.Errorf("says %d bytes: %.200s", len(said[1]), said[1])
		}
	}
}

func TestKeepKnown(t *testing.T) {
	b, c := testLease("b", 2, "s", 1), testLease("c", 3, "s", 2)
	key := func(network, name string) string { return "x/leno/leases/" + network + "/" + name }
	second := registry.SubnetKey(b.Subnet())
	for _, tt := range []struct {
		name   string
		leases []registry.Lease
		bad    string
		want   string
	}{
		{"nothing bad", []registry.Lease{c}, "", "3"},
		{"its record", []registry.Lease{c}, key("n", second), "2 3"},
		{"a record that was never good", []registry.Lease{c}, key("n", "10.5.9.0-24"), "3"},
		{"another network's", []registry.Lease{c}, key("m", second), "3"},
		{"below its record", []registry.Lease{c}, key("n", second+"/x"), "3"},
		{"deeper down", []registry.Lease{c}, key("n", "x/"+second), "3"},
		{"no folder at all", []registry.Lease{c}, second, "3"},
	} {
		set := registry.LeaseSet{Leases: tt.leases, SetBack: 7}
		if tt.bad != "" {
			set.Bad = []registry.BadRecord{{Key: tt.bad, Reason: "nonsense"}}
		}
		got := keepKnown("n", set, []registry.Lease{b, c})
		if s := strings.Trim(fmt.Sprint(slotsOf(got.Leases)), "[]"); s != tt.want {
			t.Errorf("%s: slots %s, want %s", tt.name, s, tt.want)
		}
		if got.SetBack != 7 {
			t.Errorf("%s: set back %d times, 7 before", tt.name, got.SetBack)
		}
		kept := len(got.Leases) > len(tt.leases)
		if len(got.Bad) > 0 && strings.HasSuffix(got.Bad[0].Reason, "stays in use") != kept {
			t.Errorf("%s: %q", tt.name, got.Bad[0].Reason)
		}
		if len(set.Bad) > 0 && set.Bad[0].Reason != "nonsense" {
			t.Errorf("%s: the store's answer was changed", tt.name)
		}
	}
}

func slotsOf(leases []registry.Lease) (out []uint64) {
	for _, l := range leases {
		out = append(out, l.Slot)
	}
	return out
}

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
		list, _, _ := a.agent.env.events.After(0, "n")
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
			snap, _, _ := mustRunner(t, a).snapshot.Get()
			for _, l := range snap.set.Leases {
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
