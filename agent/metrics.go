package agent

import (
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/telemetry"
)

// Gauges are read in this file, all at once, from what the API shows. Events are counted where they happen.

// telemetryConfig returns where the configuration sends metrics. host is the host label if no node name is configured.
func telemetryConfig(c config.Config, host string) telemetry.Config {
	out := telemetry.Config{Retention: c.Telemetry.PrometheusRetention, Address: c.Telemetry.Address,
		Statsd: c.Telemetry.StatsdAddress, Dogstatsd: c.Telemetry.DogstatsdAddress}
	if !c.Telemetry.DisableHostname {
		out.Host = c.NodeName
		if out.Host == "" {
			out.Host = host
		}
	}
	return out
}

// measure fills a reading.
func (a *Agent) measure(to *telemetry.Reading) {
	started := a.process.startedAt()
	to.Gauge(telemetry.BuildInfo, 1, a.process.version, a.process.build.revision, a.process.build.toolchain)
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
	measureHealth(to, a.env.Reports.Health)
	measureFirewall(to, a.env.Rules.Keeper.Status())
	for _, run := range a.networks.all() {
		run.Measure(to)
		a.diagnostics.paths.Measure(to, run.Local().Name, run.PeerList().Peers)
	}
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
