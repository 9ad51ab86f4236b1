package cli

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"
)

// Lines that do not fit the terminal are left out and counted, so that the top stays in place.
func TestWatchFitsTheScreen(t *testing.T) {
	size := func(columns, rows int) func() (int, int) { return func() (int, int) { return columns, rows } }
	for _, tt := range []struct {
		name, text    string
		columns, rows int
		want          string
	}{
		{"as it is", "a\nb\nc\n", 80, 4, "a\nb\nc\n"},
		{"one too many", "a\nb\nc\nd\n", 80, 4, "a\nb\nand 2 more lines\n"},
		{"a line that is broken", "a\n12345678901\nc\n", 10, 4, "a\nand 2 more lines\n"},
		{"colours take no room", "\x1b[32m1234567890\x1b[0m\nb\nc\n", 10, 4, "\x1b[32m1234567890\x1b[0m\nb\nc\n"},
		{"unknown", "a\nb\nc\n", 0, 0, "a\nb\nc\n"},
		{"hardly any", "a\nb\nc\nd\n", 80, 2, "a\nb\nc\nd\n"},
	} {
		if got := cutToScreen(tt.text, size(tt.columns, tt.rows)); got != tt.want {
			t.Errorf("%s: %q", tt.name, got)
		}
	}
	var out bytes.Buffer
	s := &screen[[]string]{Session: NewSession(Meta{Stdout: &out, Terminal: true, Now: time.Now, Getenv: func(string) string { return "" }, Size: size(80, 5)}),
		text: func(w io.Writer, lines []string, _ time.Time) { io.WriteString(w, strings.Join(lines, "\n")+"\n") }}
	if err := s.draw([]string{"1", "2", "3", "4", "5", "6"}); err != nil || strings.Count(out.String(), "\n") != 4 || !strings.Contains(out.String(), "and 3 more lines") {
		t.Errorf("%v, %q", err, &out)
	}
}
