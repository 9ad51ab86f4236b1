package command

import (
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestTableFits(t *testing.T) {
	columns := []column{{title: "A", cut: true}, {title: "B"}, {title: "C", cut: true}}
	var out strings.Builder
	table(&out, columns, [][]string{
		{strings.Repeat("é", 70), "kept whole", strings.Repeat("c", 30)},
		{"a", "", ""},
	})
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if n := utf8.RuneCountInString(lines[1]); n != width {
		t.Errorf("the wide line has %d columns:\n%s", n, out.String())
	}
	if !strings.Contains(lines[1], "é…  kept whole  ccc") || strings.HasSuffix(lines[2], " ") {
		t.Errorf("got\n%s", out.String())
	}

	// What must not be cut stays whole, although the line is too wide.
	out.Reset()
	address := strings.Repeat("1", 100)
	table(&out, columns, [][]string{{"name of a host", address, ""}})
	if !strings.Contains(out.String(), "name of…  "+address) {
		t.Errorf("got\n%s", out.String())
	}
}

func TestWrap(t *testing.T) {
	tests := []struct {
		text string
		n    int
		want []string
	}{
		{"", 10, []string{""}},
		{"one two three", 8, []string{"one two", "three"}},
		{"one two three", 7, []string{"one two", "three"}},
		{"longerthanthat is", 4, []string{"longerthanthat", "is"}},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, wrap(tt.text, tt.n)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.text, diff)
		}
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 999 * time.Millisecond: "0s", 59 * time.Second: "59s", 200 * time.Second: "3m20s",
		2*time.Hour + 5*time.Minute + 59*time.Second: "2h5m", 99 * time.Hour: "4d3h",
	} {
		if got := age(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
}

func TestByteCount(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1_600_000: "1.5 MiB", ^uint64(0): "16.0 EiB"} {
		if got := byteCount(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// FuzzPrintable: nothing that other hosts wrote may steer a terminal.
func FuzzPrintable(f *testing.F) {
	for _, s := range []string{"plain", "\x1b[2J", "a\nb\tc", "\xff\xfe", "é\u202e…\uFFFD", "\x7f\u0085"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := printable(s)
		if !utf8.ValidString(got) {
			t.Errorf("%q: not UTF-8: %q", s, got)
		}
		for _, r := range got {
			if !unicode.IsPrint(r) && r != '\n' && r != '\t' {
				t.Errorf("%q: %q is left in %q", s, r, got)
			}
		}
		if line := oneLine(s); strings.ContainsAny(line, "\n\t") {
			t.Errorf("%q: %q has more than one line", s, line)
		}
	})
}
