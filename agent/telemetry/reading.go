package telemetry

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Reading is one round of gauges and totals: values of current state, and counts kept elsewhere.
type Reading struct {
	t        *Telemetry
	gauges   []gauge
	rises    map[string]*gauge // by how much counters have risen, by metric and labels
	networks map[string]bool
}

// gauge is the current value of a gauge, or the rise of a counter.
type gauge struct {
	metric *metric
	values []string
	value  float64
}

// read lets the source fill a Reading.
func (t *Telemetry) read() []gauge {
	t.reading.Lock()
	defer t.reading.Unlock()
	r := &Reading{t: t, rises: map[string]*gauge{}, networks: map[string]bool{}}
	t.rounds++
	if t.source != nil {
		t.source(r)
	}
	t.emit(func(s *sender) (lines []string) {
		for _, c := range r.rises {
			lines = append(lines, s.line(c.metric, c.values, c.value, "c"))
		}
		return lines
	})
	if t.rounds%oblivion == 0 {
		maps.DeleteFunc(t.totals, func(_ string, last total) bool { return t.rounds-last.round > oblivion })
	}
	t.forgetNetworks(r.networks)
	return r.gauges
}

// forgetNetworks drops the counters and times of networks that were not in a Reading for the retention.
func (t *Telemetry) forgetNetworks(present map[string]bool) {
	now := time.Now()
	for n := range present {
		t.left[n] = now
	}
	for n, last := range t.left {
		if now.Sub(last) <= t.currentConfig().Retention {
			continue
		}
		delete(t.left, n)
		for _, m := range t.table {
			switch labels := (prometheus.Labels{"network": n}); {
			case m.count != nil:
				m.count.DeletePartialMatch(labels)
			case m.time != nil:
				m.time.DeletePartialMatch(labels)
			}
		}
	}
}

// saw notes the network of a series.
func (r *Reading) saw(m *metric, values []string) {
	if i := slices.Index(m.Labels, "network"); i >= 0 && i < len(values) && values[i] != "" {
		r.networks[values[i]] = true
	}
}

// Gauge sets a gauge. A gauge that a round does not set disappears.
func (r *Reading) Gauge(name string, v float64, values ...string) {
	m := r.t.table[name]
	r.saw(m, values)
	r.gauges = append(r.gauges, gauge{m, m.identifiers(values), v})
}

// Flag sets a gauge to 1 or 0.
func (r *Reading) Flag(name string, set bool, values ...string) {
	v := 0.0
	if set {
		v = 1
	}
	r.Gauge(name, v, values...)
}

// Exists makes a counter appear before its first event.
func (r *Reading) Exists(name string, values ...string) {
	m := r.t.table[name]
	r.saw(m, values)
	m.add(m.identifiers(values), 0)
}

// Total raises a counter to a total that another component has counted, starting from 0 again when that total became
// less. Parts are counted separately and shown as one. The count before the first round is not sent to statsd, for
// which it did not happen now.
func (r *Reading) Total(name, part string, n uint64, values ...string) {
	m := r.t.table[name]
	r.saw(m, values)
	values = m.identifiers(values)
	series := name + "\x00" + strings.Join(values, "\x00")
	key := part + "\x00" + series
	last, known := r.t.totals[key]
	r.t.totals[key] = total{n, r.t.rounds}
	if n < last.n {
		last.n = 0
	}
	m.add(values, n-last.n)
	if !known || n == last.n {
		return
	}
	if r.rises[series] == nil {
		r.rises[series] = &gauge{metric: m, values: values}
	}
	r.rises[series].value += float64(n - last.n)
}

// total holds the last value read, and when.
type total struct {
	n     uint64
	round int
}

// oblivion is the number of rounds without it after which a total is forgotten.
const oblivion = 100
