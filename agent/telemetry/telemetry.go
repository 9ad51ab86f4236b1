// Package telemetry keeps what an agent counts and measures, and exposes it to Prometheus, as JSON, and to statsd and
// dogstatsd.
//
// It owns the table of all metrics. Counters and histograms are those of Prometheus' client library; gauges are read
// from the agent whenever they are shown or sent. It does not know where a value comes from.
package telemetry

import (
	"context"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/agent/watch"
)

// Interval is how often gauges are sent.
const Interval = 10 * time.Second

// Config configures where metrics go.
type Config struct {
	Retention time.Duration // of the metrics of a network that this host has left; 0 turns the Prometheus format off
	Address   string        // host:port of a listener for /metrics alone, "" for none
	Statsd    string        // host:port, "" for none
	Dogstatsd string        // host:port, "" for none
	Host      string        // in the names of the gauges sent to statsd, "" to leave it out
}

// Telemetry collects metrics. All methods may be called at any time, by any goroutine, and on nil, which keeps
// nothing.
type Telemetry struct {
	log    hclog.Logger
	source func(*Reading)
	config *watch.Value[Config]
	events *prometheus.Registry // counters and times
	table  map[string]*metric   // by name
	listen *watch.Value[attempt]

	reading sync.Mutex           // held while the source fills a Reading
	totals  map[string]total     // by metric, part and labels
	left    map[string]time.Time // when a network was last in a Reading
	rounds  int

	mu      sync.RWMutex
	senders []*sender
}

// metric is a metric of the table with what keeps its values: desc for a gauge, count for a counter, time for a timer.
type metric struct {
	Metric
	desc  *prometheus.Desc
	count *prometheus.CounterVec
	time  *prometheus.HistogramVec
}

// New returns a Telemetry that asks source for gauges and totals whenever they are shown or sent. It touches nothing
// outside the process before Run.
func New(c Config, log hclog.Logger, source func(*Reading)) *Telemetry {
	t := &Telemetry{
		log:    log,
		source: source,
		config: watch.New[Config](),
		events: prometheus.NewRegistry(),
		table:  map[string]*metric{},
		listen: watch.New[attempt](),
		totals: map[string]total{},
		left:   map[string]time.Time{},
	}
	t.config.Set(c)
	for _, row := range Table() {
		t.table[row.Name] = newMetric(row, t.events)
	}
	// The metrics of every Go program.
	t.events.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return t
}

// Hosts are the names of this host. A page whose name is pointed at this host after it was loaded (DNS rebinding) must
// not read metrics.
type Hosts interface {
	// Check returns an error if a request's Host is not a name of this host.
	Check(host string) error
	// Learn finds out the names that requests to a listener may have, until ctx ends.
	Learn(ctx context.Context, listener net.Addr, secured bool)
}

// Run serves and sends metrics until ctx ends, and returns its error. It serves them to requests for hosts.
func (t *Telemetry) Run(ctx context.Context, hosts Hosts) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return t.serve(ctx, hosts) })
	g.Go(func() error { return t.send(ctx) })
	return g.Wait()
}

// Reconfigure changes where metrics go. Counts stay. The error says why they cannot be served at the address; Run goes
// on trying.
func (t *Telemetry) Reconfigure(c Config) error {
	if t == nil {
		return nil
	}
	last, _, next := t.listen.Get()
	t.config.Set(c)
	if c.Address == "" || last == (attempt{address: c.Address}) {
		return nil
	}
	for timeout := time.After(listenTime); ; {
		select {
		case <-next:
		case <-timeout:
			return nil
		}
		if last, _, next = t.listen.Get(); last.address == c.Address {
			return last.err
		}
	}
}

func (t *Telemetry) currentConfig() Config {
	c, _, _ := t.config.Get()
	return c
}

// Count adds to a counter. values are those of its labels, in their order.
func (t *Telemetry) Count(name string, n int, values ...string) {
	if t == nil || n == 0 {
		return
	}
	m := t.table[name]
	values = m.identifiers(values)
	m.add(values, uint64(n))
	t.emit(func(s *sender) []string { return []string{s.line(m, values, float64(n), "c")} })
}

// add adds to a counter.
func (m *metric) add(values []string, n uint64) {
	if counter, err := m.count.GetMetricWithLabelValues(values...); err == nil {
		counter.Add(float64(n))
	}
}

// Time records how long something took.
func (t *Telemetry) Time(name string, took time.Duration, values ...string) {
	if t == nil {
		return
	}
	m := t.table[name]
	values = m.identifiers(values)
	if histogram, err := m.time.GetMetricWithLabelValues(values...); err == nil {
		histogram.Observe(took.Seconds())
	}
	t.emit(func(s *sender) []string {
		return []string{s.line(m, values, float64(took)/float64(time.Millisecond), "ms")}
	})
}

// identifiers returns one value for each label. A label of which the agent has a sentence, such as a fault, gets an
// identifier instead: "device was down" becomes device_was_down.
func (m *metric) identifiers(values []string) []string {
	out := make([]string, len(m.Labels))
	copy(out, values)
	for i := range out {
		if m.Labels[i] == "fault" {
			out[i] = strings.ReplaceAll(plain(out[i]), "-", "_")
		}
	}
	return out
}

// Results that counters distinguish.
const (
	OK     = "ok"
	Failed = "failed"
)

// Result returns OK, or Failed for an error.
func Result(err error) string {
	if err != nil {
		return Failed
	}
	return OK
}
