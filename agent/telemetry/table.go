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
	Name   string // without the prefix: "lease.renewals"
	Kind   Kind
	Labels []string
	Help   string // one sentence, with the unit where there is one
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
	DriftHealed       = "drift.healed"
	DriftQuarrels     = "drift.quarrels"
	PeersPlaced       = "peers.placed"
	PeersSkipped      = "peers.skipped"
	PeersUnanswered   = "peers.unanswered"

	TrafficPackets = "traffic.packets"
	TrafficBytes   = "traffic.bytes"
	TrafficDrops   = "traffic.drops"

	FirewallInfo     = "firewall.info"
	FirewallLooks    = "firewall.looks"
	FirewallDuration = "firewall.duration"
	FirewallWrites   = "firewall.writes"
	FirewallHealed   = "firewall.healed"
	FirewallQuarrels = "firewall.quarrels"

	ServiceRegistrations = "service.registrations"

	APIRequests = "api.requests"
	APIDuration = "api.duration"
	APIWaiting  = "api.waiting"
)

// Table returns every metric, in the order of the documentation.
func Table() []Metric {
	network := []string{"network"}
	and := func(more ...string) []string { return slices.Concat(network, more) }
	return []Metric{
		{Name: BuildInfo, Kind: Gauge, Labels: []string{"version", "revision", "go"}, Help: "Always 1; the labels say which leno runs."},
		{Name: AgentStart, Kind: Gauge, Help: "When the agent started, in seconds since 1970."},
		{Name: AgentReady, Kind: Gauge, Help: "1 when every network is usable by container runtimes, else 0."},
		{Name: AgentHealth, Kind: Gauge, Help: "Health of the agent with all its networks, as /healthz has it: 0 passing, 1 warning, 2 critical."},
		{Name: HealthCheck, Kind: Gauge, Labels: and("check"), Help: "Each named check: 0 passing, 1 warning, 2 critical. Checks of the whole agent have an empty network."},
		{Name: Reloads, Kind: Counter, Labels: []string{"result"}, Help: "Configurations that were taken over (ok), or read and refused (failed)."},

		{Name: LeaseHeld, Kind: Gauge, Labels: network, Help: "1 while this host holds a lease, else 0."},
		{Name: LeaseLapse, Kind: Gauge, Labels: network, Help: "Seconds until this host's lease may lapse if it is not renewed: lease.ttl after the last renewal. Below 0 it may have lapsed; 0 without a lease."},
		{Name: LeaseRenewMargin, Kind: Gauge, Labels: network, Help: "Seconds before the lease may lapse at which it is renewed: lease.renew_margin."},
		{Name: LeaseRenewals, Kind: Counter, Labels: and("result"), Help: "Renewals of this host's lease that worked (ok), could not be made (failed), or found the session dead (lost)."},
		{Name: LeaseRenewal, Kind: Timer, Labels: network, Help: "How long a renewal took, whatever came of it."},
		{Name: LeaseClaims, Kind: Counter, Labels: and("result"), Help: "Claims of a lease, at the start, after a change and after a loss, that worked (ok) or did not (failed)."},
		{Name: LeaseLosses, Kind: Counter, Labels: network, Help: "How often the lease was found to be this host's no more, and claimed again or withdrawn."},

		{Name: NetworkLeases, Kind: Gauge, Labels: and("state"), Help: "Leases of all hosts in the snapshot: held, or lapsed and kept for their hosts."},
		{Name: NetworkSlots, Kind: Gauge, Labels: network, Help: "Subnets that hosts can be given."},
		{Name: NetworkSlotsFree, Kind: Gauge, Labels: network, Help: "Subnets of those that are neither leased, lapsed nor reserved, and have no unusable record."},
		{Name: NetworkReservations, Kind: Gauge, Labels: network, Help: "Reservations, as last read: once a minute."},
		{Name: NetworkBadRecords, Kind: Gauge, Labels: network, Help: "Lease records in the store that cannot be used."},

		{Name: WatchAge, Kind: Gauge, Labels: network, Help: "Seconds since the store last said with certainty which leases there are. " +
			"On a quiet network it goes up to a minute and begins again. An agent that has heard nothing yet counts from its start."},
		{Name: WatchReads, Kind: Counter, Labels: network, Help: "Snapshots of the leases that were taken over."},
		{Name: WatchFailures, Kind: Counter, Labels: network, Help: "Answers about the leases that failed or were not certain; peers keep their routes."},

		{Name: ReconcileRuns, Kind: Counter, Labels: and("result"), Help: "Looks at the datapath that left it as wanted (ok) or did not (failed)."},
		{Name: ReconcileDuration, Kind: Timer, Labels: network, Help: "How long a look at the datapath took, with what it mended."},
		{Name: ReconcileWrites, Kind: Counter, Labels: network, Help: "Changes made to the kernel or the forwarder."},
		{Name: ReconcileAge, Kind: Gauge, Labels: network, Help: "Seconds since the datapath was last found or made right; 0 before the first time."},
		{Name: DriftHealed, Kind: Counter, Labels: and("fault"), Help: "Repairs of what other programs had changed in the datapath, by what was wrong."},
		{Name: DriftQuarrels, Kind: Gauge, Labels: network, Help: "Faults of the datapath that another program causes again and again."},
		{Name: PeersPlaced, Kind: Gauge, Labels: network, Help: "Other hosts in the datapath."},
		{Name: PeersSkipped, Kind: Gauge, Labels: network, Help: "Other hosts that were left out; leno peers says why."},
		{Name: PeersUnanswered, Kind: Gauge, Labels: network,
			Help: "Other hosts to which packets are sent without a handshake; leno status names them."},

		{Name: TrafficPackets, Kind: Counter, Labels: and("direction"), Help: "Packets between containers of this host and others, rx from the wire and tx to it, where the backend counts them: vxlan and wireguard (by their devices) and udp."},
		{Name: TrafficBytes, Kind: Counter, Labels: and("direction"), Help: "Bytes of those packets, without what carries them."},
		{Name: TrafficDrops, Kind: Counter, Labels: and("reason"), Help: "Packets that were dropped, by reason."},

		{Name: FirewallInfo, Kind: Gauge, Labels: []string{"kind"}, Help: "Always 1; the label says what holds this host's rules: iptables-nft, iptables-legacy, nftables, or none."},
		{Name: FirewallLooks, Kind: Counter, Labels: []string{"result"}, Help: "Looks at the firewall that left the rules as wanted (ok) or did not (failed)."},
		{Name: FirewallDuration, Kind: Timer, Help: "How long a look at the firewall took, with what it wrote."},
		{Name: FirewallWrites, Kind: Counter, Help: "Tables of rules written."},
		{Name: FirewallHealed, Kind: Counter, Help: "Tables in which another program had changed leno's rules, and which were repaired."},
		{Name: FirewallQuarrels, Kind: Gauge, Help: "Rules that another program changes again and again."},

		{Name: ServiceRegistrations, Kind: Counter, Labels: []string{"result"}, Help: "Times the agent looked after its service in Consul's catalogue, that worked (ok) or did not (failed)."},

		{Name: APIRequests, Kind: Counter, Labels: []string{"route", "code"}, Help: "Requests answered, by what was asked and HTTP status."},
		{Name: APIDuration, Kind: Timer, Labels: []string{"route"}, Help: "How long an answer took; reads that wait for a change and streams are left out."},
		{Name: APIWaiting, Kind: Gauge, Help: "Requests that wait for a change right now."},
	}
}

// Prefix begins the name of every metric, in every format.
const Prefix = "leno"

// Dotted returns the metric's name for statsd and dogstatsd.
func (m Metric) Dotted() string { return Prefix + "." + m.Name }

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
