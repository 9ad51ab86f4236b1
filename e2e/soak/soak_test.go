package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/e2e/lab"
)

// short returns the options of a run that is short enough for the ordinary tests. Its seed makes a
// schedule with as many kinds of faults as fit. Other tests and the race detector share the
// machine, so the settling time is a little longer.
func short() Options {
	o := Defaults()
	o.Name, o.Seed = "t", 193200
	o.For, o.Agents, o.Carriers = 38*time.Second, 8, 3
	o.Rules.Hold, o.Rules.Settle, o.Every = 20*time.Second, 13*time.Second, 500*time.Millisecond
	return o
}

// TestGuarded checks that a panic in the suite becomes an error that says where it happened.
func TestGuarded(t *testing.T) {
	err := guarded(func() error { panic("boom") })
	if err == nil || !strings.Contains(err.Error(), "panic: boom") || !strings.Contains(err.Error(), "TestGuarded") {
		t.Error(err)
	}
	if err := guarded(func() error { return nil }); err != nil {
		t.Error(err)
	}
}

// TestInterrupted checks that a run that cannot even begin has a report that says so.
func TestInterrupted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	report, err := Run(ctx, short())
	if err == nil || !strings.Contains(report.Ended, "0 of 0 faults had begun") || report.Seed != short().Seed {
		t.Errorf("%v; %+v", err, report)
	}
}

// TestReport checks the report for programs and the one for people.
func TestReport(t *testing.T) {
	s := quiet()
	s.Silences = []Silence{{"a", Span{sec(10), sec(20)}, CutHost}}
	s.claims("a", 10, 23, func(c *Claim) { c.Status = "warning" })
	s.moves("b", 40, 99, six)
	s.Losses = []Loss{{"n", "a", "b", sec(15), false}, {"n", "a", "b", sec(30), false}}
	r := &run{Options: Options{Seed: 7, Rules: s.Rules}, pings: &pings{sent: 100}, Lab: new(lab.Lab), recorder: &recorder{
		h: s.History, planned: 5, begun: []Step{{Kind: CutHost, Round: 1}, {Kind: KillLeader, Round: 2}},
		incidents: []Incident{{sec(3), "no leader"}},
	}}
	report := r.report(errors.New("interrupted"))
	if report.Rounds != 2 || report.Total != 2 || report.Moves != 1 || report.PingsLost != 2 || report.PingsExcused != 1 ||
		report.Faults[CutHost] != 1 || report.Calm == 0 {
		t.Errorf("%+v", report)
	}
	if got, want := report.Recovery[CutHost], (Recovery{1, at(22).To - sec(20), at(22).To - sec(20)}); got != want {
		t.Errorf("recovery %+v, want %+v", got, want)
	}
	var out bytes.Buffer
	var back Report
	if err := report.JSON(&out); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(report, back); diff != "" {
		t.Error(diff)
	}
	out.Reset()
	if err := report.Text(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for i, want := range []string{"VIOLATION ", "VIOLATION "} {
		if !strings.HasPrefix(lines[i], want) {
			t.Errorf("line %d is %q", i, lines[i])
		}
	}
	for _, want := range []string{"ENDED before its time: interrupted; 2 of 5 faults had begun", "INCIDENT at 3s, not about leno: no leader"} {
		if !slices.Contains(lines, want) {
			t.Errorf("no line %q in:\n%s", want, out.String())
		}
	}
}

// TestKeptHistory checks that a saved history is judged as it was in its run.
func TestKeptHistory(t *testing.T) {
	s := quiet()
	s.moves("b", 40, 99, six)
	path := filepath.Join(t.TempDir(), "history.gob.gz")
	if err := s.save(path); err != nil {
		t.Fatal(err)
	}
	h, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Check(s.History), Check(h)); diff != "" || len(Check(h)) == 0 {
		t.Error(diff)
	}
}
