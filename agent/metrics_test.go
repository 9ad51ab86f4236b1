package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/network/lease"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// metered is a backend that has counters of all its traffic.
type metered struct {
	backend.Backend
	totals *atomic.Pointer[backend.Counters]
}

func (m metered) Abilities() backend.Abilities {
	return backend.Abilities{Totals: func() (backend.Counters, error) { return *m.totals.Load(), nil }}
}

// metered returns a kind of backend whose totals a test sets.
func (r *recorder) metered(name string) backend.Type {
	kind := r.kind(name)
	made := kind.New
	kind.Drops = []string{"rx_dropped", "tx_errors"}
	kind.New = func(c backend.Config) (backend.Backend, error) {
		b, err := made(c)
		return metered{b, &r.totals}, err
	}
	return kind
}

// refusing is a catalogue that refuses registrations on demand.
type refusing struct {
	*serviceStore
	refuse atomic.Bool
}

func (r *refusing) Abilities() registry.Abilities {
	can := r.serviceStore.Abilities()
	can.Catalog = r
	return can
}

func (r *refusing) Announce(ctx context.Context, s registry.Service, v registry.Verdict) error {
	if r.refuse.Load() {
		return registry.ErrDenied
	}
	return r.serviceStore.Announce(ctx, s, v)
}

// exposed returns the metrics of a host in the Prometheus format.
func (h *host) exposed() map[string]*dto.MetricFamily {
	h.t.Helper()
	code, body := h.request("GET", "/v1/agent/metrics?format=prometheus", "")
	if code != http.StatusOK {
		h.t.Fatalf("%d: %s", code, body)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		h.t.Fatalf("%v\n%s", err, body)
	}
	return families
}

// metric returns the value of a series, or the number of measurements of a timer. labels are the values of the labels
// in the order of the table. ok reports whether the series exists.
func (h *host) metric(name string, labels ...string) (value float64, ok bool) {
	h.t.Helper()
	i := slices.IndexFunc(telemetry.Table(), func(m telemetry.Metric) bool { return m.Name == name })
	m := telemetry.Table()[i]
	for _, series := range h.exposed()[m.Exposed()].GetMetric() {
		have := map[string]string{}
		for _, l := range series.GetLabel() {
			have[l.GetName()] = l.GetValue()
		}
		same := true
		for i, label := range m.Labels {
			same = same && (i >= len(labels) || have[label] == labels[i])
		}
		switch {
		case !same:
		case series.Counter != nil:
			return series.Counter.GetValue(), true
		case series.Gauge != nil:
			return series.Gauge.GetValue(), true
		case series.Histogram != nil:
			return float64(series.Histogram.GetSampleCount()), true
		}
	}
	return 0, false
}

// measures waits until the value of a metric satisfies want, and returns it. The pauses grow, because each look parses
// all metrics.
func (h *host) measures(want func(float64) bool, name string, labels ...string) float64 {
	h.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 80*time.Millisecond) {
		v, ok := h.metric(name, labels...)
		switch {
		case ok && want(v):
			return v
		case time.Now().After(deadline):
			h.t.Fatalf("%s: %s %q is %v, there %t", h.name, name, labels, v, ok)
		}
		time.Sleep(pause)
	}
}

func is(want float64) func(float64) bool    { return func(v float64) bool { return v == want } }
func over(least float64) func(float64) bool { return func(v float64) bool { return v > least } }
func under(most float64) func(float64) bool { return func(v float64) bool { return v < most } }

