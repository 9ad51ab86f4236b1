package main

import (
	"fmt"
	"slices"
	"strings"
)

// library is a contender of BENCH_PEER: the program of the library that the backend wireguard uses; see
// examples/bench/wireguard-go.sh.
const library = "wireguard-go"

// An aim is the target for one of a contender's figures: a minimum or a maximum, as a number or as a share of another
// contender's figure in the same run.
type aim struct {
	Contender string  `json:"contender"`
	Figure    string  `json:"figure"` // the figure's key
	Least     float64 `json:"at_least,omitempty"`
	Most      float64 `json:"at_most,omitempty"`
	Of        string  `json:"of,omitempty"` // the other contender; "" for a number in the figure's unit
	// Got is the median, or its share of the other's. It is nil if there is nothing to compare with.
	Got     *float64 `json:"got,omitempty"`
	Reached bool     `json:"reached"`
}

// aims returns the aims, which hold for two CPUs.
func aims() []*aim {
	return []*aim{
		{Contender: udp, Figure: tcp(1), Least: 0.45, Of: vxlan},
		{Contender: udp, Figure: tcp(1), Least: 15 * 0.37}, // 0.37 Gb/s is flannel's udp in this topology
		{Contender: udp, Figure: tcp(4), Least: 0.40, Of: vxlan},
		{Contender: udp, Figure: udpReceived(64), Least: 85},
		{Contender: udp, Figure: "ping_average", Most: 150},
		{Contender: udp, Figure: meanCPU(1), Most: 0.9},
		{Contender: wg, Figure: tcp(1), Least: 3},
		{Contender: wg, Figure: tcp(1), Least: 1, Of: library},
	}
}

// hasAims reports whether a contender of this name has aims.
func hasAims(name string) bool {
	return slices.ContainsFunc(aims(), func(a *aim) bool { return a.Contender == name })
}

// judge fills in the result.
func (a *aim) judge(own, other *series) {
	got := own.Median
	if a.Of != "" {
		if other == nil || other.Median == 0 {
			return
		}
		got /= other.Median
	}
	a.Got = &got
	a.Reached = got >= a.Least && (a.Most == 0 || got <= a.Most)
}

func (a *aim) String() string {
	bound, than := a.Least, "≥"
	if a.Most > 0 {
		bound, than = a.Most, "≤"
	}
	text := fmt.Sprintf("%s %.4g", than, bound)
	if a.Of != "" {
		text = fmt.Sprintf("%s %.2f of %s", than, bound, a.Of)
	}
	text = a.Contender + " " + text
	switch {
	case a.Got == nil:
		return text + ": not compared"
	case a.Reached:
		return text + ": reached"
	}
	return text + ": missed"
}

// aimsOf describes the aims for a figure.
func (r *result) aimsOf(f figure) string {
	var parts []string
	for _, a := range r.Aims {
		if a.Figure == f.Key {
			parts = append(parts, a.String())
		}
	}
	return strings.Join(parts, ", ")
}

// judge evaluates the aims of all contenders that take part.
func (r *result) judge() {
	for _, a := range aims() {
		c := r.contender(a.Contender)
		if c == nil {
			continue
		}
		var other *series
		if o := r.contender(a.Of); o != nil {
			other = o.Values[a.Figure]
		}
		a.judge(c.Values[a.Figure], other)
		r.Aims = append(r.Aims, a)
	}
}
