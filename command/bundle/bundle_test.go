package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestCollect: a capture that fails, hangs or is too large does not stop the others, and keeps
// what it wrote before.
func TestCollect(t *testing.T) { synctest.Test(t, testCollect) }

func testCollect(t *testing.T) {
	write := func(text string, err error) func(context.Context, io.Writer) error {
		return func(_ context.Context, w io.Writer) error {
			_, wrong := io.WriteString(w, text)
			return errors.Join(wrong, err)
		}
	}
	looks := 0
	took := Collect(context.Background(), []Capture{
		{"good", "s", write("has a 5ecret in it", nil)},
		{"bad", "s", write("part", errors.New("refused: 5ecret"))},
		Within(10*time.Millisecond, Capture{"hangs", "s", func(ctx context.Context, w io.Writer) error { <-ctx.Done(); return ctx.Err() }}),
		{"large", "s", func(_ context.Context, w io.Writer) error {
			chunk := make([]byte, 1<<20)
			for {
				if _, err := w.Write(chunk); err != nil {
					return nil
				}
			}
		}},
		Stream("stream", "s", 10*time.Millisecond, func(ctx context.Context, w io.Writer) error {
			_, err := io.WriteString(w, "line")
			<-ctx.Done()
			return errors.Join(err, ctx.Err())
		}),
		Series("series", "s", 500*time.Millisecond, 10*time.Millisecond, func(context.Context) (any, error) {
			if looks++; looks == 2 {
				return nil, errors.New("away")
			}
			return looks, nil
		}),
		program("none", "no-such-program-here", "x"),
		program("fails", "sh", "-c", "echo out; echo why >&2; exit 3"),
		files("files", filepath.Join(t.TempDir(), "none"), os.DevNull),
	}, []string{"5ecret", ""})
	var got []string
	for _, c := range took {
		text := string(c.data)
		if len(text) > 100 {
			text = fmt.Sprint(len(text))
		}
		got = append(got, c.File+" "+text+": "+c.Error)
		if c.Bytes != len(c.data) {
			t.Errorf("%s: %d bytes", c.File, c.Bytes)
		}
	}
	lines := strings.Join(got, "\n")
	for _, want := range []string{"good has a (secret) in it: \n", "bad part: refused: (secret)\n", "hangs : no answer within 10ms", fmt.Sprintf("large %d: cut off", maxFile),
		"stream line: \n", "none : no-such-program-here is not installed here", "fails out\n: exit status 3: why"} {
		if !strings.Contains(lines, want) {
			t.Errorf("%q is missing in\n%s", want, lines)
		}
	}
	series := string(took[5].data)
	if !strings.Contains(series, `"answer":1}`) || !strings.Contains(series, `"error":"away"}`) || !strings.Contains(series, `"answer":3}`) || took[5].Error != "away" {
		t.Errorf("%s%s", series, took[5].Error)
	}
}

func TestFileName(t *testing.T) {
	for text, want := range map[string]string{"default": "default", "": "_", "..": "_", "../x": "_x", "a/b\x1b": "a_b_", ".hidden": "hidden", strings.Repeat("x", 99): strings.Repeat("x", 64)} {
		if got := FileName(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
