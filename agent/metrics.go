package agent

import (
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// Gauges are read in this file, all at once, from what the API shows. Events are counted where they happen.

// telemetryConfig returns where the configuration sends metrics. host is the host label if no node name is configured.
func telemetryConfig(c config.Config, host string) telemetry.Config {
	out := telemetry.Config{Retention: c.Telemetry.PrometheusRetention, Statsd: c.Telemetry.StatsdAddress,
		Dogstatsd: c.Telemetry.DogstatsdAddress}
	if !c.Telemetry.DisableHostname {
		out.Host = c.NodeName
		if out.Host == "" {
			out.Host = host
		}
	}
	return out
}

// build is the version control revision and the Go version that this program was built from, for example "3f2a9c1d0b7e"
// and "go1.25.1".
type build struct{ revision, toolchain string }

func readBuild() build {
	out := build{toolchain: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return out
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			out.revision = s.Value[:min(12, len(s.Value))]
		}
	}
	return out
}

// measure fills a reading.
func (a *Agent) measure(to *telemetry.Reading) {
	a.mu.Lock()
	started, runners := a.started, slices.Collect(maps.Values(a.runners))
	a.mu.Unlock()
	to.Gauge(telemetry.BuildInfo, 1, a.o.Version, a.build.revision, a.build.toolchain)
	if !started.IsZero() {
		to.Gauge(telemetry.AgentStart, float64(started.UnixMilli())/1000)
	}
	to.Exists(telemetry.Reloads, telemetry.OK)
	to.Exists(telemetry.Reloads, telemetry.Failed)
	to.Exists(telemetry.ServiceRegistrations, telemetry.OK)
	to.Exists(telemetry.ServiceRegistrations, telemetry.Failed)
	for _, pattern := range a.http.Patterns() {
		to.Exists(telemetry.APIRequests, pattern, "200")
	}
	to.Gauge(telemetry.APIWaiting, float64(a.http.Waiting()))
	measureHealth(to, a.env.health)
	measureFirewall(to, a.env.firewall.Status())
	for _, run := range runners {
		run.measure(to)
	}
	measureRuntime(to)
}

func measureHealth(to *telemetry.Reading, board *health.Board) {
	report, _ := board.Report()
	to.Flag(telemetry.AgentReady, report.Ready)
	to.Gauge(telemetry.AgentHealth, float64(health.Severity(report.Status)))
	for _, c := range report.Checks {
		to.Gauge(telemetry.HealthCheck, float64(health.Severity(c.Status)), "", c.Name)
	}
	for _, n := range report.Networks {
		for _, c := range n.Checks {
			to.Gauge(telemetry.HealthCheck, float64(health.Severity(c.Status)), n.Network, c.Name)
		}
	}
}

// measure adds the metrics of one network.
func (r *runner) measure(to *telemetry.Reading) {
	n := r.local.Name
	v := r.shown()
	r.mu.Lock()
	trouble := r.trouble
	r.mu.Unlock()
	_, leased, _ := r.lease.Get()
	to.Flag(telemetry.LeaseHeld, leased && trouble == "", n)
	lapse := time.Duration(0)
	if leased && !v.local.Renewed.IsZero() {
		lapse = time.Until(v.local.Renewed.Add(r.config.Lease.TTL))
	}
	to.Gauge(telemetry.LeaseLapse, lapse.Seconds(), n)
	to.Gauge(telemetry.LeaseRenewMargin, r.config.Lease.RenewMargin.Seconds(), n)
	for _, result := range []string{telemetry.OK, telemetry.Failed, lostResult} {
		to.Exists(telemetry.LeaseRenewals, n, result)
	}
	for _, result := range []string{telemetry.OK, telemetry.Failed} {
		to.Exists(telemetry.LeaseClaims, n, result)
		to.Exists(telemetry.ReconcileRuns, n, result)
	}
	for _, name := range []string{telemetry.LeaseLosses, telemetry.WatchReads, telemetry.WatchFailures, telemetry.ReconcileWrites} {
		to.Exists(name, n)
	}
	r.measureNetwork(to, v)
	age := time.Duration(0)
	if !v.local.Applied.IsZero() {
		age = time.Since(v.local.Applied)
	}
	to.Gauge(telemetry.ReconcileAge, age.Seconds(), n)
	to.Gauge(telemetry.DriftQuarrels, float64(v.datapath.Flapping), n)
	for _, fault := range append(backend.Faults(), datapath.OtherFault) {
		to.Exists(telemetry.DriftHealed, n, fault)
	}
	to.Gauge(telemetry.PeersPlaced, float64(v.datapath.Report.Peers), n)
	to.Gauge(telemetry.PeersSkipped, float64(len(v.datapath.Report.Skipped)), n)
	r.measureTraffic(to, v)
}

