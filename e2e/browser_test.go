package e2e

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/lenonet/leno/e2e/lab"
)

// browser is a headless Chromium with one tab that sees a host's agent, which a
// proxy brings out of the host's namespace.
type browser struct {
	*world
	ctx    context.Context
	origin string
	away   atomic.Bool // the proxy answers that there is no agent
	full   atomic.Bool // the proxy answers reads that wait that there are too many

	mu         sync.Mutex
	requests   []string // URLs
	complaints []string // errors and warnings of page and console
}

// screenshots is where pictures of pages are left, to be looked at.
const screenshots = "LENO_SCREENSHOTS"

func (w *world) browse(h *lab.Host) *browser {
	w.t.Helper()
	b := &browser{world: w}
	target, err := url.Parse("http://127.0.0.1:5366")
	w.must(err)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: h.HTTP().Transport, FlushInterval: -1,
		ErrorHandler: func(rw http.ResponseWriter, _ *http.Request, _ error) { rw.WriteHeader(http.StatusBadGateway) }}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if b.away.Load() {
			rw.WriteHeader(http.StatusBadGateway)
			return
		}
		if b.full.Load() && r.URL.Query().Has("index") {
			rw.WriteHeader(http.StatusTooManyRequests)
			return
		}
		proxy.ServeHTTP(rw, r)
	}))
	w.t.Cleanup(func() {
		server.CloseClientConnections() // blocking reads
		server.Close()
	})
	b.origin = server.URL

	profile := w.t.TempDir()
	w.t.Cleanup(func() {
		if err := lab.WaitFor(context.Background(), "the end of the browser", func(context.Context) error { return ended(profile) }); err != nil {
			w.t.Error(err)
		}
	})
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(profile),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.WindowSize(1280, 900))
	ctx, cancel := chromedp.NewExecAllocator(w.ctx, options...)
	w.t.Cleanup(cancel) // waits for the end of the program
	b.ctx, cancel = chromedp.NewContext(ctx, chromedp.WithErrorf(func(string, ...any) {}), chromedp.WithListener(b.note))
	w.t.Cleanup(cancel)
	w.must(chromedp.Do(b.ctx))
	_, err = chromedp.Call(b.ctx, network.Enable, network.EnableParams{})
	w.must(err)
	return b
}

// note remembers what a page asks for and complains of.
func (b *browser) note(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	complain := func(format string, args ...any) {
		// That there is no agent, or too much to do, is said by the proxy, and told a
		// moment later.
		if text := fmt.Sprintf(format, args...); !b.away.Load() && !strings.Contains(text, "status of 502") && !strings.Contains(text, "status of 429") {
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

// do acts on the page.
func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	b.must(chromedp.Do(b.ctx, steps...))
}

func (b *browser) open(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.origin + path))
}

// value is what a JavaScript expression is on the page.
func value[T any](b *browser, expression string) T {
	b.t.Helper()
	out, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return out
}

// text is what the page shows.
func (b *browser) text() string { return value[string](b, "document.body.innerText") }

// shows waits until the page shows all words.
func (b *browser) shows(words ...string) {
	b.t.Helper()
	b.eventually(fmt.Sprintf("page with %q", words), func(context.Context) error {
		text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string]("document.body.innerText"))
		if err != nil {
			return err
		}
		for _, word := range words {
			if !strings.Contains(text, word) {
				return fmt.Errorf("%q is not in:\n%s", word, text)
			}
		}
		return nil
	})
}

// scheme has the page as in a colour scheme.
func (b *browser) scheme(name string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}, {Name: "prefers-reduced-motion", Value: "reduce"}}})
	b.must(err)
}

// scripts switches JavaScript of pages that are opened from now on.
func (b *browser) scripts(on bool) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on})
	b.must(err)
}

// hurry has pages that are opened from now on wait a fiftieth as long as they mean
// to, which window.waits tells.
func (b *browser) hurry() {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, cdppage.AddScriptToEvaluateOnNewDocument, cdppage.AddScriptToEvaluateOnNewDocumentParams{
		Source: `window.waits = []; { const set = setTimeout; window.setTimeout = (f, ms) => { waits.push(ms); return set(f, ms / 50); }; }`})
	b.must(err)
}

// names are the roles and names that a screen reader is told, in order.
func (b *browser) names() (out []string) {
	b.t.Helper()
	tree, err := chromedp.Call(b.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	b.must(err)
	for _, n := range tree.Nodes {
		if !n.Ignored && n.Role != nil && n.Name != nil {
			out = append(out, strings.Trim(string(n.Role.Value), `"`)+" "+strings.Trim(string(n.Name.Value), `"`))
		}
	}
	return out
}

// shoot leaves a picture of the whole page, as wide as given.
func (b *browser) shoot(name string, width int64) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(width, 900))
	image, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	b.must(err)
	dir := cmp.Or(os.Getenv(screenshots), "../bin/screenshots")
	b.must(os.MkdirAll(dir, 0o755))
	b.must(os.WriteFile(filepath.Join(dir, name+".png"), image, 0o644))
	b.do(chromedp.ResetViewport())
}

// clean fails the test for requests to others than the agent, and for whatever
// the browser complained of.
func (b *browser) clean() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.requests {
		if !strings.HasPrefix(r, b.origin+"/") {
			b.t.Errorf("the page asked for %s", r)
		}
	}
	if len(b.requests) < 5 {
		b.t.Errorf("only %d requests were seen", len(b.requests))
	}
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
