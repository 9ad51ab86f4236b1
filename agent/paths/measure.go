package paths

import (
	"cmp"
	"slices"

	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
)

// untested is the label of paths without a state.
const untested = "untested"

// Measure adds the metrics of the paths to the peers of a network that hold their leases, none if they are not tested.
func (m *Monitor) Measure(to *telemetry.Reading, network string, peers []api.Peer) {
	known := m.Of(network)
	if known == nil {
		return
	}
	var all []api.PeerPath
	for _, p := range peers {
		if !p.Held || len(p.Subnets) == 0 { // a host without a lease may be gone
			continue
		}
		if path, ok := known[p.Subnets[0]]; ok {
			all = append(all, path)
		}
	}
	counts := map[string]int{}
	var trips, losses []float64
	for _, p := range all {
		counts[cmp.Or(p.State, untested)]++
		if p.RTT > 0 {
			trips = append(trips, p.RTT)
		}
		if p.State != "" {
			losses = append(losses, p.Loss)
		}
	}
	for _, state := range []string{api.PathReached, api.PathLossy, api.PathShort, api.PathLost, untested} {
		to.Gauge(telemetry.PathPeers, float64(counts[state]), network, state)
	}
	measureUnreachable(to, network, all)
	measureSpread(to, telemetry.PathRoundTrip, network, trips)
	measureSpread(to, telemetry.PathLoss, network, losses)
}

// measureSpread adds the median and the highest of some values, nothing if there are none.
func measureSpread(to *telemetry.Reading, metric, network string, values []float64) {
	if len(values) == 0 {
		return
	}
	slices.Sort(values)
	to.Gauge(metric, values[len(values)/2], network, "median")
	to.Gauge(metric, values[len(values)-1], network, "worst")
}

// measureUnreachable adds the number of peers to which or from which all packets are lost.
func measureUnreachable(to *telemetry.Reading, network string, all []api.PeerPath) {
	counts := map[string]int{}
	for _, p := range all {
		isTo, isFrom := valueOf(p.ToPeer) == 1, valueOf(p.FromPeer) == 1
		switch {
		case p.State != api.PathLost:
		case isTo:
			counts["to_peer"]++
		case isFrom:
			counts["from_peer"]++
		default:
			counts["unknown"]++
		}
	}
	for _, direction := range []string{"to_peer", "from_peer", "unknown"} {
		to.Gauge(telemetry.PathUnreachable, float64(counts[direction]), network, direction)
	}
}
