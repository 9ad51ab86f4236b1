package consul

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
)

// keptFixture returns a client behind a proxy, a network that is not defined yet, and reservations for it that take two
// transactions.
func keptFixture(t *testing.T) (*faulty, *store, *Client, registry.Network, []registry.Reservation) {
	t.Helper()
	proxy := newFaulty(t, common.get(t))
	s := newStore(t)
	c := common.get(t).client(t, s.prefix, func(conf *Config) { conf.Address, conf.Timeout = proxy.addr(), time.Minute })
	n := network("new", "10.5.0.0/16")
	var kept []registry.Reservation
	for slot := uint64(1); slot <= txnWrites+20; slot++ {
		kept = append(kept, registry.Reservation{Subnet: n.Plan.Subnets(slot)[0], Node: fmt.Sprintf("x-%d", slot)})
	}
	return proxy, s, c, n, kept
}

func transactions(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/txn") }

func definitions(r *http.Request) bool {
	return r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/networks/new")
}

// TestKeptInterrupted: when a network is not created, only records that existed before stay, wherever the call fails.
func TestKeptInterrupted(t *testing.T) {
	t.Parallel()
	const before = 2
	for _, tt := range []struct {
		name   string
		wanted func(*http.Request) bool
		nth    int // which of them meets the fault
		fault  fault
		want   error
		stay   bool // all of them stay
	}{
		{name: "the caller goes before the first write", wanted: transactions, nth: 1, want: context.Canceled},
		{name: "the caller goes in the middle", wanted: transactions, nth: 2, want: context.Canceled},
		{name: "the caller goes behind the last write", wanted: transactions, nth: 2, fault: after(noAnswer), want: context.Canceled},
		{name: "a write fails", wanted: transactions, nth: 2, fault: answer(500, "No cluster leader"), want: registry.ErrUnavailable},
		{name: "a write without an answer", wanted: transactions, nth: 2, fault: after(answer(500, "rpc error")), want: registry.ErrUnavailable},
		{name: "no right to define it", wanted: definitions, nth: 1, fault: answer(403, "Permission denied"), want: registry.ErrDenied},
		// The network may have been defined nevertheless, and must not lack its reservations.
		{name: "no answer to the definition", wanted: definitions, nth: 1, fault: answer(500, "rpc error"), want: registry.ErrUnavailable, stay: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			proxy, s, c, n, kept := keptFixture(t)
			for _, r := range kept[:before] {
				if err := s.open(t).AddReservation(testContext(t), n, r, false); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithCancel(testContext(t))
			defer cancel()
			met := 0
			proxy.harm(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
				met++
				switch {
				case met != tt.nth:
					pass.ServeHTTP(w, r)
				case errors.Is(tt.want, context.Canceled):
					if tt.fault == nil {
						cancel()
						noAnswer(w, r, pass)
						return
					}
					after(func(w http.ResponseWriter, r *http.Request, pass http.Handler) { cancel(); noAnswer(w, r, pass) })(w, r, pass)
				default:
					tt.fault(w, r, pass)
				}
			}, tt.wanted)
			wantIs(t, c.PutNetwork(ctx, n, kept...), tt.want)
			want := before
			if tt.stay {
				want = len(kept)
			}
			set, _, err := s.open(t).WatchReservations(testContext(t), n, 0)
			if err != nil || len(set.Reservations) != want {
				t.Errorf("%d reservations, %v, want %d", len(set.Reservations), err, want)
			}
			proxy.harm(nil, nil)
			if err := c.PutNetwork(testContext(t), n, kept...); err != nil {
				t.Errorf("again: %v", err)
			}
		})
	}
}

// TestKeptRivals: another caller that reserves another slot for one of the hosts at the same time wins if its record is
// older, and loses otherwise. The same applies to a host that takes a slot.
func TestKeptRivals(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		of    int // index of the reservation whose host has a rival: keys are written in alphabetical order
		lease bool
		want  error
	}{
		{name: "written before", of: 98, want: registry.ErrReserved},
		{name: "written behind", of: 0},
		{name: "held since", of: 98, lease: true, want: registry.ErrHeld},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			proxy, s, c, n, kept := keptFixture(t)
			r := kept[tt.of]
			value, err := registry.FormatReservation(registry.Reservation{Subnet: n.Plan.Subnets(200)[0], Node: r.Node})
			if err != nil {
				t.Fatal(err)
			}
			met := 0
			proxy.harm(func(w http.ResponseWriter, req *http.Request, pass http.Handler) {
				if met++; met == 2 { // between the two writes
					if tt.lease {
						other := claim(1)
						other.Prefer, other.Running = r.Subnet, true
						if l, err := s.open(t).Acquire(testContext(t), n, other); err != nil || l.Subnet() != r.Subnet {
							t.Errorf("lease %v, %v, want %s", l.Subnets, err, r.Subnet)
						}
					} else {
						s.Put(t, c.kv.keys.Reservation(n.Name, n.Plan.Subnets(200)[0]), value)
					}
				}
				pass.ServeHTTP(w, req)
			}, transactions)
			err = c.PutNetwork(testContext(t), n, kept...)
			if !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			want := len(kept) + 1
			if tt.want != nil {
				want = 1
			}
			if tt.lease {
				want--
			}
			if keys := s.Keys(t, c.kv.keys.Reservations(n.Name)); len(keys) != want {
				t.Errorf("%d records, want %d", len(keys), want)
			}
		})
	}
}

// TestKeptMany counts the requests for a large network.
func TestKeptMany(t *testing.T) {
	t.Parallel()
	proxy, s, c, n, _ := keptFixture(t)
	n = network("new", "10.0.0.0/8")
	var kept []registry.Reservation
	for slot := uint64(1); slot <= 2000; slot++ {
		kept = append(kept, registry.Reservation{Subnet: n.Plan.Subnets(slot)[0], Node: fmt.Sprintf("x-%d", slot)})
	}
	if err := c.PutNetwork(testContext(t), n, kept...); err != nil {
		t.Fatal(err)
	}
	if requests, _ := proxy.count(); requests > 40 {
		t.Errorf("%d requests for %d reservations", requests, len(kept))
	}
	set, _, err := s.open(t).WatchReservations(testContext(t), n, 0)
	if err != nil || len(set.Reservations) != len(kept) {
		t.Errorf("%d reservations, %v", len(set.Reservations), err)
	}
}
