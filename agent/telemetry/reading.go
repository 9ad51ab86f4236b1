package telemetry

import "maps"

// Reading is one round of gauges and totals: values of current state, and counts kept elsewhere.
type Reading struct {
	t       *Telemetry
	give    func(func(*outlet)) // calls its argument with each outlet the gauges are for
	exposed bool                // for Prometheus
}

// ask lets the source fill a reading; the caller holds reading.
func (t *Telemetry) ask(exposed bool, give func(func(*outlet))) {
	t.forget()
	if t.source != nil {
		t.source(&Reading{t, give, exposed})
	}
}

// Gauge sets a gauge. A gauge that a round does not set disappears.
func (r *Reading) Gauge(name string, v float64, values ...string) {
	m := r.t.table[name]
	r.give(func(o *outlet) { o.gauge(m, v, values) })
}

// Flag sets a gauge to 1 or 0.
func (r *Reading) Flag(name string, set bool, values ...string) {
	v := 0.0
	if set {
		v = 1
	}
	r.Gauge(name, v, values...)
}

// Exists makes a counter appear in the Prometheus format before its first event, and keeps it. The other formats
// leave out counters without events.
func (r *Reading) Exists(name string, values ...string) {
	if r.exposed {
		r.t.add(name, 0, values, false)
	}
}

// Total raises a counter to a total that another component has counted, starting from 0 again when that total became
// less. Parts are counted separately and shown as one. The count before the first round appears only in the
// Prometheus format, which has totals: for the other formats it did not happen now.
func (r *Reading) Total(name, part string, n uint64, values ...string) {
	key := name + "\x00" + part
	for _, v := range values {
		key += "\x00" + v
	}
	last, known := r.t.totals[key]
	r.t.totals[key] = total{n, r.t.rounds}
	if n < last.n {
		last.n = 0
	}
	r.t.add(name, n-last.n, values, known && n > last.n)
}

// total holds the last value read, and when.
type total struct {
	n     uint64
	round int
}

// oblivion is the number of rounds without it after which a total is forgotten.
const oblivion = 100

// forget drops totals that are no longer counted.
func (t *Telemetry) forget() {
	t.rounds++
	if t.rounds%oblivion == 0 {
		maps.DeleteFunc(t.totals, func(_ string, last total) bool { return t.rounds-last.round > oblivion })
	}
}
