package telemetry

import (
	"maps"
	"slices"

	"github.com/hashicorp/go-metrics"

	"github.com/lenonet/leno/api"
)

// Recent returns the metrics of the last complete interval of ten seconds, aligned to the clock: 12:00:10 to
// 12:00:20. Right after the start it returns the metrics so far.
func (t *Telemetry) Recent() api.Metrics {
	out := api.Metrics{Gauges: []api.MetricGauge{}, Counters: []api.MetricSample{}, Times: []api.MetricSample{}}
	if t == nil {
		return out
	}
	all := t.memory.Data()
	shown := all[max(len(all)-2, 0)]
	shown.RLock()
	defer shown.RUnlock()
	out.Timestamp = shown.Interval.UTC()
	for _, key := range slices.Sorted(maps.Keys(shown.PrecisionGauges)) {
		g := shown.PrecisionGauges[key]
		out.Gauges = append(out.Gauges, api.MetricGauge{Name: g.Name, Value: g.Value, Labels: labelled(g.Labels)})
	}
	out.Counters, out.Times = sampled(shown.Counters), sampled(shown.Samples)
	return out
}

func sampled(samples map[string]metrics.SampledValue) []api.MetricSample {
	out := []api.MetricSample{}
	for _, key := range slices.Sorted(maps.Keys(samples)) {
		s := samples[key]
		out = append(out, api.MetricSample{Name: s.Name, Labels: labelled(s.Labels), Count: s.Count, Sum: s.Sum, Min: s.Min, Max: s.Max, Mean: s.AggregateSample.Mean()})
	}
	return out
}

func labelled(labels []metrics.Label) map[string]string {
	out := map[string]string{}
	for _, l := range labels {
		out[l.Name] = l.Value
	}
	return out
}
