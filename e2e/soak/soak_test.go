package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/e2e/lab"
)

// short are the options of a run that fits into the ordinary tests. Its seed
// makes a schedule with as many kinds of faults as there is time for. Other tests
// and the race detector share the machine, so it has a little longer to settle.
func short() Options {
	o := Defaults()
	o.Name, o.Seed = "t", 528
	o.For, o.Agents, o.Carriers = 38*time.Second, 8, 3
	o.Rules.Hold, o.Rules.Settle, o.Every = 20*time.Second, 13*time.Second, 500*time.Millisecond
	return o
}

// logWriter makes lines of a run lines of a test.
type logWriter struct{ t *testing.T }

func (w logWriter) Write(line []byte) (int, error) {
	w.t.Logf("%s", bytes.TrimSpace(line))
	return len(line), nil
}

// TestSoak is the fault suite in short; `make soak` runs it at length.
func TestSoak(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	o := short()
	o.Log = logWriter{t}
	var err error
	if o.Leno, err = lab.FindLeno(ctx, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	report, err := Run(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := report.Text(&text); err != nil {
		t.Fatal(err)
	}
	t.Log(text.String())
	if n := len(report.Violations); n > 0 {
		t.Errorf("%d violations", n)
	}
	if report.Rounds < 3 || len(report.Faults) < 9 || report.Claims < 300 || report.PingsSent < 1000 {
		t.Errorf("too little was tried or looked at")
	}
}

// TestReport: programs read what people read.
func TestReport(t *testing.T) {
	s := quiet()
	s.Silences = []Silence{{"a", Span{sec(10), sec(20)}, CutHost}}
	s.claims("a", 10, 23, func(c *Claim) { c.Status = "warning" })
	s.moves("b", 40, 99, six)
	s.Losses = []Loss{{"a", "b", sec(15)}, {"a", "b", sec(30)}}
	r := &run{Options: Options{Seed: 7, Rules: s.Rules}, recorder: &recorder{h: s.History}, pings: &pings{sent: 100}, Lab: new(lab.Lab)}
	report := r.report([]Step{{Kind: CutHost, Round: 1}, {Kind: KillLeader, Round: 2}}, time.Minute)
	if report.Rounds != 2 || report.Moves != 1 || report.PingsLost != 2 || report.PingsExcused != 1 || report.Faults[CutHost] != 1 {
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
}
