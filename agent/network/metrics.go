package network

import (
	"time"

	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/network/lease"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// Measure adds the metrics of one network.
func (r *Runner) Measure(to *telemetry.Reading) {
	n := r.local.Name
	s := r.Status()
	to.Flag(telemetry.LeaseHeld, s.Lease.IsHeld(), n)
	lapse := time.Duration(0)
	if s.Lease.Lease.Subnet().IsValid() && !s.Lease.Renewed.IsZero() {
		lapse = time.Until(s.Lease.Renewed.Add(r.config.Lease.TTL))
	}
	to.Gauge(telemetry.LeaseLapse, lapse.Seconds(), n)
	to.Gauge(telemetry.LeaseRenewMargin, r.config.Lease.RenewMargin.Seconds(), n)
	for _, result := range []string{telemetry.OK, telemetry.Failed, lease.RenewalLost} {
		to.Exists(telemetry.LeaseRenewals, n, result)
	}
	for _, result := range []string{telemetry.OK, telemetry.Failed} {
		to.Exists(telemetry.LeaseClaims, n, result)
		to.Exists(telemetry.ReconcileRuns, n, result)
	}
	for _, name := range []string{
		telemetry.LeaseLosses, telemetry.WatchReads, telemetry.WatchFailures, telemetry.ReconcileWrites,
	} {
		to.Exists(name, n)
	}
	snap, _ := r.peers.Snapshot()
	measureNetwork(to, n, s, snap.Set)
	last := s.Local.Followed
	if last.Before(r.began) {
		last = r.began // the age also grows if nothing was ever read
	}
	to.Gauge(telemetry.WatchAge, time.Since(last).Round(time.Millisecond).Seconds(), n)
	age := time.Duration(0)
	if !s.Datapath.Applied.IsZero() {
		age = time.Since(s.Datapath.Applied)
	}
	to.Gauge(telemetry.ReconcileAge, age.Seconds(), n)
	to.Gauge(telemetry.DriftConflicts, float64(s.Datapath.Flapping), n)
	for _, fault := range append(backend.Faults(), datapath.OtherFault) {
		to.Exists(telemetry.DriftRepairs, n, fault)
	}
	to.Gauge(telemetry.PeersPlaced, float64(s.Datapath.Report.Peers), n)
	to.Gauge(telemetry.PeersSkipped, float64(len(s.Datapath.Report.Skipped)), n)
	to.Gauge(telemetry.PeersUnanswered, float64(s.Datapath.Unanswered), n)
	r.measureTraffic(to, s)
}

// measureNetwork adds the metrics that all hosts of network n share, as this host knows them.
func measureNetwork(to *telemetry.Reading, n string, s Status, leases registry.LeaseSet) {
	held := 0
	for i := range leases.Leases {
		if leases.Leases[i].Held() {
			held++
		}
	}
	to.Gauge(telemetry.NetworkLeases, float64(held), n, "held")
	to.Gauge(telemetry.NetworkLeases, float64(len(leases.Leases)-held), n, "lapsed")
	to.Gauge(telemetry.NetworkBadRecords, float64(len(leases.Bad)), n)
	to.Gauge(telemetry.NetworkReservations, float64(len(s.Reservations)), n)
	if s.Defined {
		plan := s.Definition.Plan
		to.Gauge(telemetry.NetworkSlots, float64(plan.Capacity()), n)
		to.Gauge(telemetry.NetworkSlotsFree, float64(registry.Free(plan, leases, s.Reservations)), n)
	}
}

// measureTraffic adds the traffic that the backend counts, by peer or in total. The metrics have no label for the peer,
// because there may be thousands of peers; the API shows each peer's counters.
func (r *Runner) measureTraffic(to *telemetry.Reading, s Status) {
	var parts map[string]backend.Counters
	switch can := s.Datapath.Abilities; {
	case can.Counters != nil:
		parts = can.Counters()
	case can.Totals != nil:
		all, err := can.Totals()
		if err != nil {
			r.report.Log().Debug("traffic counters could not be read", "error", err)
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
	for _, reason := range r.deps.Datapaths.Backends[s.Local.Backend].Drops {
		to.Exists(telemetry.TrafficDrops, n, reason)
	}
}
