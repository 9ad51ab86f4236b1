// Package chromium looks at pages as people do: with a headless Chromium that has one tab. It knows
// how to act on a page and what the browser reports about it, but not which program serves the
// page.
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
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/lenonet/leno/e2e/lab"
)

// A Tab is the only tab of a Chromium of its own. Its methods fail the test on errors.
type Tab struct {
	Ctx context.Context // chromedp's context

	t        testing.TB
	origin   string
	expected func(complaint string) bool

	mu         sync.Mutex
	requests   []string // URLs
	complaints []string // errors and warnings of page and console
}

// Open starts a Chromium for a server, http://HOST:PORT, until the test ends. Expected complaints
// are not recorded; with a nil function, none is expected.
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
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.WindowSize(1280, 900),
		chromedp.WSURLReadTimeout(5*time.Minute)) // until the program has started, on a busy machine
	ctx, cancel := chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel) // waits until the program has ended
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

// note records a page's requests and complaints.
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

// Do runs actions on the page.
func (b *Tab) Do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	b.must(chromedp.Do(b.Ctx, steps...))
}

// Open opens a page of the server by its path.
func (b *Tab) Open(path string) {
	b.t.Helper()
	b.Do(chromedp.Navigate(b.origin + path))
}

// Value returns the value of a JavaScript expression on the page.
func Value[T any](b *Tab, expression string) T {
	b.t.Helper()
	out, err := chromedp.Run(b.Ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return out
}

// Text returns the visible text of the page.
func (b *Tab) Text() string {
	b.t.Helper()
	return Value[string](b, "document.body.innerText")
}

// Shows blocks until the page shows all words.
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

// Requests returns the URLs requested so far.
func (b *Tab) Requests() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.requests)
}

// Clean fails the test if there were requests to other servers or complaints of the browser.
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

// ended returns an error that names a process of the browser that is still running.
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
