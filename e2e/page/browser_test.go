package page

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"

	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/lenonet/leno/e2e/chromium"
	"github.com/lenonet/leno/e2e/lab"
)

// A browser looks at a host's agent through a proxy that leads out of the host's namespace.
type browser struct {
	*testWorld
	*chromium.Tab
	away atomic.Bool // the proxy responds that there is no agent
	full atomic.Bool // the proxy responds to blocking reads that there are too many
}

// pictures is the directory for screenshots, for people to look at.
const pictures = "../../bin/screenshots"

func (w *testWorld) browse(h *lab.Host) *browser {
	w.T.Helper()
	b := &browser{testWorld: w}
	target, err := url.Parse("http://127.0.0.1:5366")
	w.Must(err)
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
	w.T.Cleanup(func() {
		server.CloseClientConnections() // ends blocking reads
		server.Close()
	})
	b.Tab = chromium.Open(w.Ctx, w.T, server.URL, func(complaint string) bool {
		// The proxy reports a missing or busy agent, and the browser may complain about it a moment
		// later.
		return b.away.Load() || strings.Contains(complaint, "status of 502") || strings.Contains(complaint, "status of 429")
	})
	return b
}

// hurry makes timers of pages that are opened from now on fire after a fiftieth of their time. The
// intended times are in window.waits.
func (b *browser) hurry() {
	b.T.Helper()
	_, err := chromedp.Call(b.Ctx, cdppage.AddScriptToEvaluateOnNewDocument, cdppage.AddScriptToEvaluateOnNewDocumentParams{
		Source: `window.waits = []; { const set = setTimeout; window.setTimeout = (f, ms) => { waits.push(ms); return set(f, ms / 50); }; }`})
	b.Must(err)
}
