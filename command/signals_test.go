package command

import (
	"context"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
)

// TestSecondSignal: the first signal to stop waits until the reload and the agent have ended, the second one for neither.
func TestSecondSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals, told, hangs := make(chan os.Signal), make(chan os.Signal, 1), make(chan struct{})
		run := func(context.Context) error { <-hangs; return nil }
		reload := func(context.Context) { <-hangs }
		ended := make(chan error, 1)
		go func() { ended <- obey(t.Context(), signals, func(s os.Signal) { told <- s }, run, reload) }()
		after := func(s syscall.Signal, want bool) {
			t.Helper()
			signals <- s
			synctest.Wait()
			if got := len(ended) == 1; got != want {
				t.Errorf("after %s: ended %t, want %t", s, got, want)
			}
		}
		after(syscall.SIGHUP, false)
		after(syscall.SIGTERM, false)
		if s := <-told; s != syscall.SIGTERM {
			t.Errorf("stops because of %s", s)
		}
		after(syscall.SIGINT, true)
		close(hangs)
		if err := <-ended; err == nil {
			t.Error("no error, although the agent has not stopped")
		}
	})
}
