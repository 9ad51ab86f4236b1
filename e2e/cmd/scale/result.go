package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lenonet/leno/e2e/probe"
)

// A result holds everything that was measured, and a description of the machine.
type result struct {
	*probe.Machine
	Watching []*row    `json:"watching"`
	Figures  []*figure `json:"figures"`

	prefix string // of the names of figures: "etcd: "
}

// A row is one event at one size with one layout. All values are totals of all watchers until the
// traffic has stopped.
type row struct {
	Leases   int      `json:"leases"`
	Watchers int      `json:"watchers"`
	Event    string   `json:"event"`
	Layout   string   `json:"layout"`
	Median   values   `json:"median"`
	Aim      *values  `json:"aim,omitempty"` // the maximum, where it is not 0
	Values   []values `json:"values"`        // in the order in which they were measured
}

// values are the numbers of one sample.
type values struct {
	Seen      float64 `json:"seen_s,omitempty"` // until the last watcher has seen it
	Each      float64 `json:"bytes_a_watcher,omitempty"`
	Bytes     float64 `json:"bytes,omitempty"`
	Reads     float64 `json:"views_a_watcher,omitempty"`
	Failures  float64 `json:"failed_reads,omitempty"`
	ServerCPU float64 `json:"server_cpu_s,omitempty"`
	ClientCPU float64 `json:"client_cpu_s,omitempty"`
}

// An aim is a maximum; 0 is none.
type aim struct {
	seen        time.Duration
	each, bytes float64
}

// row records one sample.
func (r *result) row(s size, event, how string, got sample) {
	i := slices.IndexFunc(r.Watching, func(o *row) bool {
		return o.Leases == s.leases && o.Watchers == s.watchers && o.Event == event && o.Layout == how
	})
	if i < 0 {
		i = len(r.Watching)
		added := &row{Leases: s.leases, Watchers: s.watchers, Event: event, Layout: how}
		if a, ok := aims[s][event]; ok && how == leno.name {
			added.Aim = &values{Seen: a.seen.Seconds(), Each: a.each, Bytes: a.bytes}
		}
		r.Watching = append(r.Watching, added)
	}
	n := float64(s.watchers)
	r.Watching[i].Values = append(r.Watching[i].Values, values{
		Seen: got.seen.Seconds(), Bytes: float64(got.bytes), Each: float64(got.bytes) / n, Reads: float64(got.reads) / n,
		Failures: float64(got.failures), ServerCPU: got.servers.Seconds(), ClientCPU: got.clients.Seconds(),
	})
}

// A figure is one number that is not about watching.
type figure struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Aim   float64 `json:"aim,omitempty"` // the maximum
	Value float64 `json:"value"`
}

func (r *result) add(name, unit string, aim, value float64) {
	r.Figures = append(r.Figures, &figure{r.prefix + name, unit, aim, value})
}

func (r *result) seconds(name string, aim float64, d time.Duration) {
	r.add(name, "s", aim, d.Seconds())
}

func (r *result) memory(name string, f footprint) {
	r.add(name+": resident", "MiB", 0, f.Resident)
	r.add(name+": of that heap and stacks", "MiB", 0, f.Heap)
	r.add(name+": most ever resident", "MiB", 0, f.Most)
}

func (r *result) finish() {
	r.Machine.Finish()
	for _, row := range r.Watching {
		median := func(of func(values) float64) float64 {
			var all []float64
			for _, v := range row.Values {
				all = append(all, of(v))
			}
			slices.Sort(all)
			n := len(all)
			return (all[(n-1)/2] + all[n/2]) / 2
		}
		row.Median = values{
			Seen:      median(func(v values) float64 { return v.Seen }),
			Each:      median(func(v values) float64 { return v.Each }),
			Bytes:     median(func(v values) float64 { return v.Bytes }),
			Reads:     median(func(v values) float64 { return v.Reads }),
			Failures:  median(func(v values) float64 { return v.Failures }),
			ServerCPU: median(func(v values) float64 { return v.ServerCPU }),
			ClientCPU: median(func(v values) float64 { return v.ClientCPU }),
		}
	}
	// Layouts are next to each other in the table, but were measured one after the other.
	order := map[string]int{}
	for i, row := range r.Watching {
		key := fmt.Sprint(row.Leases, row.Watchers)
		for _, key := range []string{key, key + row.Event} {
			if _, ok := order[key]; !ok {
				order[key] = i
			}
		}
	}
	slices.SortStableFunc(r.Watching, func(a, b *row) int {
		aSize, bSize := fmt.Sprint(a.Leases, a.Watchers), fmt.Sprint(b.Leases, b.Watchers)
		return cmp.Or(cmp.Compare(order[aSize], order[bSize]), cmp.Compare(order[aSize+a.Event], order[bSize+b.Event]))
	})
}

func (r *result) table(out io.Writer) error {
	if err := r.Machine.Write(out); err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	var at size
	for _, row := range r.Watching {
		if s := (size{row.Leases, row.Watchers}); s != at {
			at = s
			fmt.Fprintf(w, "%d LEASES, %d WATCHERS\tLAYOUT\tSEEN BY ALL\tA WATCHER\tALL\tVIEWS\tSERVER CPU\tCLIENT CPU\tRUNS\tAIM\n", s.leases, s.watchers)
		}
		v := row.Median
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%.1f\t%s\t%s\t%d\t%s\n", row.Event, row.Layout,
			seconds(v.Seen), bytesOf(v.Each), bytesOf(v.Bytes), v.Reads, seconds(v.ServerCPU), seconds(v.ClientCPU), len(row.Values), row.aim())
	}
	fmt.Fprintln(w)
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "WHAT\tVALUE\tAIM")
	for _, f := range r.Figures {
		text := ""
		if f.Aim > 0 {
			text = verdict(f.in(f.Aim), f.Value <= f.Aim)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.Name, f.in(f.Value), text)
	}
	return w.Flush()
}

// aim describes the aim and whether it was met.
func (r *row) aim() string {
	if r.Aim == nil {
		return ""
	}
	var parts []string
	for _, p := range []struct {
		aim, got float64
		spell    func(float64) string
	}{{r.Aim.Seen, r.Median.Seen, seconds}, {r.Aim.Each, r.Median.Each, bytesOf}, {r.Aim.Bytes, r.Median.Bytes, bytesOf}} {
		if p.aim > 0 {
			parts = append(parts, verdict(p.spell(p.aim), p.got <= p.aim))
		}
	}
	return strings.Join(parts, "; ")
}

func verdict(aim string, met bool) string {
	if met {
		return aim + ", met"
	}
	return aim + ", missed"
}

// in formats a value for people.
func (f *figure) in(value float64) string {
	switch f.Unit {
	case "s":
		return seconds(value)
	case "B":
		return bytesOf(value)
	case "":
		return fmt.Sprintf("%.0f", value)
	case "times":
		return fmt.Sprintf("%.2f times", value)
	}
	return fmt.Sprintf("%.1f %s", value, f.Unit)
}

func seconds(s float64) string {
	switch {
	case s == 0:
		return "-"
	case s < 0.0009995:
		return fmt.Sprintf("%.0f µs", s*1e6)
	case s < 0.9995:
		return fmt.Sprintf("%.0f ms", s*1e3)
	}
	return fmt.Sprintf("%.2f s", s)
}

func bytesOf(b float64) string {
	switch {
	case b < 9995:
		return fmt.Sprintf("%.0f B", b)
	case b < 999500:
		return fmt.Sprintf("%.0f kB", b/1e3)
	}
	return fmt.Sprintf("%.1f MB", b/1e6)
}
