// Package telemetry keeps what an agent counts and measures, and shows it: as JSON
// of the last ten seconds, in the Prometheus format, and to statsd and dogstatsd.
//
// It owns the table of all metrics and their sinks, which are those of go-metrics,
// without any state of the process. It refuses to know where a value comes from.
package telemetry

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-metrics"
)

// Interval is what the JSON sums up, and how often gauges are sent.
const Interval = 10 * time.Second

// kept is how long the JSON's intervals stay in memory: the one that is shown and
// the one that goes on.
const kept = 3 * Interval

// Config is where metrics go, beside memory.
type Config struct {
	Retention time.Duration // of a metric that nothing happens to, in the Prometheus format; 0 turns that off
	Statsd    string        // host:port, "" for none
	Dogstatsd string        // host:port, "" for none
	Host      string        // stands in the names of the gauges that statsd gets, "" for not
}

// Telemetry takes what happens. All methods may be called at any time, by any
// goroutine, and on nil, which keeps nothing.
type Telemetry struct {
	log    hclog.Logger
	source func(*Reading)
	table  map[string]Metric
	memory *metrics.InmemSink
	recent *outlet // memory

	reading sync.Mutex       // held while the source is asked
	totals  map[string]total // by metric, part and labels
	rounds  int

	mu      sync.RWMutex // held, for reading, while something is given to what follows
	config  Config
	exposed *exposition // nil without the Prometheus format
	senders []*outlet
	unsent  bool // a sender could not be made; tried again
}

// New makes a Telemetry that asks source for gauges and totals whenever they are
// to be shown or sent. It touches nothing outside the process before Run.
func New(c Config, log hclog.Logger, source func(*Reading)) *Telemetry {
	memory := metrics.NewInmemSink(Interval, kept)
	t := &Telemetry{log: log, source: source, table: byName(), memory: memory, totals: map[string]total{},
		config: c, exposed: newExposition(c.Retention), recent: newOutlet(memory, "", time.Millisecond)}
	return t
}

// Run sends what there is until ctx ends, which it returns as an error.
func (t *Telemetry) Run(ctx context.Context) error {
	defer t.send(Config{})
	for {
		t.mu.RLock()
		c, unsent := t.config, t.unsent
		t.mu.RUnlock()
		if unsent || t.silent(c) {
			t.send(c)
		}
		t.push()
		// A second into each of the JSON's intervals, so that none is without.
		timer := time.NewTimer(time.Until(time.Now().Truncate(Interval).Add(Interval + time.Second)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// push gives the gauges of now to memory and the senders.
func (t *Telemetry) push() {
	t.reading.Lock()
	defer t.reading.Unlock()
	t.mu.RLock()
	to := append([]*outlet{t.recent}, t.senders...)
	t.mu.RUnlock()
	t.ask(false, func(give func(*outlet)) {
		t.mu.RLock()
		defer t.mu.RUnlock()
		for _, o := range to {
			if !o.closed {
				give(o)
			}
		}
	})
}

// Reconfigure takes over where metrics go. What was counted stays.
func (t *Telemetry) Reconfigure(c Config) {
	if t == nil {
		return
	}
	t.mu.Lock()
	before := t.config
	t.config = c
	if before.Retention != c.Retention {
		t.exposed = newExposition(c.Retention)
	}
	t.mu.Unlock()
	before.Retention = c.Retention
	if before != c {
		t.send(c)
	}
}

// Count adds to a counter. values are those of its labels, in their order.
func (t *Telemetry) Count(name string, n int, values ...string) {
	if t == nil || n == 0 {
		return
	}
	t.add(name, uint64(n), values, true)
}

// add counts in the Prometheus format, and where happened is set everywhere.
func (t *Telemetry) add(name string, n uint64, values []string, happened bool) {
	m := t.table[name]
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.exposed != nil {
		t.exposed.events.count(m, n, values)
	}
	if !happened {
		return
	}
	t.recent.count(m, n, values)
	for _, o := range t.senders {
		o.count(m, n, values)
	}
}

// Time notes how long something took.
func (t *Telemetry) Time(name string, took time.Duration, values ...string) {
	if t == nil {
		return
	}
	m := t.table[name]
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.exposed != nil {
		t.exposed.events.time(m, took, values)
	}
	t.recent.time(m, took, values)
	for _, o := range t.senders {
		o.time(m, took, values)
	}
}

// Result is OK, or Failed for an error.
func Result(err error) string {
	if err != nil {
		return Failed
	}
	return OK
}

// outlet is one sink, and how it calls things.
type outlet struct {
	to       *metrics.Metrics
	unit     time.Duration // that times are told in
	name     func(Metric) []string
	value    func(string) string // of a label; nil as it is
	standard bool                // metrics that have a standard are shown by others
	shutdown func()              // nil for nothing to end
	closed   bool                // afterwards
}

// newOutlet names metrics with dots, and gauges with the host where it is not "".
func newOutlet(sink metrics.MetricSink, host string, unit time.Duration) *outlet {
	to, err := metrics.New(&metrics.Config{ServiceName: Prefix, HostName: host, EnableHostname: host != "", FilterDefault: true}, sink)
	if err != nil {
		to = &metrics.Metrics{} // it has no error to give
	}
	return &outlet{to: to, unit: unit, name: func(m Metric) []string { return strings.Split(m.Name, ".") }}
}

func (o *outlet) labels(m Metric, values []string) []metrics.Label {
	out := make([]metrics.Label, 0, len(m.Labels)+1) // some sinks append
	for i, name := range m.Labels {
		value := ""
		if i < len(values) {
			value = values[i]
		}
		if o.value != nil {
			value = o.value(value)
		}
		out = append(out, metrics.Label{Name: name, Value: value})
	}
	return out
}

// count adds n in two parts: a sink takes 24 bits of a number.
func (o *outlet) count(m Metric, n uint64, values []string) {
	key, labels := o.name(m), o.labels(m, values)
	const low = 1<<24 - 1
	if high := n &^ low; high > 0 {
		o.to.IncrCounterWithLabels(key, float32(high), labels)
	}
	if n&low > 0 || n == 0 {
		o.to.IncrCounterWithLabels(key, float32(n&low), labels)
	}
}

func (o *outlet) time(m Metric, took time.Duration, values []string) {
	o.to.AddSampleWithLabels(o.name(m), float32(float64(took)/float64(o.unit)), o.labels(m, values))
}

func (o *outlet) gauge(m Metric, v float64, values []string) {
	if o.standard && m.Standard != "" {
		return
	}
	o.to.SetPrecisionGaugeWithLabels(o.name(m), v, o.labels(m, values))
}
