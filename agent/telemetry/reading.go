package telemetry

import "maps"

// Reading is one round of gauges and totals: whatever is as it stands now, or is
// counted somewhere else.
type Reading struct {
	t       *Telemetry
	give    func(func(*outlet)) // calls with each outlet the gauges are for
	exposed bool                // for Prometheus
}

// ask has the source fill a reading; reading is held.
func (t *Telemetry) ask(exposed bool, give func(func(*outlet))) {
	t.forget()
	if t.source != nil {
		t.source(&Reading{t, give, exposed})
	}
}

// Gauge sets a gauge. What a round does not set is not shown any more.
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

// Exists has a counter there for Prometheus, though nothing has happened yet, and
// keeps it. Elsewhere what does not happen is not told.
func (r *Reading) Exists(name string, values ...string) {
	if r.exposed {
		r.t.add(name, 0, values, false)
	}
}

// Total brings a counter to what somebody else has counted, from 0 again when that
// became less. Parts are counted apart and shown as one. What was counted before
// the first round is only shown in the Prometheus format, which has totals:
// elsewhere it did not happen now.
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

// total is what was read last, and when.
type total struct {
	n     uint64
	round int
}

// oblivion is after how many rounds without it a total is forgotten.
const oblivion = 100

// forget drops what is not counted any more.
func (t *Telemetry) forget() {
	t.rounds++
	if t.rounds%oblivion == 0 {
		maps.DeleteFunc(t.totals, func(_ string, last total) bool { return t.rounds-last.round > oblivion })
	}
}
