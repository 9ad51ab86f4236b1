package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry/memory"
)

func messages(list []api.Event) (out []string) {
	for _, v := range list {
		out = append(out, v.Message)
	}
	return out
}

// TestEventsOfAHost follows the events of a host through the API.
func TestEventsOfAHost(t *testing.T) {
	simulated(t, func(t *testing.T) {
		ctx, store := context.Background(), memory.New()
		a := newHost(t, store, "a").slow()
		a.refresh = func() (config.Config, error) { return config.Config{}, errors.New("line 3 makes no sense") }
		a.start()
		a.ready()
		var index uint64
		// expect waits for an event with all words, after those that were expected before.
		expect := func(network, kind, severity string, words ...string) {
			t.Helper()
			eventually(t, func() error {
				list, err := a.client.Events(ctx, network)
				if err != nil {
					return err
				}
				for _, v := range list.Events {
					missing := func(w string) bool { return !strings.Contains(v.Message, w) }
					if v.Index > index && v.Network == network && v.Kind == kind && v.Severity == severity && !slices.ContainsFunc(words, missing) {
						index = v.Index
						return nil
					}
				}
				return fmt.Errorf("no event %s %s %q after %d in %+v", kind, severity, words, index, list.Events)
			})
		}
		subnet := a.subnet()
		expect("n", api.EventNetwork, api.Info, "taking part")
		expect("n", api.EventLease, api.Info, subnet.String())
		expect("n", api.EventPeer, api.Info, "0 other hosts")
		if list, err := a.client.Events(ctx, ""); err != nil || list.Events[0].Kind != api.EventAgent || list.Index < index {
			t.Errorf("%+v, %v", list, err)
		}
		_, err := a.client.Events(ctx, "nobodys")
		agenttest.WantCode(t, "events of an unknown network", err, http.StatusNotFound, "nobodys", "n")
		b := newHost(t, store, "b").start()
		expect("n", api.EventPeer, api.Info, "b appeared with "+b.subnet().String())
		must(t, b.stop())
		lease, _ := mustRunner(t, b).Lease()
		store.EndSession(lease.Session)
		expect("n", api.EventPeer, api.Warning, "the lease of b on "+lease.Subnet().String()+" lapsed")
		must(t, store.Client().Revoke(ctx, "n", lease.Subnet()))
		expect("n", api.EventPeer, api.Info, "b left")

		lease, _ = mustRunner(t, a).Lease()
		store.EndSession(lease.Session)
		expect("n", api.EventLease, api.Warning, subnet.String(), "was lost")
		expect("n", api.EventLease, api.Info, subnet.String(), "again")
		must(t, store.Client().Revoke(ctx, "n", subnet))
		expect("n", api.EventLease, api.Critical, subnet.String(), "revoked")
		expect("n", api.EventLease, api.Critical, "before "+subnet.String(), "restarted")

		a.recorder.setReport(backend.Report{Writes: 1, Healed: []backend.Repair{{Fault: "device was deleted"}}})
		a.kick()
		expect("n", api.EventDrift, api.Warning, "device was deleted")
		a.recorder.setReport(backend.Report{})
		if errOf(a.client.Reload(ctx, false)) == nil {
			t.Error("reload was not refused")
		}
		c := a.config
		c.Log.Level = "WARN"
		index = 0
		must(t, a.agent.Reload(ctx, c))
		eventually(t, func() error {
			list, err := a.client.Events(ctx, "")
			if err != nil {
				return err
			}
			own := slices.DeleteFunc(list.Events, func(v api.Event) bool { return v.Kind != api.EventReload })
			if got := messages(own); !slices.Equal(got, []string{"reload refused: line 3 makes no sense", "configuration reloaded"}) {
				return fmt.Errorf("got %q", got)
			}
			return nil
		})
		must(t, a.client.ReleaseLease(ctx, "n"))
		expect("n", api.EventLease, api.Warning, "released")
	})
}
