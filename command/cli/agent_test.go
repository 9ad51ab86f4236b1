package cli

import (
	"bufio"
	"context"
	"flag"
	"io"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
)

// TestSilentAgent: a command says what it waits for before the agent has answered, once.
func TestSilentAgent(t *testing.T) {
	read, write := io.Pipe()
	f := NewAgentFlags(Meta{Getenv: func(string) string { return "" }, Stderr: write})
	f.patience = time.Millisecond
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	f.Register(fs)
	if err := fs.Parse([]string{"-address=127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(read).ReadString('\n')
		said <- line
	}()
	err := f.Call(t.Context(), func(context.Context, *api.Client) error {
		select { // the agent does not answer before
		case got := <-said:
			if got != "waiting for the agent at 127.0.0.1:1 to answer\n" {
				t.Errorf("it says %q", got)
			}
		case <-time.After(10 * time.Second):
			t.Error("it says nothing")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	// The second call would block if it said something: nothing reads it.
	if err := f.Call(t.Context(), func(context.Context, *api.Client) error { time.Sleep(20 * time.Millisecond); return nil }); err != nil {
		t.Error(err)
	}
}
