package lab

import (
	"context"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestTalk checks that an outage pauses the connection and does not end it.
func TestTalk(t *testing.T) {
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
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	a, b := l.Host("host-a"), l.Host("host-b")
	for _, to := range b.Addrs {
		talk, err := a.StartTalk(ctx, b.Namespace, to)
		must(err)
		defer talk.Stop()
		must(talk.WaitEchoes(ctx, 20))
		must(b.Cut(ctx))
		waiting, cancel := context.WithTimeout(ctx, time.Second) // and an echo that was under way comes in much less
		if talk.WaitEchoes(waiting, 20) == nil {
			t.Error("echoes came from a host that is cut off")
		}
		cancel()
		must(b.Mend(ctx))
		must(talk.WaitEchoes(ctx, 20))
		if pause := talk.Pause(); pause < 200*time.Millisecond {
			t.Errorf("the longest pause was %s", pause)
		}
		for range 2 {
			if n, err := talk.Stop(); err != nil || n < 40 {
				t.Errorf("%d echoes, %v", n, err)
			}
		}
	}
}
