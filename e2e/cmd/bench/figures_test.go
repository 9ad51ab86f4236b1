package main

import (
	"slices"
	"testing"
	"time"

	"github.com/lenonet/leno/e2e/lab"
)

func TestPercentile(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i)
	}
	cases := []struct {
		name string
		all  []time.Duration
		p    float64
		want time.Duration
	}{
		{"the second largest of 100", hundred, 0.99, 99},
		{"half", hundred, 0.5, 50},
		{"all", hundred, 1, 100},
		{"none", hundred, 0, 1},
		{"one value", []time.Duration{7}, 0.99, 7},
		{"few values", []time.Duration{3, 1, 2}, 0.99, 3},
	}
	for _, c := range cases {
		before := slices.Clone(c.all)
		if got := percentile(c.all, c.p); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
		if !slices.Equal(before, c.all) {
			t.Errorf("%s: the values were reordered", c.name)
		}
	}
}

func TestSummarize(t *testing.T) {
	cases := []struct {
		all  []float64
		want summary
	}{
		{[]float64{5}, summary{5, 5, 5}},
		{[]float64{9, 1, 5}, summary{5, 1, 9}},
		{[]float64{4, 1, 3, 2}, summary{2.5, 1, 4}},
	}
	for _, c := range cases {
		if got := summarize(c.all); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.all, got, c.want)
		}
	}
}

func TestPings(t *testing.T) {
	got := values{}
	err := got.pings("load", lab.PingResult{Sent: 4, Received: 3, RTTs: []time.Duration{10e3, 50e3, 30e3}})
	if err != nil || got["load_average"] != 30 || got["load_p99"] != 50 || got["load_lost"] != 25 {
		t.Errorf("%v, %v", got, err)
	}
	if err := got.pings("ping", lab.PingResult{Sent: 4}); err == nil {
		t.Error("no answer at all: no error")
	}
}

// TestUsage adds up the CPU time of processes, including some that started or ended between the two
// moments.
func TestUsage(t *testing.T) {
	before := usage{machine: 100, pids: [2]map[int]time.Duration{{1: 10, 2: 20}, {5: 7}}}
	after := usage{machine: 170, pids: [2]map[int]time.Duration{{1: 15, 3: 4}, {5: 9}}}
	if got, want := after.since(before), (used{machine: 70, hosts: [2]time.Duration{9, 2}}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