// measureNetwork adds the metrics that all hosts of a network share, as this host knows them.
func (r *runner) measureNetwork(to *telemetry.Reading, v view) {
	n := r.local.Name
	snap, _, _ := r.snapshot.Get()
	held := 0
	for i := range snap.set.Leases {
		if snap.set.Leases[i].Held() {
			held++
		}
	}
	to.Gauge(telemetry.NetworkLeases, float64(held), n, "held")
	to.Gauge(telemetry.NetworkLeases, float64(len(snap.set.Leases)-held), n, "lapsed")
	to.Gauge(telemetry.NetworkBadRecords, float64(len(snap.set.Bad)), n)
	to.Gauge(telemetry.NetworkReservations, float64(len(v.reservations)), n)
	if v.defined {
		plan := v.definition.Plan
		to.Gauge(telemetry.NetworkSlots, float64(plan.Capacity()), n)
		to.Gauge(telemetry.NetworkSlotsFree, float64(registry.Free(plan, snap.set, v.reservations)), n)
	}
	last := r.followed()
	if last.Before(r.began) {
		last = r.began // the age also grows if nothing was ever read
	}
	to.Gauge(telemetry.WatchAge, time.Since(last).Round(time.Millisecond).Seconds(), n)
}

// measureTraffic adds the traffic that the backend counts, by peer or in total. The metrics have no label for the peer,
// because there may be thousands of peers; the API shows each peer's counters.
func (r *runner) measureTraffic(to *telemetry.Reading, v view) {
	var parts map[string]backend.Counters
	switch {
	case v.datapath.Counter != nil:
		parts = v.datapath.Counter.Counters()
	case v.datapath.Meter != nil:
		all, err := v.datapath.Meter.Totals()
		if err != nil {
			r.log.Debug("traffic is not known", "error", err)
			return
		}
		parts = map[string]backend.Counters{"": all}
	default:
		return
	}
	n := r.local.Name
	for peer, c := range parts {
		to.Total(telemetry.TrafficPackets, peer, c.RxPackets, n, "rx")
		to.Total(telemetry.TrafficPackets, peer, c.TxPackets, n, "tx")
		to.Total(telemetry.TrafficBytes, peer, c.RxBytes, n, "rx")
		to.Total(telemetry.TrafficBytes, peer, c.TxBytes, n, "tx")
		for reason, count := range c.Drops {
			to.Total(telemetry.TrafficDrops, peer, count, n, reason)
		}
	}
	for _, reason := range r.env.backends[v.local.Backend].Drops {
		to.Exists(telemetry.TrafficDrops, n, reason)
	}
}

func measureRuntime(to *telemetry.Reading) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	to.Gauge(telemetry.RuntimeGoroutines, float64(runtime.NumGoroutine()))
	to.Gauge(telemetry.RuntimeAlloc, float64(m.Alloc))
	to.Gauge(telemetry.RuntimeSys, float64(m.Sys))
	to.Gauge(telemetry.RuntimeHeapObjects, float64(m.HeapObjects))
	to.Gauge(telemetry.RuntimeGCRuns, float64(m.NumGC))
	to.Gauge(telemetry.RuntimeGCPause, float64(m.PauseTotalNs))
}

// lostResult is the result label of a renewal that found that the session had ended.
const lostResult = "lost"

// renewal counts a renewal and its duration.
func (r *runner) renewal(started time.Time, result string) {
	r.report.Time(telemetry.LeaseRenewal, time.Since(started))
	r.report.Count(telemetry.LeaseRenewals, 1, result)
}
