package telemetry

import (
	"slices"
	"strings"
)

// Kind is how a metric behaves.
type Kind string

// The kinds of metrics.
const (
	Counter Kind = "counter" // only grows, from 0 at the start of the agent
	Gauge   Kind = "gauge"   // the current state
	Timer   Kind = "timer"   // how long something took, each time
)

// Metric is one row of the table of all metrics.
type Metric struct {
	Name    string // without the prefix: "lease.renewals"
	Kind    Kind
	Labels  []string
	Help    string    // one sentence, with the unit where there is one
	Buckets []float64 // of a timer, in seconds; nil for the usual ones
}

// Names of metrics, as Count, Time and the readings take them.
const (
	BuildInfo   = "build.info"
	AgentStart  = "agent.start_time_seconds"
	AgentReady  = "agent.ready"
	AgentHealth = "agent.health"
	HealthCheck = "health.check"
	Reloads     = "agent.reloads"

	LeaseHeld        = "lease.held"
	LeaseLapse       = "lease.lapse_seconds"
	LeaseRenewMargin = "lease.renew_margin_seconds"
	LeaseRenewals    = "lease.renewals"
	LeaseRenewal     = "lease.renewal"
	LeaseClaims      = "lease.claims"
	LeaseLosses      = "lease.losses"

	NetworkLeases       = "network.leases"
	NetworkSlots        = "network.slots"
	NetworkSlotsFree    = "network.slots_free"
	NetworkReservations = "network.reservations"
	NetworkBadRecords   = "network.bad_records"

	WatchAge      = "watch.age_seconds"
	WatchReads    = "watch.reads"
	WatchFailures = "watch.failures"

	ReconcileRuns     = "reconcile.runs"
	ReconcileDuration = "reconcile.duration"
	ReconcileWrites   = "reconcile.writes"
	ReconcileAge      = "reconcile.age_seconds"
	DriftRepairs      = "drift.repairs"
	DriftConflicts    = "drift.conflicts"
	PeersPlaced       = "peers.placed"
	PeersSkipped      = "peers.skipped"
	PeersUnanswered   = "peers.unanswered"

	PathPeers     = "paths.peers"
	PathRoundTrip = "paths.round_trip_seconds"
	PathLoss      = "paths.loss_ratio"
	PathProbe     = "paths.probe"

	PathUnreachable = "paths.unreachable"

	TrafficPackets = "traffic.packets"
	TrafficBytes   = "traffic.bytes"
	TrafficDrops   = "traffic.drops"

	FirewallInfo      = "firewall.info"
	FirewallLooks     = "firewall.looks"
	FirewallDuration  = "firewall.duration"
	FirewallWrites    = "firewall.writes"
	FirewallRepairs   = "firewall.repairs"
	FirewallConflicts = "firewall.conflicts"

	ServiceRegistrations = "service.registrations"

	APIRequests = "api.requests"
	APIDuration = "api.duration"
	APIWaiting  = "api.waiting"
)

// roundTrips are the buckets of round trips between hosts, in seconds.
var roundTrips = []float64{0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1}

