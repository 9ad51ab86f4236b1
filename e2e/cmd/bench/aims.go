package main

import (
	"fmt"
	"strings"
)

// candidate is the contender that has aims.
const candidate = udp

// An aim is the target for one of the candidate's figures: a minimum or a maximum, as a number or
// as a share of vxlan's figure in the same run.
type aim struct {
	Figure string  `json:"figure"` // the figure's key
	Least  float64 `json:"at_least,omitempty"`
	Most   float64 `json:"at_most,omitempty"`
	Share  bool    `json:"of_vxlan,omitempty"` // a share of vxlan's figure instead of a number in the figure's unit
	// Got is the median, or its share of vxlan's. It is nil if there is nothing to compare with.
	Got     *float64 `json:"got,omitempty"`
	Reached bool     `json:"reached"`
}

// aims returns the aims, which hold for two CPUs.
func aims() []*aim {
	return []*aim{
		{Figure: tcp(1), Least: 0.45, Share: true},
		{Figure: tcp(1), Least: 15 * 0.37}, // 0.37 Gb/s is flannel's udp in this topology
		{Figure: tcp(4), Least: 0.40, Share: true},
		{Figure: udpReceived(64), Least: 85},
		{Figure: "ping_average", Most: 150},
		{Figure: meanCPU(1), Most: 0.9},
	}
}

// judge fills in the candidate's result.
func (a *aim) judge(s *series) {
	got := s.Median
	if a.Share {
		if s.ToVXLAN == 0 {
			return
		}
		got = s.ToVXLAN
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
	if a.Share {
		text = fmt.Sprintf("%s %.2f of vxlan", than, bound)
	}
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

// judge evaluates all aims if the candidate takes part.
func (r *result) judge() {
	c := r.contender(candidate)
	if c == nil {
		return
	}
	r.Aims = aims()
	for _, a := range r.Aims {
		a.judge(c.Values[a.Figure])
	}
}
