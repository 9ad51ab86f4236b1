package datapath

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/transition"
)

// changer is a backend that can go on under another definition.
type changer struct {
	backend.Backend
	to []backend.Config
}

func (c *changer) Change(to backend.Config) error {
	if string(to.Options) == `{"colour":"none"}` {
		return errors.New("no such colour")
	}
	c.to = append(c.to, to)
	return nil
}

// TestInstanceTakes: a backend is kept for the configuration that it was built from. For another configuration, a
// backend that can change is changed.
func TestInstanceTakes(t *testing.T) {
	kind := newLab(t).kind("recorder")
	v4, v6 := netip.MustParsePrefix("10.5.0.0/22"), netip.MustParsePrefix("fd00:5::/48")
	from := backend.Config{Pools: []netip.Prefix{v4}, Options: []byte(`{"colour":"red"}`)}
	pools, options, none := from, from, from
	pools.Pools = []netip.Prefix{v4, v6}
	options.Options, none.Options = []byte(`{"colour":"blue"}`), []byte(`{"colour":"none"}`)
	for _, tt := range []struct {
		name    string
		to      backend.Config
		other   bool
		takes   bool // whether a backend that cannot change is kept
		changes bool // whether one that can is kept
		refuses bool // whether one that can returns an error
	}{
		{"the same", from, false, true, true, false},
		{"other pools", pools, false, false, true, false},
		{"other options", options, false, false, true, false},
		{"options it refuses", none, false, false, false, true},
		{"another kind", from, true, false, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := kind
			if tt.other {
				k.Name = "other"
			}
			b, err := kind.New(from)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := (&Instance{backend: b, kind: kind.Name, config: from}).takes(k, tt.to); got != tt.takes || err != nil {
				t.Errorf("kept %t, %v, want %t", got, err, tt.takes)
			}
			c := &Instance{backend: &changer{Backend: b}, kind: kind.Name, config: from}
			if got, err := c.takes(k, tt.to); got != tt.changes || (err != nil) != tt.refuses {
				t.Errorf("changed %t, %v, want %t", got, err, tt.changes)
			}
			if tt.changes && (string(c.config.Options) != string(tt.to.Options) || !slices.Equal(c.config.Pools, tt.to.Pools)) {
				t.Errorf("remembers %+v", c.config)
			}
		})
	}
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
		{"a backend that cannot change", "recorder", `{}`, `{"colour":"blue"}`, "", 1, "[DEBUG]", "backend=recorder"},
		{"the start of a switch", "wrapped", `{}`, `{"next":{"type":"recorder","device":"b"}}`, "", 0, "", ""},
		{"a switch whose next backend fails at first", "wrapped", `{}`, `{"next":{"type":"fails-once","device":"b"}}`, "", 1, "[WARN]", "no room"},
		{"a definition that does not follow", "wrapped", `{}`, `{"device":"b"}`, "", 1, "[DEBUG]", "cannot follow without an interruption"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			changing, failing := l.kind("changer"), l.kind("fails-once")
			changing.New = func(backend.Config) (backend.Backend, error) { return &changer{Backend: recording{l}}, nil }
			failed := false
			failing.New = func(backend.Config) (backend.Backend, error) {
				if !failed {
					failed = true
					return nil, errors.New("no room")
				}
				return recording{l}, nil
			}
			kinds := map[string]backend.Type{"changer": changing, "fails-once": failing, "recorder": l.kind("recorder")}
			kinds["wrapped"] = transition.Wrap(map[string]backend.Type{
				"wrapped": l.kind("wrapped"), "fails-once": failing, "recorder": l.kind("recorder"),
			})["wrapped"]
			build := func(kind, options string) {
				t.Helper()
				if err := l.r.Build(kinds[kind], l.r.config(l.network().Plan.Prefixes(), json.RawMessage(options))); err != nil {
					t.Fatal(err)
				}
			}
			build(tt.kind, tt.from)
			build(cmp.Or(tt.toKind, tt.kind), tt.to)
			l.r.Close()
			// Closing a backend in a switch closes both of its instances.
			open := 1
			if tt.kind == "wrapped" && strings.Contains(tt.to, "next") {
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