// Table returns every metric, in the order of the documentation.
func Table() []Metric {
	network := []string{"network"}
	and := func(more ...string) []string { return slices.Concat(network, more) }
	return []Metric{
		{Name: BuildInfo, Kind: Gauge, Labels: []string{"version", "revision", "go"},
			Help: "Always 1; the labels are those of the program."},
		{Name: AgentStart, Kind: Gauge, Help: "When the agent started, in seconds since 1970."},
		{Name: AgentReady, Kind: Gauge, Help: "1 when every network is ready for containers, else 0."},
		{Name: AgentHealth, Kind: Gauge, Help: "Health as in /healthz: 0 passing, 1 warning, 2 critical."},
		{Name: HealthCheck, Kind: Gauge, Labels: and("check"),
			Help: "Each check: 0 passing, 1 warning, 2 critical. Checks of the whole agent have an empty network."},
		{Name: Reloads, Kind: Counter, Labels: []string{"result"}, Help: "Reloads of the configuration: ok or failed."},

		{Name: LeaseHeld, Kind: Gauge, Labels: network, Help: "1 while this host holds a lease, else 0."},
		{Name: LeaseLapse, Kind: Gauge, Labels: network,
			Help: "Seconds until the lease may lapse without a renewal. Below 0 it may have lapsed; 0 without a lease."},
		{Name: LeaseRenewMargin, Kind: Gauge, Labels: network, Help: "Value of lease.renew_margin, in seconds."},
		{Name: LeaseRenewals, Kind: Counter, Labels: and("result"),
			Help: "Renewals of the lease: ok, failed, or lost if the session has ended."},
		{Name: LeaseRenewal, Kind: Timer, Labels: network, Help: "How long a renewal took."},
		{Name: LeaseClaims, Kind: Counter, Labels: and("result"), Help: "Claims of a lease: ok or failed."},
		{Name: LeaseLosses, Kind: Counter, Labels: network, Help: "How often this host lost its lease."},

		{Name: NetworkLeases, Kind: Gauge, Labels: and("state"),
			Help: "Leases of all hosts: held, or lapsed and kept for their hosts."},
		{Name: NetworkSlots, Kind: Gauge, Labels: network, Help: "Subnets of the network."},
		{Name: NetworkSlotsFree, Kind: Gauge, Labels: network, Help: "Subnets that a new host can get."},
		{Name: NetworkReservations, Kind: Gauge, Labels: network, Help: "Reservations, read once a minute."},
		{Name: NetworkBadRecords, Kind: Gauge, Labels: network, Help: "Lease records in the store that cannot be used."},

		{Name: WatchAge, Kind: Gauge, Labels: network,
			Help: "Seconds since the leases were last confirmed by the store, up to a minute in a quiet network."},
		{Name: WatchReads, Kind: Counter, Labels: network, Help: "Snapshots of the leases that were read."},
		{Name: WatchFailures, Kind: Counter, Labels: network, Help: "Reads of the leases that failed or were not certain."},

		{Name: ReconcileRuns, Kind: Counter, Labels: and("result"), Help: "Checks of the datapath: ok or failed."},
		{Name: ReconcileDuration, Kind: Timer, Labels: network, Help: "How long a check of the datapath took, with repairs."},
		{Name: ReconcileWrites, Kind: Counter, Labels: network, Help: "Changes made to the kernel or the forwarder."},
		{Name: ReconcileAge, Kind: Gauge, Labels: network,
			Help: "Seconds since the datapath was last correct; 0 before the first time."},
		{Name: DriftRepairs, Kind: Counter, Labels: and("fault"),
			Help: "Repairs of what other programs had changed in the datapath, by fault."},
		{Name: DriftConflicts, Kind: Gauge, Labels: network,
			Help: "Faults of the datapath that another program causes again and again."},
		{Name: PeersPlaced, Kind: Gauge, Labels: network, Help: "Other hosts in the datapath."},
		{Name: PeersSkipped, Kind: Gauge, Labels: network, Help: "Other hosts that are ignored; leno peers says why."},
		{Name: PeersUnanswered, Kind: Gauge, Labels: network,
			Help: "Other hosts to which packets are sent without a handshake; leno status names them."},

		{Name: PathPeers, Kind: Gauge, Labels: and("state"),
			Help: "Other hosts with a held lease, by the state of the path: reached, lossy, short, lost or untested."},
		{Name: PathUnreachable, Kind: Gauge, Labels: and("direction"),
			Help: "Other hosts with a held lease whose path is lost, by direction: to_peer, from_peer or unknown."},
		{Name: PathRoundTrip, Kind: Gauge, Labels: and("stat"),
			Help: "Round trip of small packets to the other hosts, in seconds: median and worst."},
		{Name: PathLoss, Kind: Gauge, Labels: and("stat"),
			Help: "Lost share of the last 20 small packets to a host, 0 to 1: median and worst."},
		{Name: PathProbe, Kind: Timer, Labels: network, Buckets: roundTrips, Help: "Round trip of each answered probe."},
		{Name: TrafficPackets, Kind: Counter, Labels: and("direction"),
			Help: "Packets from (rx) and to (tx) other hosts, with vxlan, wireguard and udp."},
		{Name: TrafficBytes, Kind: Counter, Labels: and("direction"),
			Help: "Bytes of these packets, without the headers of the tunnel; with wireguard, with them."},
		{Name: TrafficDrops, Kind: Counter, Labels: and("reason"), Help: "Packets that were dropped, by reason."},

		{Name: FirewallInfo, Kind: Gauge, Labels: []string{"kind"},
			Help: "Always 1; the label is iptables-nft, iptables-legacy, nftables, or none."},
		{Name: FirewallLooks, Kind: Counter, Labels: []string{"result"}, Help: "Checks of the firewall: ok or failed."},
		{Name: FirewallDuration, Kind: Timer, Help: "How long a check of the firewall took, with repairs."},
		{Name: FirewallWrites, Kind: Counter, Help: "Tables of rules written."},
		{Name: FirewallRepairs, Kind: Counter, Help: "Repairs of tables in which another program had changed leno's rules."},
		{Name: FirewallConflicts, Kind: Gauge, Help: "Rules that another program changes again and again."},

		{Name: ServiceRegistrations, Kind: Counter, Labels: []string{"result"},
			Help: "Registrations and checks of the service in Consul's catalog: ok or failed."},
		{Name: APIRequests, Kind: Counter, Labels: []string{"route", "code"}, Help: "Requests, by route and HTTP status."},
		{Name: APIDuration, Kind: Timer, Labels: []string{"route"},
			Help: "How long a response took, without requests that wait for a change and streams."},
		{Name: APIWaiting, Kind: Gauge, Help: "Requests that wait for a change."},
	}
}

// Prefix begins the name of every metric, in every format.
const Prefix = "leno"

// Exposed returns the metric's name in the Prometheus format, in which counters end in _total and times in _seconds.
func (m Metric) Exposed() string {
	name := Prefix + "_" + strings.ReplaceAll(m.Name, ".", "_")
	switch m.Kind {
	case Counter:
		name += "_total"
	case Timer:
		name += "_seconds"
	}
	return name
}
