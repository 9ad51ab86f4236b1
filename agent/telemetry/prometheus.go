package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/net/netutil"

	"github.com/lenonet/leno/api"
)

// ErrOff reports that the Prometheus format is turned off.
var ErrOff = errors.New(`the Prometheus format is turned off: telemetry.prometheus_retention is "0s"`)

// MetricsPath is the only path of the listener for metrics.
const MetricsPath = "/metrics"

const (
	// listenPause is the time between two attempts to open the listener for metrics.
	listenPause = 10 * time.Second
	// listenTime is how long Reconfigure waits for an attempt.
	listenTime = time.Second
	// requestTime bounds a request to it.
	requestTime = 30 * time.Second
	// maxConnections is how many connections it has at once.
	maxConnections = 100
)

// newMetric registers what keeps the values of a row of the table.
func newMetric(row Metric, events *prometheus.Registry) *metric {
	m := &metric{Metric: row}
	switch row.Kind {
	case Counter:
		m.count = prometheus.NewCounterVec(prometheus.CounterOpts{Name: row.Exposed(), Help: row.Help}, row.Labels)
		events.MustRegister(m.count)
		if len(row.Labels) == 0 {
			m.count.WithLabelValues() // it exists from the start
		}
	case Timer:
		// Prometheus takes the native histogram if it is configured to, and the buckets otherwise.
		buckets := row.Buckets
		if buckets == nil {
			buckets = []float64{0.001, 0.01, 0.1, 1, 10}
		}
		m.time = prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: row.Exposed(), Help: row.Help, Buckets: buckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100,
			NativeHistogramMinResetDuration: time.Hour,
		}, row.Labels)
		events.MustRegister(m.time)
		if len(row.Labels) == 0 {
			m.time.WithLabelValues()
		}
	case Gauge:
		m.desc = prometheus.NewDesc(row.Exposed(), row.Help, row.Labels, nil)
	}
	return m
}

// gauges shows the gauges of one Reading.
type gauges []gauge

// Describe makes it an unchecked collector.
func (gauges) Describe(chan<- *prometheus.Desc) {}

// Collect sends all gauges.
func (g gauges) Collect(to chan<- prometheus.Metric) {
	for _, v := range g {
		m, err := prometheus.NewConstMetric(v.metric.desc, prometheus.GaugeValue, v.value, v.values...)
		if err != nil {
			m = prometheus.NewInvalidMetric(v.metric.desc, err)
		}
		to <- m
	}
}

// gatherer returns all metrics as they are now.
func (t *Telemetry) gatherer() prometheus.Gatherer {
	now := prometheus.NewRegistry()
	now.MustRegister(gauges(t.read()))
	return prometheus.Gatherers{now, t.events}
}

// Expose answers a request with all metrics in a format of Prometheus, or returns ErrOff.
func (t *Telemetry) Expose(w http.ResponseWriter, r *http.Request) error {
	if t == nil || t.currentConfig().Retention <= 0 {
		return ErrOff
	}
	promhttp.HandlerFor(t.gatherer(), promhttp.HandlerOpts{DisableCompression: true}).ServeHTTP(w, r)
	return nil
}

// serve serves metrics at the configured address until ctx ends.
func (t *Telemetry) serve(ctx context.Context, hosts Hosts) error {
	for failed := false; ctx.Err() == nil; {
		c, _, changed := t.config.Get()
		var err error
		var again <-chan time.Time
		if c.Address != "" {
			if err = t.serveAt(ctx, c.Address, hosts); err != nil {
				again = time.After(listenPause)
			}
		}
		if c.Address == "" || err != nil {
			t.listen.Set(attempt{c.Address, err})
		}
		if err != nil && !failed {
			t.log.Warn("telemetry.address cannot be used, trying again", "address", c.Address, "error", err)
		}
		failed = err != nil
		if c.Address != "" && err == nil {
			continue // the address has changed
		}
		select {
		case <-again:
		case <-changed:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// An attempt is the last one to open the listener for metrics.
type attempt struct {
	address string // "" for none
	err     error
}

// serveAt serves metrics at an address until ctx ends or the configuration has another address.
func (t *Telemetry) serveAt(ctx context.Context, address string, hosts Hosts) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	t.listen.Set(attempt{address: address})
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+MetricsPath, func(w http.ResponseWriter, r *http.Request) {
		if err := hosts.Check(r.Host); err != nil {
			http.Error(w, err.Error(), http.StatusMisdirectedRequest)
		} else if err := t.Expose(w, r); err != nil {
			http.Error(w, err.Error(), http.StatusUnsupportedMediaType)
		}
	})
	server := &http.Server{Handler: mux, ReadTimeout: requestTime, WriteTimeout: requestTime, IdleTimeout: 2 * requestTime,
		ErrorLog: t.log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug})}
	serving, stopServing := context.WithCancel(ctx)
	var learning sync.WaitGroup
	learning.Go(func() { hosts.Learn(serving, l.Addr(), false) })
	defer learning.Wait()
	defer stopServing()
	done := make(chan error, 1)
	go func() { done <- server.Serve(netutil.LimitListener(l, maxConnections)) }()
	t.log.Info("serving metrics", "address", l.Addr(), "path", MetricsPath)
	for {
		c, _, changed := t.config.Get()
		if c.Address != address || ctx.Err() != nil {
			_ = server.Close()
			<-done
			return nil
		}
		select {
		case err := <-done:
			return fmt.Errorf("http server: %w", err)
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// Now returns all metrics as they are now, for JSON.
func (t *Telemetry) Now() (api.Metrics, error) {
	out := api.Metrics{Timestamp: time.Now().UTC(), Gauges: []api.MetricValue{}, Counters: []api.MetricValue{},
		Times: []api.MetricTime{}}
	if t == nil {
		return out, nil
	}
	families, err := t.gatherer().Gather()
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			switch f.GetType() {
			case dto.MetricType_GAUGE:
				out.Gauges = append(out.Gauges, api.MetricValue{Name: f.GetName(), Labels: labels, Value: m.GetGauge().GetValue()})
			case dto.MetricType_COUNTER:
				out.Counters = append(out.Counters, api.MetricValue{Name: f.GetName(), Labels: labels,
					Value: m.GetCounter().GetValue()})
			case dto.MetricType_HISTOGRAM:
				h := m.GetHistogram()
				out.Times = append(out.Times, api.MetricTime{Name: f.GetName(), Labels: labels,
					Count: h.GetSampleCount(), Sum: h.GetSampleSum()})
			}
		}
	}
	return out, err
}
