package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/lenonet/leno/e2e/probe"
)

// result is everything that was measured, and on what.
type result struct {
	*probe.Machine
	Rounds     int       `json:"rounds"`
	Seconds    int       `json:"seconds"` // of each throughput
	Pings      int       `json:"pings"`   // of each ping
	Figures    []figure  `json:"figures"`
	Contenders []*column `json:"contenders"`
}

// column is one contender of the result.
type column struct {
	Name   string             `json:"name"`
	MTU    int                `json:"mtu"`
	Values map[string]*series `json:"values"` // by the figure's key

	agent bool
}

// series is one figure of one contender.
type series struct {
	summary
	// Median in relation to that of the same figure of these two, where they
	// take part and it is not 0.
	ToRaw   float64   `json:"to_raw,omitempty"`
	ToVXLAN float64   `json:"to_vxlan,omitempty"`
	Rounds  []float64 `json:"rounds"`
}

func newResult(m *probe.Machine, o options, contenders []*contender) *result {
	r := &result{Machine: m, Rounds: o.rounds, Seconds: o.seconds, Pings: o.pings, Figures: figures()}
	for _, c := range contenders {
		r.Contenders = append(r.Contenders, &column{Name: c.name, MTU: c.mtu, Values: map[string]*series{}, agent: c.hosts != nil})
	}
	return r
}

// contender finds a column; nil when it does not take part.
func (r *result) contender(name string) *column {
	for _, c := range r.Contenders {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// add takes down what a round measured of a contender.
func (r *result) add(name string, got values) {
	c := r.contender(name)
	for key, value := range got {
		if c.Values[key] == nil {
			c.Values[key] = &series{}
		}
		c.Values[key].Rounds = append(c.Values[key].Rounds, value)
	}
}

func (r *result) finish() {
	r.Machine.Finish()
	for _, c := range r.Contenders {
		for _, s := range c.Values {
			s.summary = summarize(s.Rounds)
		}
	}
	for _, c := range r.Contenders {
		for key, s := range c.Values {
			s.ToRaw, s.ToVXLAN = r.ratio(s, raw, key), r.ratio(s, "vxlan", key)
		}
	}
}

// ratio is 0 without anything to compare with.
func (r *result) ratio(s *series, to, key string) float64 {
	c := r.contender(to)
	if c == nil || c.Values[key] == nil || c.Values[key].Median == 0 {
		return 0
	}
	return s.Median / c.Values[key].Median
}

func (r *result) json(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

func (r *result) table(out io.Writer) error {
	if err := r.Machine.Write(out); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d rounds, %d s each throughput, %d pings: median, lowest and highest\n\n", r.Rounds, r.Seconds, r.Pings)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "WHAT")
	for _, c := range r.Contenders {
		fmt.Fprintf(w, "\t%s, MTU %d", c.Name, c.MTU)
	}
	fmt.Fprintln(w)
	for _, f := range r.Figures {
		fmt.Fprintf(w, "%s, %s", f.Name, f.Unit)
		for _, c := range r.Contenders {
			fmt.Fprintf(w, "\t%s", f.cell(c.Values[f.Key]))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// cell spells a figure of a contender.
func (f figure) cell(s *series) string {
	if s == nil {
		return "-"
	}
	text := fmt.Sprintf("%.*f", f.digits, s.Median)
	if len(s.Rounds) > 1 {
		text += fmt.Sprintf(" (%.*f-%.*f)", f.digits, s.Min, f.digits, s.Max)
	}
	return text
}

// save writes the result into a directory.
func (r *result) save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, write := range map[string]func(io.Writer) error{"result.txt": r.table, "result.json": r.json} {
		if err := writeFile(filepath.Join(dir, name), write); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(path string, write func(io.Writer) error) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := write(file); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}
