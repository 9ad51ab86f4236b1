package telemetry

import (
	"errors"
	"net/http"
	"time"

	metricsprometheus "github.com/hashicorp/go-metrics/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// ErrOff reports that the Prometheus format is turned off.
var ErrOff = errors.New(`the Prometheus format is turned off: telemetry.prometheus_retention is "0s"`)

// exposition is the Prometheus format. It keeps counters and times. Gauges are read again for each answer, so that
// none outlives its subject.
type exposition struct {
	registry *prometheus.Registry
	events   *outlet
}

// newExposition returns nil without a retention.
func newExposition(retention time.Duration) *exposition {
	if retention <= 0 {
		return nil
	}
	opts := metricsprometheus.PrometheusOpts{Expiration: retention, Name: "leno_events"}
	for _, m := range Table() {
		switch {
		case len(m.Labels) > 0:
		case m.Kind == Counter:
			opts.CounterDefinitions = append(opts.CounterDefinitions, metricsprometheus.CounterDefinition{Name: []string{m.Exposed()}})
		case m.Kind == Timer:
			opts.SummaryDefinitions = append(opts.SummaryDefinitions, metricsprometheus.SummaryDefinition{Name: []string{m.Exposed()}})
		}
	}
	registry := prometheus.NewRegistry()
	for _, standard := range []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		_ = registry.Register(standard) // it fails only for collectors that are registered twice
	}
	return &exposition{registry, newExposed(registry, opts)}
}

// newExposed adds a sink of its own to the registry.
func newExposed(registry *prometheus.Registry, opts metricsprometheus.PrometheusOpts) *outlet {
	opts.Registerer = registry
	sink, _ := metricsprometheus.NewPrometheusSinkFrom(opts) // as above
	o := newOutlet(sink, "", time.Second)
	o.to.ServiceName, o.standard = "", true
	o.name = func(m Metric) []string { return []string{m.Exposed()} }
	return o
}

// Expose answers a request with all metrics in the Prometheus text format, or with
// ErrOff.
func (t *Telemetry) Expose(w http.ResponseWriter, r *http.Request) error {
	if t == nil {
		return ErrOff
	}
	gatherer, err := t.gather()
	if err != nil {
		return err
	}
	promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{DisableCompression: true}).ServeHTTP(w, r)
	return nil
}

// gather returns all metrics as they are now.
func (t *Telemetry) gather() (prometheus.Gatherer, error) {
	t.reading.Lock()
	defer t.reading.Unlock()
	t.mu.RLock()
	exposed := t.exposed
	t.mu.RUnlock()
	if exposed == nil {
		return nil, ErrOff
	}
	registry := prometheus.NewRegistry()
	now := newExposed(registry, metricsprometheus.PrometheusOpts{Name: "leno_gauges"})
	t.ask(true, func(give func(*outlet)) { give(now) })
	return explained{prometheus.Gatherers{exposed.registry, registry}}, nil
}

// explained gives each metric the help text of the table: the sink takes one only
// for metrics without labels.
type explained struct{ prometheus.Gatherer }

func (e explained) Gather() ([]*dto.MetricFamily, error) {
	families, err := e.Gatherer.Gather()
	help := map[string]string{}
	for _, m := range Table() {
		help[m.Exposed()] = m.Help
	}
	for _, f := range families {
		if text, ok := help[f.GetName()]; ok {
			f.Help = &text
		}
	}
	return families, err
}
