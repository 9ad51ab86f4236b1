package logging

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/config"
)

// TestPriorities checks that each line for systemd's journal has its priority, also the further lines of a value, and
// that those of the file and of listeners have none.
func TestPriorities(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leno.log")
	var stderr lineBuffer
	l, err := New(&stderr, true, config.Log{Level: "TRACE", File: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	for _, level := range []hclog.Level{hclog.Error, hclog.Warn, hclog.Info, hclog.Debug, hclog.Trace} {
		l.Logger().Log(level, "hello", "lines", "one\ntwo")
	}
	var got []string
	for line := range strings.Lines(string(stderr)) {
		got = append(got, line[:3])
	}
	if want := strings.Repeat("<3> ", 5) + strings.Repeat("<4> ", 5) + strings.Repeat("<6> ", 5) + strings.Repeat("<7> ", 10); strings.Join(got, " ")+" " != want {
		t.Errorf("priorities %s, want %s of\n%s", got, want, stderr)
	}
	if text := text(t, path); strings.Contains(text, "<") || !strings.Contains(text, "[WARN]  leno: hello") {
		t.Errorf("the file has\n%s", text)
	}

	take(t, l, config.Log{Level: "WARN", JSON: true})
	stderr = nil
	l.Logger().Warn("hello")
	line, ok := strings.CutPrefix(string(stderr), "<4>")
	if !ok || !json.Valid([]byte(line)) {
		t.Errorf("as JSON: %s", stderr)
	}
}
