package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/e2e/lab"
)

// binary is the path of the leno that the demo shows.
var binary string

func TestMain(m *testing.M) {
	os.Exit(lab.WithLeno(func(leno string) int {
		binary = leno
		return m.Run()
	}))
}

// recording is the picture of the demo that `make recording` creates.
const recording = "../../../website/content/docs/intro/demo.svg"

// TestRecording runs the demo with each store and compares the recording with its output: the lines
// must be the same, except for the name of the store, and numbers and addresses, which differ in each
// run.
func TestRecording(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	prompt, shown, _ := strings.Cut(recorded(t), "\n")
	if prompt != "$ make demo" {
		t.Errorf("it begins with %q", prompt)
	}
	withEtcd := strings.NewReplacer(
		"a Consul server", "an etcd server",
		"Consul", "etcd",
		"consul", "etcd",
		":8500", ":2379",
	)
	for store, want := range map[string]string{lab.StoreConsul: shown, lab.StoreEtcd: withEtcd.Replace(shown)} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), 5*limit) // the machine may be busy
			defer cancel()
			var out bytes.Buffer
			d := &demo{out: &out, styles: newStyles(false), backend: "vxlan", away: 200 * time.Millisecond}
			if err := d.run(ctx, lab.Options{Name: "demo", Leno: binary, Store: store}); err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			if diff := cmp.Diff(steady(want), steady(out.String())); diff != "" {
				t.Errorf("run make recording: the demo is another one by now (-recording +is):\n%s", diff)
			}
			for _, private := range []string{d.ID, d.Dir, os.TempDir()} {
				if strings.Contains(out.String(), private) {
					t.Errorf("the demo shows %s, which is this machine's", private)
				}
			}
		})
	}
}

// steady returns the lines of the output without the values that differ in each run. Hosts are
// listed in the order of their subnets, which are chosen at random.
func steady(text string) []string {
	for _, passing := range []struct{ pattern, with string }{
		{`\n {9,}`, " "}, // where a line is wrapped depends on its content
		{`grep -A \d`, "grep -A N"},
		{`fd00:5:0:[0-9a-f]+::(2|/64)`, "v6"},
		{`10\.5\.\d+\.\d+`, "v4"},
		{`leno \d\S+,`, "leno VERSION,"},
		{`\bpid \d+`, "pid N"},
		{`(\d\S* to )?\b\d[\d.]*( ms| s|ms|s)\b`, "TIME"},
		{`\d[\d.]*( pings| Gbit/s)`, "N$1"},
		{`with \d warnings?`, "with warnings"},
		{` +`, " "}, // column widths depend on their content
	} {
		text = regexp.MustCompile(passing.pattern).ReplaceAllString(text, passing.with)
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := range lines {
		end := i
		for end < len(lines) && strings.HasPrefix(lines[end], " v4") {
			end++
		}
		slices.Sort(lines[i:end])
	}
	return lines
}

// recorded returns the text of the picture, row by row.
func recorded(t *testing.T) string {
	t.Helper()
	file, err := os.Open(recording)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const rowHigh = 20
	var rows []string
	open := false
	for d := xml.NewDecoder(file); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return strings.Join(rows, "\n")
		}
		if err != nil {
			t.Fatal(err)
		}
		switch e := token.(type) {
		case xml.StartElement:
			if e.Name.Local != "text" {
				continue
			}
			for _, a := range e.Attr {
				if a.Name.Local != "y" {
					continue
				}
				y, err := strconv.Atoi(a.Value)
				if err != nil {
					t.Fatal(err)
				}
				rows = append(rows, make([]string, y/rowHigh+1-len(rows))...)
			}
			open = true
		case xml.EndElement:
			open = open && e.Name.Local != "text"
		case xml.CharData:
			if open {
				rows[len(rows)-1] += string(e)
			}
		}
	}
}
