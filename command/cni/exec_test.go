package cni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/lenonet/leno/internal/testkit/programs"
)

// TestHangingPlugin: a call does not wait for what a plugin leaves running, and stops a plugin that does not end.
func TestHangingPlugin(t *testing.T) {
	const long = 10 * time.Minute
	for _, tt := range []struct {
		name, end string // what the plugin does after it has started a child
		limit     time.Duration
		want      string // error, "" for none
	}{
		{"the plugin does not end", "wait", time.Second, "plugin slow: it was stopped: it did not end within 30s"},
		{"the plugin ends", "", long, ""},
		{"the plugin fails", "echo broken >&2; exit 1", long, `plugin slow: it ended with "broken\n": exit status 1`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // it waits
			dir := t.TempDir()
			// The child keeps the plugin's output open until it reads a line.
			const script = "#!/bin/sh\nexec 3<>%[1]s/pipe\nread line <&3 &\n%[2]s\n"
			pipe := filepath.Join(dir, "pipe")
			err := errors.Join(syscall.Mkfifo(pipe, 0o600),
				programs.Write(filepath.Join(dir, "slow"), fmt.Appendf(nil, script, dir, tt.end)))
			if err != nil {
				t.Fatal(err)
			}
			ending, err := os.OpenFile(pipe, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer ending.Close()
			endChild := func() { _, _ = ending.WriteString("\n") }
			defer endChild()
			waited := time.AfterFunc(time.Minute, endChild)
			ctx, cancel := context.WithTimeoutCause(t.Context(), tt.limit, errUndoTime)
			defer cancel()
			err = callPlugin(ctx, delegation{Plugin: "slow"}, []byte(`{}`), &invoke.Args{Command: "DEL", Path: dir})
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || err.Error() != tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if !waited.Stop() {
				t.Error("the call waited for the plugin's child")
			}
		})
	}
}
