package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/e2e/probe"
)

func TestParseSizes(t *testing.T) {
	for give, want := range map[string][]size{
		"1000/500":          {{1000, 500}},
		"1000/500,10000/1,": {{1000, 500}, {10000, 1}},
		"1000":              nil,
		"1000/":             nil,
		"99/5":              nil, // a burst changes 100 leases
		"100/0":             nil,
		"70000/5":           nil, // more than the network has subnets
		"a/b":               nil,
	} {
		got, err := parseSizes(give)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(size{})); diff != "" || (err != nil) != (want == nil) {
			t.Errorf("%q: error %v, difference:\n%s", give, err, diff)
		}
	}
}

// TestTable checks the table of some samples: medians, layouts next to each other, and aims.
func TestTable(t *testing.T) {
	r := &result{Machine: &probe.Machine{}}
	s := size{10000, 100}
	for _, ms := range []time.Duration{300, 90, 40} {
		r.row(s, "one change", leno.name, sample{seen: ms * time.Millisecond, bytes: 250_000, reads: 100, servers: time.Second})
	}
	r.row(s, "edit by hand", leno.name, sample{seen: 2 * time.Second})
	r.row(s, "one change", plain.name, sample{seen: 2 * time.Second, bytes: 12_345_678, clients: 50 * time.Microsecond})
	r.add("one host", "B", 1e6, 1_250_000)
	r.seconds("one start", 2, 1500*time.Millisecond)
	r.finish()
	var out strings.Builder
	if err := r.table(&out); err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(out.String(), "\n\n")
	var got []string
	for line := range strings.Lines(text) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"10000 LEASES, 100 WATCHERS LAYOUT SEEN BY ALL A WATCHER ALL VIEWS SERVER CPU CLIENT CPU RUNS AIM",
		"one change leno 90 ms 2500 B 250 kB 1.0 1.00 s - 3 100 ms, met; 2000 B, missed",
		"one change plain watch 2.00 s 123 kB 12.3 MB 0.0 - 50 µs 1",
		"edit by hand leno 2.00 s 0 B 0 B 0.0 - - 1",
		"",
		"WHAT VALUE AIM",
		"one host 1.2 MB 1.0 MB, missed",
		"one start 1.50 s 2.00 s, met",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
