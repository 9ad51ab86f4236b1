package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// TestCommandsAreNotBroken: a whole command can be copied from a text if it fits a line.
func TestCommandsAreNotBroken(t *testing.T) {
	for _, tt := range []struct {
		text string
		want []string
	}{
		{"lower it, here with `ip link set eth0`: leno follows", []string{"lower it, here with", "`ip link set eth0`:", "leno follows"}},
		{"a `b c` d `e", []string{"a `b c` d `e"}},
		{"do (`leno doctor`), now", []string{"do (`leno doctor`), now"}},
		{"try `a command that is too long for a line` here", []string{"try", "`a command that is \\", "too long for a line`", "here"}},
	} {
		got := Wrap(tt.text, 23)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.text, diff)
		}
	}
}

func TestTableFits(t *testing.T) {
	columns := []Column{{Title: "A", Cut: true}, {Title: "B"}, {Title: "C", Cut: true}}
	var out strings.Builder
	WriteTable(&out, columns, [][]string{
		{strings.Repeat("é", 70), "kept whole", strings.Repeat("c", 30)},
		{"a", "", ""},
	})
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if n := DisplayWidth(lines[1]); n != Width {
		t.Errorf("the wide line has %d columns:\n%s", n, out.String())
	}
	if !strings.Contains(lines[1], "é…  kept whole  ccc") || strings.HasSuffix(lines[2], " ") {
		t.Errorf("got\n%s", out.String())
	}

	// What must not be cut stays whole, on separate lines.
	out.Reset()
	address := strings.Repeat("1", 100)
	WriteTable(&out, columns, [][]string{{"name of a host", address, ""}})
	if want := "A  name of a host\nB  " + address[:77] + "\n   " + address[77:] + "\n"; out.String() != want {
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
		{"longerthanthat is", 4, []string{"long", "erth", "anth", "at", "is"}},
		{"語語語 x", 4, []string{"語語", "語 x"}},
		{"e\u0301e\u0301 ab", 5, []string{"e\u0301e\u0301 ab"}},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, Wrap(tt.text, tt.n)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.text, diff)
		}
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 999 * time.Millisecond: "0s", 59 * time.Second: "59s", 200 * time.Second: "3m20s",
		2*time.Hour + 5*time.Minute + 59*time.Second: "2h5m", 99 * time.Hour: "4d3h",
	} {
		if got := Age(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
}

func TestByteCount(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1_600_000: "1.5 MiB", ^uint64(0): "16.0 EiB"} {
		if got := ByteCount(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// FuzzPrintable: text from other hosts must not control a terminal.
func FuzzPrintable(f *testing.F) {
	for _, s := range []string{"plain", "\x1b[2J", "a\nb\tc", "\xff\xfe", "é\u202e…\uFFFD", "\x7f\u0085"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := Escape(s)
		if !utf8.ValidString(got) {
			t.Errorf("%q: not UTF-8: %q", s, got)
		}
		for _, r := range got {
			if !unicode.IsPrint(r) && r != '\n' && r != '\t' {
				t.Errorf("%q: %q is left in %q", s, r, got)
			}
		}
		if line := EscapeLine(s); strings.ContainsAny(line, "\n\t") {
			t.Errorf("%q: %q has more than one line", s, line)
		}
	})
}

// FuzzPrintJSON: the same holds for JSON, which must also keep its meaning.
func FuzzPrintJSON(f *testing.F) {
	for _, s := range []string{"plain", "\x1b[2J", "a\nb\tc", "\x7f\u0085\u009b2J", "é\u202e…\uFFFD", "<&>\"\\", "\U000e0001"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		s = strings.ToValidUTF8(s, "\uFFFD")
		var out strings.Builder
		if err := WriteJSON(&out, []string{s}); err != nil {
			t.Fatal(err)
		}
		for _, r := range out.String() {
			if !unicode.IsPrint(r) && r != '\n' {
				t.Errorf("%q: %q is left in %q", s, r, out.String())
			}
		}
		var back []string
		if err := json.Unmarshal([]byte(out.String()), &back); err != nil || len(back) != 1 || back[0] != s {
			t.Errorf("%q: reads back as %q, %v", s, back, err)
		}
	})
}