// TestMetrics: an idle agent exposes every metric of the table, and each metric changes when what it measures happens.
func TestMetrics(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		a, b := newHost(t, store, "a"), newHost(t, store, "b")
		c := &refusing{serviceStore: &serviceStore{Registry: a.registry, name: "here"}}
		a.catalog, a.config.Consul.Service = c, "leno"
		a.config.Networks[0].Backend, a.config.ProbeInterval = &config.Backend{Type: "metered"}, 100*time.Millisecond
		a.recorder.totals.Store(&backend.Counters{RxPackets: 5, RxBytes: 500, Drops: map[string]uint64{}})
		a.wall.report.Choice = firewall.Choice{Kind: "nftables"}
		a.start()
		a.subnet()
		b.start()
		a.applies(a.subnet().String() + " <- b@" + b.subnet().String())
		a.ready()
		a.check(health.Snapshot, api.Passing)

		shown := map[string]bool{}
		eventually(t, func() error {
			families := a.exposed()
			for _, m := range telemetry.Table() {
				name := m.Exposed()
				if f := families[name]; f == nil || f.GetHelp() != m.Help {
					return fmt.Errorf("%s is not exposed with its help: %v", name, f)
				}
				shown[name] = true
			}
			for name, f := range families {
				standard := strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_")
				if !shown[name] && !standard {
					t.Errorf("%s is not in the table: %v", name, f)
				}
			}
			return nil
		})
		// One agent goes through all rows in this order.
		rows := []struct {
			name   string
			labels []string
			at     func(float64) bool // the value at rest
			do     func()             // nil to do nothing
			then   func(float64) bool // the value after do; nil for more than at rest
			undo   func()
		}{
			{name: telemetry.BuildInfo, labels: []string{"test"}, at: is(1)},
			{name: telemetry.AgentStart, at: over(float64(time.Now().Add(-time.Minute).Unix()))},
			{name: telemetry.AgentReady, at: is(1)},
			{name: telemetry.NetworkSlots, labels: []string{"n"}, at: is(3)},
			{name: telemetry.NetworkLeases, labels: []string{"n", "held"}, at: is(2)},
			{name: telemetry.LeaseHeld, labels: []string{"n"}, at: is(1)},
			{name: telemetry.LeaseRenewMargin, labels: []string{"n"}, at: is(9.9)},
			{name: telemetry.WatchReads, labels: []string{"n"}, at: over(0)},
			{name: telemetry.LeaseRenewals, labels: []string{"n", "ok"}, at: over(0)},
			{name: telemetry.LeaseRenewal, labels: []string{"n"}, at: over(0), do: func() {}},
			{name: telemetry.PeersPlaced, labels: []string{"n"}, at: is(1)},
			{name: telemetry.PathPeers, labels: []string{"n", api.PathReached}, at: is(1)},
			{name: telemetry.PathUnreachable, labels: []string{"n", "to_peer"}, at: is(0)},
			{name: telemetry.PathRoundTrip, labels: []string{"n", "median"}, at: over(0)},
			{name: telemetry.PathLoss, labels: []string{"n", "worst"}, at: is(0)},
			{name: telemetry.PathProbe, labels: []string{"n"}, at: over(0), do: func() {}},
			{name: telemetry.FirewallInfo, labels: []string{"nftables"}, at: is(1)},
			{name: telemetry.TrafficDrops, labels: []string{"n", "tx_errors"}, at: is(0)},
			{name: telemetry.TrafficPackets, labels: []string{"n", "rx"}, at: is(5), then: is(7),
				do: func() {
					a.recorder.totals.Store(&backend.Counters{RxPackets: 7, RxBytes: 900, Drops: map[string]uint64{"rx_dropped": 3}})
				}},
			{name: telemetry.TrafficBytes, labels: []string{"n", "rx"}, at: is(900)},
			{name: telemetry.TrafficDrops, labels: []string{"n", "rx_dropped"}, at: is(3)},

			{name: telemetry.WatchAge, labels: []string{"n"}, at: is(0), then: over(0.1), do: func() { a.registry.Set(registry.ErrUnavailable) }},
			{name: telemetry.WatchFailures, labels: []string{"n"}, at: over(0)},
			{name: telemetry.AgentHealth, at: is(1)},
			{name: telemetry.HealthCheck, labels: []string{"n", health.Snapshot}, at: is(1)},
			{name: telemetry.LeaseRenewals, labels: []string{"n", "failed"}, at: over(0)},
			{name: telemetry.LeaseLapse, labels: []string{"n"}, at: under(9.9), then: under(9.7), do: func() {}},
			{name: telemetry.WatchAge, labels: []string{"n"}, at: over(0), then: is(0), do: func() { a.registry.Set(nil) }},

			{name: telemetry.LeaseLosses, labels: []string{"n"}, at: is(0), do: func() { store.Delete(leaseKey(a.subnet())) }},
			{name: telemetry.LeaseClaims, labels: []string{"n", "ok"}, at: over(1)},
			{name: telemetry.LeaseClaims, labels: []string{"n", "failed"}, at: is(0), do: func() {
				a.registry.SetOne("Acquire", registry.ErrUnavailable)
				store.Delete(leaseKey(a.subnet()))
			}, undo: func() { a.registry.SetOne("Acquire", nil) }},
			{name: telemetry.LeaseRenewals, labels: []string{"n", lease.RenewalLost}, at: is(0), do: func() { a.registry.SetOne("Renew", registry.ErrLeaseLost) },
				undo: func() { a.registry.SetOne("Renew", nil) }},

			{name: telemetry.NetworkBadRecords, labels: []string{"n"}, at: is(0), then: is(1), do: func() { store.Put(leaseKey(free(a, b)), []byte("x")) }},
			{name: telemetry.NetworkSlotsFree, labels: []string{"n"}, at: is(0), then: is(1), do: func() { store.Delete(leaseKey(free(a, b))) }},
			{name: telemetry.NetworkLeases, labels: []string{"n", "lapsed"}, at: is(0), then: is(1), do: func() {
				if err := b.stop(); err != nil {
					t.Error(err)
				}
				lease, _ := mustRunner(t, b).Lease()
				store.EndSession(lease.Session)
			}},

			{name: telemetry.ReconcileRuns, labels: []string{"n", "ok"}, at: over(0), do: a.kick},
			{name: telemetry.ReconcileDuration, labels: []string{"n"}, at: over(0), do: a.kick},
			{name: telemetry.ReconcileWrites, labels: []string{"n"}, at: is(0), do: func() { a.recorder.setReport(backend.Report{Writes: 3}); a.kick() }},
			{name: telemetry.DriftRepairs, labels: []string{"n", datapath.OtherFault}, at: is(0), then: is(1), do: func() {
				a.recorder.setReport(backend.Report{Repaired: []backend.Repair{{Fault: "words of no backend"}}})
				a.recorder.hook(func(backend.State) { a.recorder.setReport(backend.Report{}) })
				a.kick()
			}},
			{name: telemetry.PeersSkipped, labels: []string{"n"}, at: is(0), then: is(1), do: func() {
				a.recorder.hook(nil)
				a.recorder.setReport(backend.Report{Skipped: []backend.Skip{{Node: "b", Reason: "x"}}})
				a.kick()
			}},
			{name: telemetry.PeersUnanswered, labels: []string{"n"}, at: is(0)},
			{name: telemetry.ReconcileRuns, labels: []string{"n", "failed"}, at: is(0), do: func() { a.recorder.setFail(errors.New("no such device")); a.kick() }},
			{name: telemetry.ReconcileAge, labels: []string{"n"}, at: over(0), then: under(0.2), do: func() { a.recorder.setFail(nil); a.kick() }},
			{name: telemetry.DriftRepairs, labels: []string{"n", "device_was_down"}, at: is(0), then: is(6), do: func() {
				a.recorder.setReport(backend.Report{Repaired: slices.Repeat([]backend.Repair{{Fault: "device was down"}}, 6)})
				a.recorder.hook(func(backend.State) { a.recorder.setReport(backend.Report{}) })
				a.kick()
			}},
			{name: telemetry.DriftConflicts, labels: []string{"n"}, at: is(1)},

			{name: telemetry.FirewallLooks, labels: []string{"ok"}, at: over(0)},
			{name: telemetry.FirewallLooks, labels: []string{"failed"}, at: is(0), do: func() {
				a.wall.setErr(errors.New("no such table"))
				a.agent.env.Rules.Keeper.Configure(config.Firewall{Resync: time.Minute})
			}, undo: func() { a.wall.setErr(nil) }},
			{name: telemetry.FirewallWrites, at: is(0), then: over(1), do: func() {
				a.wall.set(func(w *wall) {
					w.report = firewall.Report{Writes: 2, Choice: w.report.Choice, Repaired: slices.Repeat([]string{"table x"}, 6)}
				})
				a.agent.env.Rules.Keeper.Configure(config.Firewall{Resync: time.Hour})
			}},
			{name: telemetry.FirewallRepairs, at: over(5)},
			{name: telemetry.FirewallConflicts, at: is(1)},
			{name: telemetry.FirewallDuration, at: over(0)},

			{name: telemetry.ServiceRegistrations, labels: []string{"ok"}, at: over(0)},
			{name: telemetry.ServiceRegistrations, labels: []string{"failed"}, at: is(0), do: func() {
				c.refuse.Store(true)
				a.agent.env.Reports.Health.Set("", health.Records, api.Warning, "x")
			}},
			{name: telemetry.Reloads, labels: []string{"ok"}, at: is(0), then: is(1), do: func() {
				if err := a.agent.Reload(t.Context(), a.config); err != nil {
					t.Error(err)
				}
			}},
			{name: telemetry.Reloads, labels: []string{"failed"}, at: is(0), then: is(1), do: func() {
				c := a.config
				c.NodeName = "x"
				if err := a.agent.Reload(t.Context(), c); err == nil {
					t.Error("the reload was not refused")
				}
			}},
			{name: telemetry.APIRequests, labels: []string{"GET /v1/networks", "200"}, at: is(0), then: is(1), do: func() { a.request("GET", "/v1/networks", "") }},
			{name: telemetry.APIRequests, labels: []string{"GET /v1/network/{network}", "404"}, do: func() { a.request("GET", "/v1/network/none", "") }},
			{name: telemetry.APIDuration, labels: []string{"GET /v1/networks"}, at: is(1)},
			{name: telemetry.APIWaiting, at: is(0), then: is(1), do: func() {
				list, err := a.client.Reservations(t.Context(), "n")
				must(t, err)
				go func() { _, _ = a.client.Reservations(t.Context(), "n", api.Read{Index: list.Index, Wait: time.Minute}) }()
			}},
			{name: telemetry.NetworkReservations, labels: []string{"n"}, at: is(0), then: is(1), do: func() {
				n, err := store.Client().Network(t.Context(), "n")
				if err != nil {
					t.Fatal(err)
				}
				slot, err := n.Plan.Slot(free(a, b))
				if err != nil {
					t.Fatal(err)
				}
				if err := store.Client().AddReservation(t.Context(), n, registry.Reservation{Slot: slot, Subnet: free(a, b), Node: "z"}, false); err != nil {
					t.Fatal(err)
				}
			}},
			{name: telemetry.APIWaiting, at: is(0)}, // the reservation was the answer
		}
		tested := map[string]bool{}
		for _, row := range rows {
			before := 0.0
			if row.at != nil {
				before = a.measures(row.at, row.name, row.labels...)
			}
			tested[row.name] = true
			if row.do != nil {
				if row.then == nil {
					row.then = over(before)
				}
				row.do()
				a.measures(row.then, row.name, row.labels...)
			}
			if row.undo != nil {
				row.undo()
			}
		}
		for _, m := range telemetry.Table() {
			if !tested[m.Name] {
				t.Errorf("no row moves %s", m.Name)
			}
		}
	})
}
