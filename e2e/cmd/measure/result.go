package main

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// result is everything that was measured, and on what.
type result struct {
	Date   string `json:"date"`
	CPUs   int    `json:"cpus"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"` // that built leno
	Leno   string `json:"leno"`
	Consul string `json:"consul"`
	// LoadBefore and LoadAfter are the machine's load averages: what else ran
	// is in the figures too.
	LoadBefore string    `json:"load_before"`
	LoadAfter  string    `json:"load_after"`
	Figures    []*figure `json:"figures"`
}

// figure is one thing measured several times.
type figure struct {
	Name   string    `json:"name"`
	Unit   string    `json:"unit"`
	Target float64   `json:"target,omitempty"` // at most this
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Values []float64 `json:"values"` // in the order they were taken
}

func newResult(ctx context.Context, leno, consul string) (*result, error) {
	r := &result{Date: time.Now().UTC().Format(time.DateOnly), CPUs: runtime.NumCPU(), LoadBefore: load()}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return nil, fmt.Errorf("uname: %w", err)
	}
	r.Kernel = unix.ByteSliceToString(name.Release[:])
	info, err := buildinfo.ReadFile(leno)
	if err != nil {
		return nil, fmt.Errorf("no leno to measure: %w", err)
	}
	for _, s := range info.Settings {
		if s.Key == "-race" && s.Value == "true" {
			return nil, fmt.Errorf("%s has the race detector in it: measure what `make build` makes", leno)
		}
	}
	r.Go = info.GoVersion
	if r.Leno, err = version(ctx, leno); err != nil {
		return nil, err
	}
	r.Consul, err = version(ctx, consul)
	return r, err
}

// version is the first line a program prints about itself.
func version(ctx context.Context, program string) (string, error) {
	out, err := exec.CommandContext(ctx, program, "version").Output()
	if err != nil {
		return "", fmt.Errorf("%s version: %w", program, err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line, nil
}

func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}

// add takes down one value. A figure appears where its first value came in.
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
	r.LoadAfter = load()
	for _, f := range r.Figures {
		sorted := slices.Sorted(slices.Values(f.Values))
		n := len(sorted)
		f.Min, f.Max = sorted[0], sorted[n-1]
		f.Median = (sorted[(n-1)/2] + sorted[n/2]) / 2
	}
}

func (r *result) json(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

func (r *result) table(out io.Writer) error {
	fmt.Fprintf(out, "%s, %d CPUs, Linux %s, %s\n%s, %s\nload average %s before, %s after\n\n",
		r.Date, r.CPUs, r.Kernel, r.Go, r.Leno, r.Consul, r.LoadBefore, r.LoadAfter)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT\tMEDIAN\tRANGE\tRUNS\tTARGET")
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
	return w.Flush()
}

// in spells a value for people.
func (f *figure) in(value float64) string {
	switch {
	case f.Unit == "s" && value < 0.9995:
		return fmt.Sprintf("%.1f ms", value*1000)
	case f.Unit == "s":
		return fmt.Sprintf("%.2f s", value)
	}
	return fmt.Sprintf("%.1f %s", value, f.Unit)
}
