package command

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/api"
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
		got := wrap(tt.text, 23)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.text, diff)
		}
	}
}

func TestTableFits(t *testing.T) {
	columns := []column{{title: "A", cut: true}, {title: "B"}, {title: "C", cut: true}}
	var out strings.Builder
	table(&out, columns, [][]string{
		{strings.Repeat("é", 70), "kept whole", strings.Repeat("c", 30)},
		{"a", "", ""},
	})
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if n := columnsOf(lines[1]); n != width {
		t.Errorf("the wide line has %d columns:\n%s", n, out.String())
	}
	if !strings.Contains(lines[1], "é…  kept whole  ccc") || strings.HasSuffix(lines[2], " ") {
		t.Errorf("got\n%s", out.String())
	}

	// What must not be cut stays whole, on separate lines.
	out.Reset()
	address := strings.Repeat("1", 100)
	table(&out, columns, [][]string{{"name of a host", address, ""}})
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

// FuzzPrintable: text from other hosts must not control a terminal.
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

// FuzzPrintJSON: the same holds for JSON, which must also keep its meaning.
func FuzzPrintJSON(f *testing.F) {
	for _, s := range []string{"plain", "\x1b[2J", "a\nb\tc", "\x7f\u0085\u009b2J", "é\u202e…\uFFFD", "<&>\"\\", "\U000e0001"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		s = strings.ToValidUTF8(s, "\uFFFD")
		var out strings.Builder
		if err := printJSON(&out, []string{s}); err != nil {
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

func TestSkippedIsBounded(t *testing.T) {
	var skipped []api.Skipped
	for i := range 10_000 {
		skipped = append(skipped, api.Skipped{Key: fmt.Sprintf("leno/leases/default/bad-%d", i), Reason: "nonsense"})
	}
	var out strings.Builder
	writeSkipped(&out, skipped)
	if n := strings.Count(out.String(), "\n"); n != maxSkipped+3 || !strings.Contains(out.String(), "Skipped 10000 unusable records:") ||
		!strings.HasSuffix(out.String(), "  and 9900 more: -format=json names all\n") {
		t.Errorf("%d lines:\n%s", n, out.String())
	}
	out.Reset()
	writeSkipped(&out, skipped[:maxSkipped])
	if strings.Contains(out.String(), "more") {
		t.Errorf("got\n%s", out.String())
	}
}

func TestDuplicatesAreNamed(t *testing.T) {
	lease := func(slot int, node, id string, held bool, addrs ...string) api.Lease {
		l := api.Lease{Subnet: netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", slot)), Node: node, NodeID: id, Held: held}
		for _, a := range addrs {
			l.PublicIPs = append(l.PublicIPs, netip.MustParseAddr(a))
		}
		return l
	}
	a := lease(1, "a", "1", true, "192.0.2.1", "2001:db8::1")
	for _, tt := range []struct {
		name  string
		other api.Lease
		want  string
	}{
		{"nothing in common", lease(2, "b", "2", true, "192.0.2.2"), ""},
		{"one address", lease(2, "b", "2", true, "192.0.2.2", "2001:db8::1"), "\na of 10.5.1.0/24 and b of 10.5.2.0/24 both have the address 2001:db8::1.\n"},
		{"one name", lease(2, "a", "2", true, "192.0.2.2"), "\na of 10.5.1.0/24 and a of 10.5.2.0/24 both have the name a.\n"},
		{"lapsed", lease(2, "a", "2", false, "192.0.2.1"), ""},
		{"the same host", lease(2, "a", "1", true, "192.0.2.1"), ""},
	} {
		var out strings.Builder
		writeDuplicates(&out, []api.Lease{a, tt.other})
		if out.String() != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, out.String(), tt.want)
		}
	}
	var many []api.Lease
	for i := range 200 {
		many = append(many, lease(i, "a", fmt.Sprint(i), true, "192.0.2.1"))
	}
	var out strings.Builder
	writeDuplicates(&out, many)
	if n := strings.Count(out.String(), "\n"); n != maxDuplicates+2 || !strings.HasSuffix(out.String(), "And 388 more.\n") {
		t.Errorf("%d lines:\n%s", n, out.String())
	}
}
