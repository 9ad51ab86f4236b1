package lab

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestEchoes checks that pings dropped on the way, and only those, are reported missing by number.
func TestEchoes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	ctx := within(t, 15*time.Minute)
	l := newLab(t, ctx, Options{NoConsul: true, Hosts: 2})
	a, b := l.Hosts[0], l.Hosts[1]
	for i, program := range []string{"iptables", "ip6tables"} {
		protocol, kind := "icmp", "echo-request"
		if i == 1 {
			protocol = "icmpv6"
		}
		flag := "--" + protocol + "-type"
		started := time.Now()
		e, err := a.StartEchoes(ctx, b.Addrs[i], time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.WaitAnswers(ctx, 50); err != nil {
			t.Fatal(err)
		}
		began := e.Mark()
		if _, err := b.Exec(ctx, program, "-A", "INPUT", "-p", protocol, flag, kind, "-m", "statistic", "--mode", "nth", "--every", "10", "--packet", "0", "-j", "DROP"); err != nil {
			t.Fatal(err)
		}
		if err := e.WaitAnswers(ctx, 200); err != nil {
			t.Fatal(err)
		}
		r, err := e.Stop()
		if err != nil || r.Duplicates != 0 || r.Reordered != 0 || r.Sent < 250 || r.Lost() < 15 || r.Lost() != len(r.Missing) {
			t.Errorf("%+v, %v", r, err)
		}
		if r.Missing[0] < began || slices.ContainsFunc(r.Missing, func(n int) bool { return (n-r.Missing[0])%10 != 0 }) {
			t.Errorf("missing %v, not every tenth from %d", r.Missing, began)
		}
		least := float64(r.Sent-1) / time.Since(started).Seconds() // on a busy machine it is sent less often
		if r.Rate < least || r.Rate > 1100 || r.Gap < time.Millisecond {
			t.Errorf("rate %.0f a second, gap %s", r.Rate, r.Gap)
		}
	}
}

// TestReach checks that Reach waits while a host is cut off.
func TestReach(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	defer goleak.VerifyNone(t)
	ctx := within(t, 15*time.Minute)
	l, err := New(ctx, Options{NoConsul: true, Hosts: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, b := l.Hosts[0], l.Hosts[1]
	for _, to := range b.Addrs {
		if err := b.Cut(ctx); err != nil {
			t.Fatal(err)
		}
		waiting, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		if err := a.Reach(waiting, to); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s, which is cut off: %v", to, err)
		}
		cancel()
		if err := b.Mend(ctx); err != nil {
			t.Fatal(err)
		}
		if err := a.Reach(ctx, to); err != nil {
			t.Error(err)
		}
	}
}

func TestEchoesAreCountedByNumber(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	e := &Echoes{answers: make([]uint16, 6)}
	for i, number := range []uint64{0, 1, 3, 2, 3, 5, 99} {
		e.answered(number, at.Add(time.Duration(i*i)*time.Millisecond))
	}
	want := EchoResult{Answered: 5, Duplicates: 1, Reordered: 1, Gap: 16 * time.Millisecond}
	if got := e.done; got.Answered != want.Answered || got.Duplicates != want.Duplicates || got.Reordered != want.Reordered || got.Gap != want.Gap {
		t.Errorf("%+v, want %+v", got, want)
	}
	if !slices.Equal(e.answers, []uint16{1, 1, 1, 2, 0, 1}) {
		t.Errorf("answers %v", e.answers)
	}
}
