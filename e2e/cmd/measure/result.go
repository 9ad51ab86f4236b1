package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/lenonet/leno/e2e/probe"
)

// A result holds everything that was measured, and a description of the machine.
type result struct {
	*probe.Machine
	Figures   []*figure `json:"figures"`
	Crossings []crossed `json:"crossings,omitempty"`
}

// A figure is a value that was measured several times.
type figure struct {
	Name   string    `json:"name"`
	Unit   string    `json:"unit"`
	Target float64   `json:"target,omitempty"` // the maximum
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Values []float64 `json:"values"` // in the order in which they were measured
}

func newResult(ctx context.Context, leno, consul string) (*result, error) {
	machine, err := probe.NewMachine(ctx, leno, consul)
	return &result{Machine: machine}, err
}

// add records one value. Figures are listed in the order of their first values.
func (r *result) add(name, unit string, target, value float64) {
	i := slices.IndexFunc(r.Figures, func(f *figure) bool { return f.Name == name })
	if i < 0 {
		i = len(r.Figures)
		r.Figures = append(r.Figures, &figure{Name: name, Unit: unit, Target: target})
	}
	r.Figures[i].Values = append(r.Figures[i].Values, value)
}

func (r *result) seconds(name string, target float64, d time.Duration) {
	r.add(name, "s", target, d.Seconds())
}

func (r *result) finish() {
	r.Machine.Finish()
	for _, f := range r.Figures {
		sorted := slices.Sorted(slices.Values(f.Values))
		n := len(sorted)
		f.Min, f.Max = sorted[0], sorted[n-1]
		f.Median = (sorted[(n-1)/2] + sorted[n/2]) / 2
	}
}

func (r *result) table(out io.Writer) error {
	if err := r.Machine.Write(out); err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(r.Figures) > 0 {
		fmt.Fprintln(w, "WHAT\tMEDIAN\tRANGE\tRUNS\tTARGET")
	}
	for _, f := range r.Figures {
		target := ""
		if f.Target > 0 {
			target = f.in(f.Target)
			if f.Median > f.Target {
				target += ", missed"
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s .. %s\t%d\t%s\n", f.Name, f.in(f.Median), f.in(f.Min), f.in(f.Max), len(f.Values), target)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return r.crossings(out)
}

// in formats a value for people.
func (f *figure) in(value float64) string {
	switch {
	case f.Unit == "s" && value < 0.9995:
		return fmt.Sprintf("%.1f ms", value*1000)
	case f.Unit == "s":
		return fmt.Sprintf("%.2f s", value)
	case f.Unit == "%":
		return fmt.Sprintf("%.2f %%", value)
	}
	return fmt.Sprintf("%.1f %s", value, f.Unit)
}
