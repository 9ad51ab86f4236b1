package main

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	printed := []piece{
		{1 * time.Second, "\x1b[1;36m1. Hosts\x1b[22;0m\r\n   pl"},
		{2 * time.Second, "ain & <simple>\r\n\r\n"},
		{3 * time.Second, "\x1b[32mover\r"},
		{3 * time.Second, "\nlines\x1b[0m.\r\n"},
	}
	got, err := parse(printed)
	if err != nil {
		t.Fatal(err)
	}
	want := []line{
		{time.Second, []span{{"1;36", "1. Hosts"}}},
		{2 * time.Second, []span{{"", "   plain & <simple>"}}},
		{2 * time.Second, nil},
		{3 * time.Second, []span{{"32", "over"}}},
		{3 * time.Second, []span{{"32", "lines"}, {"", "."}}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(line{}, span{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestRefused(t *testing.T) {
	for name, tt := range map[string]struct{ printed, want string }{
		"cursor moved":     {"one\n\x1b[2Kprogress\n", `line 2, "\x1b[2Kprogress", has a control character`},
		"bell":             {"a\a\n", "control character"},
		"overwritten":      {"10%\r20%\n", "control character"},
		"no end":           {"one\ntwo", `the last line, "two", has no end`},
		"unknown style":    {"\x1b[5mblink\x1b[0m\n", `line 1: a style, "5"`},
		"wider than it is": {"123456789\n", "line 1: 9 columns, of 8"},
	} {
		t.Run(name, func(t *testing.T) {
			lines, err := parse([]piece{{text: tt.printed}})
			if err == nil {
				_, err = (&picture{columns: 8, rows: 2, lines: lines}).svg()
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

func TestPace(t *testing.T) {
	var lines []line
	for _, at := range []time.Duration{100 * time.Millisecond, 110 * time.Millisecond, time.Second, time.Minute} {
		lines = append(lines, line{at: at})
	}
	var got []time.Duration
	for _, l := range (pace{line: 200 * time.Millisecond, wait: 2 * time.Second}).set(lines, line{}) {
		got = append(got, l.at)
	}
	want := []time.Duration{0, 200 * time.Millisecond, 400 * time.Millisecond, 1290 * time.Millisecond, 3290 * time.Millisecond}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestPicture draws more lines than there are rows: they appear one by one, move up when the
// picture is full, and do not move for readers who want no animation.
func TestPicture(t *testing.T) {
	p := picture{title: "T & t", description: "D", columns: 20, rows: 2, hold: time.Second, lines: []line{
		{0, []span{{"90", "$ "}, {"1", "run"}}},
		{time.Second, nil},
		{2 * time.Second, []span{{"", "a<b"}}},
		{3 * time.Second, []span{{"32", "done"}}},
	}}
	text, err := p.svg()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`<title id="title">T &amp; t</title>`, `<desc id="description">D</desc>`,
		`<text id="l0" y="15" xml:space="preserve"><tspan class="grey">$ </tspan><tspan class="bold">run</tspan></text>`,
		`<text id="l2" y="55" xml:space="preserve">a&lt;b</text>`,
		"#s{transform:translateY(-40px)}\n@media (prefers-reduced-motion:no-preference){",
		"@keyframes s{0%{transform:none}50%{transform:translateY(-20px)}75%{transform:translateY(-40px)}}",
		"#l2{animation-name:l2}@keyframes l2{0%{opacity:0}50%{opacity:1}}",
		"#s,text{animation:s 4.0s step-end infinite;animation-delay:-3.0s}",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

// TestRecord records a program on a terminal.
func TestRecord(t *testing.T) {
	got, err := record(context.Background(), 50, 10, []string{"sh", "-c", "test -t 1 && stty size; exit 0"})
	if err != nil {
		t.Fatal(err)
	}
	var text string // the terminal may pass it on in several pieces
	for _, p := range got {
		text += p.text
	}
	if text != "10 50\r\n" {
		t.Errorf("%+v, want the terminal's size", got)
	}
	if _, err := record(context.Background(), 50, 10, []string{"sh", "-c", "echo half; exit 3"}); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("%v, want the exit code", err)
	}
}

// TestCommitted checks the recording that README.md and the site show: it is small, loads nothing,
// and plays for about half a minute.
func TestCommitted(t *testing.T) {
	text, err := os.ReadFile("../../../website/content/docs/intro/demo.svg")
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 100<<10 {
		t.Errorf("%d bytes", len(text))
	}
	for d := xml.NewDecoder(strings.NewReader(string(text))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		e, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		for _, a := range e.Attr {
			if a.Name.Local == "href" || strings.HasPrefix(a.Name.Local, "on") || strings.Contains(a.Value, "://") && a.Name.Local != "xmlns" {
				t.Errorf("%s has %s=%q", e.Name.Local, a.Name.Local, a.Value)
			}
		}
		switch e.Name.Local {
		case "svg", "title", "desc", "style", "rect", "g", "text", "tspan":
		default:
			t.Errorf("an element %s", e.Name.Local)
		}
	}
	if m := regexp.MustCompile(`@import|@font-face|url\(`).Find(text); m != nil {
		t.Errorf("it has %s", m)
	}
	m := regexp.MustCompile(`animation:s (\d+)`).FindSubmatch(text)
	if m == nil || len(m[1]) != 2 || m[1][0] > '4' {
		t.Errorf("it plays for %s s", m)
	}
}
