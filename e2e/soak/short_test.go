//go:build long

package soak

import (
	"bytes"
	"context"
	"os"
	"testing"
	"time"

	"github.com/lenonet/leno/e2e/lab"
)

// logWriter turns lines of a run into lines of a test.
type logWriter struct{ t *testing.T }

func (w logWriter) Write(line []byte) (int, error) {
	w.t.Logf("%s", bytes.TrimSpace(line))
	return len(line), nil
}

// TestSoak is the short form of the fault suite; `make soak` runs it at length.
func TestSoak(t *testing.T) {
	report := soaked(t, short())
	if report.Faults[SwitchBackend]+report.Faults[ReverseSwitch] < 2 {
		t.Errorf("no network was switched")
	}
	if report.Rounds < 3 || len(report.Faults) < 9 || report.Claims < 300 || report.PingsSent < 1000 {
		t.Errorf("too little was tried or looked at")
	}
}

// TestSoakWithEtcd does the same with etcd. Its seed makes a schedule in which a network is switched to another backend,
// and then etcd is restored from a snapshot from before, and emptied.
func TestSoakWithEtcd(t *testing.T) {
	o := short()
	o.Store, o.Seed, o.For, o.Agents = lab.StoreEtcd, 1586, 34*time.Second, 6
	o.Rounds = []Kind{SwitchBackend, EmptyStore, RestoreStore}
	report := soaked(t, o)
	if report.Faults[SwitchBackend] != 1 || report.Faults[EmptyStore] != 1 || report.Faults[RestoreStore] != 1 || len(report.Faults) < 7 || report.Claims < 150 || report.PingsSent < 500 {
		t.Errorf("too little was tried or looked at")
	}
}

// soaked makes a run and fails the test if a rule was broken or the run ended early.
func soaked(t *testing.T, o Options) Report {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	o.Log = logWriter{t}
	var err error
	if o.Leno, err = lab.FindLeno(ctx, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	report, err := Run(ctx, o)
	if err != nil {
		t.Error(err)
	}
	var text bytes.Buffer
	if err := report.Text(&text); err != nil {
		t.Fatal(err)
	}
	t.Log(text.String())
	if n := len(report.Violations); n > 0 {
		t.Errorf("%d violations", n)
	}
	return report
}
