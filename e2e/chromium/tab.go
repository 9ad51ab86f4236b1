// Package chromium looks at pages as people do: a headless Chromium with one tab. It knows how
// to act on a page and what the browser says about it, and nothing of whose page it is.
package chromium

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/lenonet/leno/e2e/lab"
)

// Tab is the only tab of a Chromium of its own. Its methods fail the test.
type Tab struct {
	Ctx context.Context // of chromedp

	t        testing.TB
	origin   string
	expected func(complaint string) bool

	mu         sync.Mutex
	requests   []string // URLs
	complaints []string // errors and warnings of page and console
}

// Open starts a Chromium that looks at a server, http://HOST:PORT, until the test ends.
// Complaints that are expected are not remembered; nil expects none.
func Open(ctx context.Context, t testing.TB, origin string, expected func(complaint string) bool) *Tab {
	t.Helper()
	b := &Tab{t: t, origin: origin, expected: expected}
	profile := t.TempDir()
	t.Cleanup(func() {
		if err := lab.WaitFor(context.Background(), "the end of the browser", func(context.Context) error { return ended(profile) }); err != nil {
			t.Error(err)
		}
	})
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(profile),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.WindowSize(1280, 900))
	ctx, cancel := chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel) // waits for the end of the program
	b.Ctx, cancel = chromedp.NewContext(ctx, chromedp.WithErrorf(func(string, ...any) {}), chromedp.WithListener(b.note))
	t.Cleanup(cancel)
	b.Do()
	_, err := chromedp.Call(b.Ctx, network.Enable, network.EnableParams{})
	b.must(err)
	return b
}

func (b *Tab) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// note remembers what a page asks for and complains of.
func (b *Tab) note(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	complain := func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); b.expected == nil || !b.expected(text) {
			b.complaints = append(b.complaints, text)
		}
	}
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	case *runtime.EventExceptionThrown:
		complain("exception: %+v", e.ExceptionDetails)
	case *runtime.EventConsoleAPICalled:
		complain("console: %v", e.Args)
	case *log.EventEntryAdded:
		complain("%s: %s (%s)", e.Entry.Level, e.Entry.Text, cmp.Or(e.Entry.URL, "no address"))
	}
}

// Do acts on the page.
func (b *Tab) Do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	b.must(chromedp.Do(b.Ctx, steps...))
}

// Open shows a page of the server.
func (b *Tab) Open(path string) {
	b.t.Helper()
	b.Do(chromedp.Navigate(b.origin + path))
}

// Value is what a JavaScript expression is on the page.
func Value[T any](b *Tab, expression string) T {
	b.t.Helper()
	out, err := chromedp.Run(b.Ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return out
}

// Text is what the page shows.
func (b *Tab) Text() string {
	b.t.Helper()
	return Value[string](b, "document.body.innerText")
}

// Shows waits until the page shows all words.
func (b *Tab) Shows(words ...string) {
	b.t.Helper()
	b.must(lab.WaitFor(b.Ctx, fmt.Sprintf("page with %q", words), func(context.Context) error {
		text, err := chromedp.Run(b.Ctx, chromedp.Evaluate[string]("document.body.innerText"))
		if err != nil {
			return err
		}
		for _, word := range words {
			if !strings.Contains(text, word) {
				return fmt.Errorf("%q is not in:\n%s", word, text)
			}
		}
		return nil
	}))
}

// Requests are the URLs that were asked for until now.
func (b *Tab) Requests() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.requests)
}

// Clean fails the test for requests to others than the server, and for whatever
// the browser complained of.
func (b *Tab) Clean() {
	b.t.Helper()
	requests := b.Requests()
	for _, r := range requests {
		if !strings.HasPrefix(r, b.origin+"/") && !strings.HasPrefix(r, "data:") {
			b.t.Errorf("the page asked for %s", r)
		}
	}
	if len(requests) < 5 {
		b.t.Errorf("only %d requests were seen", len(requests))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.complaints {
		b.t.Errorf("the browser complains: %s", c)
	}
}

// ended says which process of a browser still runs.
func ended(dir string) error {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, file := range files {
		if line, err := os.ReadFile(file); err == nil && strings.Contains(string(line), dir) {
			return fmt.Errorf("%s still runs: %s", filepath.Base(filepath.Dir(file)), strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return nil
}
