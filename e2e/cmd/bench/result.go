package main

import (
	"io"
	"os"
	"path/filepath"

	"github.com/lenonet/leno/e2e/probe"
	"github.com/lenonet/leno/e2e/program"
)

// A result holds everything that was measured, and a description of the machine.
type result struct {
	*probe.Machine
	Rounds     int       `json:"rounds"`
	Seconds    int       `json:"seconds"` // per throughput
	Pings      int       `json:"pings"`   // per measurement
	Figures    []figure  `json:"figures"`
	Contenders []*column `json:"contenders"`
	Aims       []*aim    `json:"aims,omitempty"`
}

// A column is one contender of the result.
type column struct {
	Name    string             `json:"name"`
	Command string             `json:"command,omitempty"` // of another overlay
	MTU     int                `json:"mtu"`
	Values  map[string]*series `json:"values"` // by the figure's key
}

// A series is one figure of one contender.
type series struct {
	summary
	// ToRaw and ToVXLAN are the ratios of the median to that of the same figure of these two
	// contenders, if they take part and theirs is not 0.
	ToRaw   float64   `json:"to_raw,omitempty"`
	ToVXLAN float64   `json:"to_vxlan,omitempty"`
	Rounds  []float64 `json:"rounds"`
}

func newResult(m *probe.Machine, o options, contenders []*contender) *result {
	r := &result{Machine: m, Rounds: o.rounds, Seconds: o.seconds, Pings: o.pings, Figures: figures()}
	for _, c := range contenders {
		r.Contenders = append(r.Contenders, &column{Name: c.name, Command: c.command, MTU: c.mtu, Values: map[string]*series{}})
	}
	return r
}

// contender returns a contender's column, or nil if it does not take part.
func (r *result) contender(name string) *column {
	for _, c := range r.Contenders {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// add records the results of a round of a contender.
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
			s.ToRaw, s.ToVXLAN = r.ratio(s, raw, key), r.ratio(s, vxlan, key)
		}
	}
	r.judge()
}

// ratio returns 0 if there is nothing to compare with.
func (r *result) ratio(s *series, to, key string) float64 {
	c := r.contender(to)
	if c == nil || c.Values[key] == nil || c.Values[key].Median == 0 {
		return 0
	}
	return s.Median / c.Values[key].Median
}

func (r *result) json(out io.Writer) error { return program.WriteJSON(out, r) }

// save writes the result to a directory.
func (r *result) save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, write := range map[string]func(io.Writer) error{
		"result.txt": r.table, "result.json": r.json, "result.md": r.markdown, "result.svg": r.plot,
	} {
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
