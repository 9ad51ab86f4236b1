package datapath

import (
	"cmp"
	"errors"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/agenttest"
)

// changer is a backend that can go on under another definition.
type changer struct{ backend.Backend }

func (changer) Abilities() backend.Abilities { return backend.Abilities{Change: change} }

func change(to backend.Config) error {
	if string(to.Options) == `{"colour":"none"}` {
		return errors.New("no such colour")
	}
	return nil
}

// TestRebuildIsLogged: a backend that should have been able to change, and is built again, is logged as a warning.
func TestRebuildIsLogged(t *testing.T) {
	for _, tt := range []struct {
		name       string
		kind, from string
		to         string // options
		toKind     string // "" for kind
		closed     int
		level      string // of the log line, "" for none
		says       string
	}{
		{"the same", "changer", `{}`, `{}`, "", 0, "", ""},
		{"a change", "changer", `{}`, `{"colour":"blue"}`, "", 0, "", ""},
		{"a change that fails", "changer", `{}`, `{"colour":"none"}`, "", 1, "[WARN]", "no such colour"},
		{"another kind", "changer", `{}`, `{}`, "recorder", 1, "[DEBUG]", "backend=changer next=recorder"},
		{"a backend that cannot change", "recorder", `{}`, `{"colour":"blue"}`, "", 1, "", ""},
		{"the start of a switch", "recorder", `{}`, `{"switch":{"to":{"type":"recorder"}}}`, "", 0, "", ""},
		{"a switch whose next backend fails at first", "recorder", `{}`, `{"switch":{"to":{"type":"fails-once"}}}`, "", 1, "[WARN]", "no room"},
		{"a definition that does not follow", "recorder", `{}`, `{"epoch":{"number":1}}`, "", 1, "[DEBUG]", "cannot follow without an interruption"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			changing, failing := l.kind("changer"), l.kind("fails-once")
			changing.New = func(backend.Config) (backend.Backend, error) { return changer{recording{l}}, nil }
			failed := false
			failing.New = func(backend.Config) (backend.Backend, error) {
				if !failed {
					failed = true
					return nil, errors.New("no room")
				}
				return recording{l}, nil
			}
			kinds := map[string]backend.Type{"changer": changing, "fails-once": failing, "recorder": l.kind("recorder")}
			l.r.o.Host.Backends = kinds
			build := func(kind, options string) {
				t.Helper()
				if err := l.r.Build(carriage.Of(agenttest.Carriage(t, kind, options)), l.r.config(l.network().Plan.Prefixes())); err != nil {
					t.Fatal(err)
				}
			}
			build(tt.kind, tt.from)
			build(cmp.Or(tt.toKind, tt.kind), tt.to)
			l.r.Close()
			// Closing a backend in a switch closes both of its instances.
			open := 1
			if strings.Contains(tt.to, "switch") {
				open = 2
			}
			if l.closed-open != tt.closed {
				t.Errorf("%d backends were closed, want %d", l.closed-open, tt.closed)
			}
			line := ""
			for text := range strings.Lines(l.log.String()) {
				if strings.Contains(text, "built again") {
					line += text
				}
			}
			if (line != "") != (tt.level != "") || !strings.Contains(line, tt.level) || !strings.Contains(line, tt.says) {
				t.Errorf("logged %q, want %s with %q", line, tt.level, tt.says)
			}
		})
	}
}
