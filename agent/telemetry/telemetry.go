// Package telemetry keeps what an agent counts and measures, and exposes it: as JSON of the last ten seconds, in the
// Prometheus format, and to statsd and dogstatsd.
//
// It owns the table of all metrics and their sinks. The sinks are those of go-metrics, without any global state of
// the process. It does not know where a value comes from.
package telemetry

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-metrics"
)

// Interval is the period that the JSON sums up, and how often gauges are sent.
const Interval = 10 * time.Second

// kept is how long the JSON's intervals stay in memory: the one that is shown and the current one.
const kept = 3 * Interval

// Config configures where metrics go, besides memory.
type Config struct {
	Retention time.Duration // of a metric without events, in the Prometheus format; 0 turns that off
	Statsd    string        // host:port, "" for none
	Dogstatsd string        // host:port, "" for none
	Host      string        // in the names of the gauges sent to statsd, "" to leave it out
}

// Telemetry collects metrics. All methods may be called at any time, by any goroutine, and on nil, which keeps
// nothing.
type Telemetry struct {
	log    hclog.Logger
	source func(*Reading)
	table  map[string]Metric
	memory *metrics.InmemSink
	recent *outlet // memory

	reading sync.Mutex       // held while the source fills a reading
	totals  map[string]total // by metric, part and labels
	rounds  int

	mu      sync.RWMutex // held, for reading, while values go to the outlets below
	config  Config
	exposed *exposition // nil without the Prometheus format
	senders []*outlet
	unsent  bool // a sender could not be made; tried again
}

// New returns a Telemetry that asks source for gauges and totals whenever they are shown or sent. It touches nothing
// outside the process before Run.
func New(c Config, log hclog.Logger, source func(*Reading)) *Telemetry {
	memory := metrics.NewInmemSink(Interval, kept)
	t := &Telemetry{log: log, source: source, table: byName(), memory: memory, totals: map[string]total{},
		config: c, exposed: newExposition(c.Retention), recent: newOutlet(memory, "", time.Millisecond)}
	return t
}

// Run sends metrics until ctx ends, and returns its error.
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
		// One second into each of the JSON's intervals, so that every interval has gauges.
		timer := time.NewTimer(time.Until(time.Now().Truncate(Interval).Add(Interval + time.Second)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// push gives the current gauges to memory and the senders.
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

// Reconfigure changes where metrics go. Counts stay, except that the Prometheus format starts again when its
// retention changes.
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

// add adds to a counter in the Prometheus format and, if happened is set, everywhere.
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

// Time records how long something took.
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

// Result returns OK, or Failed for an error.
func Result(err error) string {
	if err != nil {
		return Failed
	}
	return OK
}

// outlet is one sink with its naming.
type outlet struct {
	to       *metrics.Metrics
	unit     time.Duration // of times
	name     func(Metric) []string
	value    func(string) string // changes a label's value; nil leaves it as it is
	standard bool                // metrics that have a standard name are exposed elsewhere
	shutdown func()              // nil if there is nothing to shut down
	closed   bool                // after shutdown
}

// newOutlet returns an outlet that names metrics with dots, and gauges with the host unless that is "".
func newOutlet(sink metrics.MetricSink, host string, unit time.Duration) *outlet {
	to, err := metrics.New(&metrics.Config{ServiceName: Prefix, HostName: host, EnableHostname: host != "", FilterDefault: true}, sink)
	if err != nil {
		to = &metrics.Metrics{} // New returns no error here
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

// count adds n in two parts, because a sink keeps only 24 bits of a number.
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
