package logging

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/config"
)

func newLog(t *testing.T, c config.Log) (*Log, *lineBuffer) {
	t.Helper()
	var out lineBuffer
	l, err := New(&out, false, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l, &out
}

func take(t *testing.T, l *Log, c config.Log) {
	t.Helper()
	take, _, err := l.Prepare(c)
	if err != nil {
		t.Fatal(err)
	}
	take()
}

// TestChangedLive checks that loggers that were made before follow a change.
func TestChangedLive(t *testing.T) {
	l, out := newLog(t, config.Log{Level: "INFO"})
	named := l.Logger().Named("consul").With("network", "blue")
	path := filepath.Join(t.TempDir(), "leno.log")
	for _, tt := range []struct {
		name string
		c    config.Log
		want []string
	}{
		{"at first", config.Log{Level: "INFO"}, []string{"INFO"}},
		{"more", config.Log{Level: "TRACE"}, []string{"TRACE", "INFO"}},
		{"JSON", config.Log{Level: "INFO", JSON: true}, []string{`"@level":"info"`}},
		{"less", config.Log{Level: "ERROR"}, nil},
		{"a file", config.Log{Level: "INFO", File: path}, []string{"INFO"}},
		{"none", config.Log{Level: "INFO"}, []string{"INFO"}},
	} {
		take(t, l, tt.c)
		*out = nil
		named.Trace("detail", "step", tt.name)
		named.Info("state", "step", tt.name)
		got := strings.Split(strings.TrimSuffix(string(*out), "\n"), "\n")
		if len(*out) == 0 {
			got = nil
		}
		if len(got) != len(tt.want) {
			t.Errorf("%s: %q", tt.name, got)
			continue
		}
		for i, want := range tt.want {
			for _, word := range []string{want, "leno.consul", "blue", tt.name} {
				if !strings.Contains(got[i], word) {
					t.Errorf("%s: no %s in %s", tt.name, word, got[i])
				}
			}
		}
	}
	if got := text(t, path); strings.Count(got, "\n") != 1 || !strings.Contains(got, "a file") {
		t.Errorf("the file has %q", got)
	}
}

// TestPreparedOnly checks that a configuration that is not taken leaves nothing behind.
func TestPreparedOnly(t *testing.T) {
	l, out := newLog(t, config.Log{Level: "INFO"})
	dir := t.TempDir()
	_, drop, err := l.Prepare(config.Log{Level: "TRACE", JSON: true, File: filepath.Join(dir, "leno.log")})
	if err != nil {
		t.Fatal(err)
	}
	drop()
	l.Logger().Trace("detail")
	l.Logger().Info("state")
	if got := string(*out); !strings.HasSuffix(got, "[INFO]  leno: state\n") || strings.Contains(got, "detail") {
		t.Error(got)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
	if _, _, err := l.Prepare(config.Log{Level: "TRACE", File: dir}); err == nil {
		t.Error("a directory was taken for a file")
	}
}

func lines(n *Listener) string {
	var out strings.Builder
	for _, line := range n.Take() {
		out.Write(line)
	}
	return out.String()
}

// TestListeners checks that each listener has its own level and format, independent of the agent's.
func TestListeners(t *testing.T) {
	l, out := newLog(t, config.Log{Level: "WARN"})
	l.Logger().Error("before anybody listened")
	all, err := l.Listen(hclog.Trace, false)
	if err != nil {
		t.Fatal(err)
	}
	some, err := l.Listen(hclog.Info, true)
	if err != nil {
		t.Fatal(err)
	}
	*out = nil
	l.Logger().Named("udp").Trace("detail")
	l.Logger().Info("state", "peers", 3)
	<-all.Wake()
	if got := lines(all); !strings.Contains(got, "[TRACE] leno.udp: detail\n") || !strings.HasSuffix(got, "state: peers=3\n") || strings.Contains(got, "before") {
		t.Errorf("all: %q", got)
	}
	var object map[string]any
	if got := lines(some); json.Unmarshal([]byte(got), &object) != nil || object["@message"] != "state" || object["peers"] != 3.0 {
		t.Errorf("JSON: %q", got)
	}
	if len(*out) != 0 {
		t.Errorf("standard error: %q", *out)
	}
	some.Close()
	some.Close()
	l.Logger().Error("more")
	if got := lines(some); got != "" {
		t.Errorf("after the end: %q", got)
	}
	take(t, l, config.Log{Level: "ERROR", JSON: true}) // listeners stay as they are
	l.Logger().Info("reloaded")
	<-all.Wake()
	if got := lines(all); !strings.HasSuffix(got, "[INFO]  leno: reloaded\n") {
		t.Errorf("after a change of the agent's own level: %q", got)
	}
	l.Logger().Error("last")
	l.Dismiss()
	<-all.Over()
	if got := lines(all); !strings.HasSuffix(got, "last\n") {
		t.Errorf("at the end: %q", got)
	}
	late, err := l.Listen(hclog.Trace, false)
	if err != nil {
		t.Fatal(err)
	}
	<-late.Over()
}

func TestSlowListener(t *testing.T) {
	l, _ := newLog(t, config.Log{Level: "ERROR"})
	n, err := l.Listen(hclog.Info, false)
	if err != nil {
		t.Fatal(err)
	}
	const more = 100
	for i := range backlog + more {
		l.Logger().Info("line", "number", i)
	}
	got := n.Take()
	if len(got) != backlog+1 || !strings.HasSuffix(string(got[backlog-1]), fmt.Sprintf("number=%d\n", backlog-1)) ||
		!strings.Contains(string(got[backlog]), fmt.Sprintf("lost=%d", more)) {
		t.Errorf("%d lines, the last: %s", len(got), got[len(got)-1])
	}
	l.Logger().Info("line", "number", "next")
	if got := lines(n); !strings.HasSuffix(got, "number=next\n") || strings.Count(got, "\n") != 1 {
		t.Errorf("%q", got)
	}
}

func TestTooManyListeners(t *testing.T) {
	l, _ := newLog(t, config.Log{Level: "ERROR"})
	var first *Listener
	for range maxListeners {
		n, err := l.Listen(hclog.Info, false)
		if err != nil {
			t.Fatal(err)
		}
		first = n
	}
	if _, err := l.Listen(hclog.Info, false); !errors.Is(err, ErrTooManyListeners) || !strings.Contains(err.Error(), fmt.Sprint(maxListeners)) {
		t.Error(err)
	}
	first.Close()
	if _, err := l.Listen(hclog.Info, false); err != nil {
		t.Error(err)
	}
}

// TestSecretsAreHidden checks secrets in plain and quoted form and inside errors, in every destination.
func TestSecretsAreHidden(t *testing.T) {
	secrets := []string{"6d2f9ad8-31f5-4d4f-8b6c-4b1c6a2d7f11", `a"quoted"<secret>\`}
	for _, asJSON := range []bool{false, true} {
		l, out := newLog(t, config.Log{Level: "TRACE", JSON: asJSON})
		n, err := l.Listen(hclog.Trace, !asJSON)
		if err != nil {
			t.Fatal(err)
		}
		l.Hide("short") // it is also a word
		for _, s := range secrets {
			l.Hide(s)
			l.Hide(s)
			l.Logger().Named(s).Info("token "+s, "text", s, "quoted", hclog.Quote(s), "list", []string{s}, "error", fmt.Errorf("bad token %q: %s", s, s), "format", hclog.Fmt("%s %q", s, s))
		}
		l.Logger().Info("short")
		for name, got := range map[string]string{"standard error": string(*out), "listener": lines(n)} {
			for _, s := range secrets {
				if part := s[:8]; strings.Contains(got, part) || strings.Contains(got, "secret>") || strings.Contains(got, "secret\\u003e") {
					t.Errorf("%s, JSON %t: %q\n%s", name, asJSON, part, got)
				}
			}
			if !strings.Contains(got, instead) || !strings.Contains(got, "short") {
				t.Errorf("%s, JSON %t:\n%s", name, asJSON, got)
			}
		}
	}
}

// TestManyAtOnce is for the race detector.
func TestManyAtOnce(t *testing.T) {
	l, path := openLog(t, func(c *config.Log) { c.RotateBytes, c.RotateMaxFiles = 1000, 2 })
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for j := range 50 {
				l.Logger().Info("line", "from", i, "number", j)
				if n, err := l.Listen(hclog.Info, j%2 == 0); err == nil {
					n.Take()
					n.Close()
				}
				l.Hide(fmt.Sprintf("secret-%d-%d", i, j))
				if take, _, err := l.Prepare(config.Log{Level: "INFO", JSON: j%2 == 0, File: path}); err == nil && i == 0 {
					take()
				}
				_ = l.Reopen()
			}
		})
	}
	all.Wait()
}
