package agent

import (
	"net/http"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestBadRecordsAreNamed: records that cannot be used, of networks and of leases, are named in health and in the lists of
// the API, until they are repaired or deleted. They disturb nothing else.
func TestBadRecordsAreNamed(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		other := memory.Prefix + "/networks/other"
		store.Put(other, []byte(`{"version":2}`))
		a, b := newHost(t, store, "a").start(), newHost(t, store, "b").start()
		a.ready()
		b.ready()
		want := a.subnet().String() + " <- b@" + b.subnet().String()
		a.applies(want)
		a.check(health.Records, api.Warning, "1 record skipped (see `leno network list`)", other, "version 2 is a newer leno's")
		if code, _ := a.health(); code != http.StatusTooManyRequests {
			t.Errorf("healthz %d", code)
		}
		if list, err := a.client.Networks(t.Context()); err != nil || len(list.Networks) != 1 || len(list.Skipped) != 1 || list.Skipped[0].Key != other {
			t.Errorf("%+v, %v", list, err)
		}
		must(t, a.client.DeleteNetwork(t.Context(), "other", true))
		a.check(health.Records, api.Passing, "every record is usable")

		nonsense := memory.Prefix + "/leases/n/nonsense"
		store.Put(nonsense, []byte("{"))
		a.check(health.Records, api.Warning, "1 record skipped", nonsense)
		a.applies(want)
		if list, err := a.client.Leases(t.Context(), "n"); err != nil || len(list.Leases) != 2 || len(list.Skipped) != 1 || list.Skipped[0].Key != nonsense {
			t.Errorf("%+v, %v", list, err)
		}
		store.Delete(nonsense)
		a.check(health.Records, api.Passing)

		reservation := memory.Prefix + "/reservations/n/" + registry.SubnetKey(free(a, b))
		store.Put(reservation, []byte(`{"version":1,"subnet":"`+free(a, b).String()+`"}`))
		a.check(health.Records, api.Warning, "1 record skipped (see `leno reservation list`)", reservation)
		if list, err := a.client.Reservations(t.Context(), "n"); err != nil || len(list.Skipped) != 1 || list.Skipped[0].Key != reservation {
			t.Errorf("%+v, %v", list, err)
		}
		store.Delete(reservation)
		a.check(health.Records, api.Passing)

		definition := memory.Prefix + "/networks/n"
		good, _, _ := store.Get(definition)
		store.Put(definition, []byte(`{"version":2}`))
		a.check(health.Network, api.Warning, "the one before stays in force: ", "version 2 is a newer leno's")
		a.applies(want)
		if list, err := a.client.Networks(t.Context()); err != nil || len(list.Skipped) != 1 || list.Skipped[0].Key != definition {
			t.Errorf("%+v, %v", list, err)
		}
		store.Put(definition, good)
		a.check(health.Network, api.Passing)

		store.Put(leaseKey(free(a, b)), []byte("{"))
		a.check(health.Records, api.Warning, leaseKey(free(a, b)))
		code, body := a.request("GET", "/v1/network/n/lease/"+registry.SubnetKey(free(a, b)), "")
		if code != http.StatusConflict || !strings.Contains(body, "cannot be used: invalid: unexpected end of JSON input") {
			t.Errorf("%d %s", code, body)
		}
	})
}
