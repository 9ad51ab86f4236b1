package agent

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/ui"
	"github.com/lenonet/leno/registry"
)

// statusPage is the page for people, at /ui. It shows what the API's reads answer and
// changes nothing.
type statusPage struct {
	*Agent
	renderer *ui.Renderer
}

// pageRoutes adds the page.
func (a *Agent) pageRoutes(mux *http.ServeMux) {
	renderer, err := ui.New()
	if err != nil {
		a.log.Error("there is no status page", "error", err) // which tests rule out
		return
	}
	s := &statusPage{a, renderer}
	mux.HandleFunc("GET /ui", s.overview)
	mux.HandleFunc("GET /ui/{$}", s.overview)
	mux.HandleFunc("GET /ui/network/{network}", s.network)
	mux.HandleFunc("GET /ui/assets/{name}", s.asset)
	mux.HandleFunc("GET /ui/{path...}", s.missing)
	mux.HandleFunc("GET /{$}", s.root)
}

// root leads people to the page; programs hear that there is no such endpoint.
func (s *statusPage) root(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept")
	if strings.Contains(r.Header.Get("Accept"), "text/html") {
		w.Header().Set("Location", "ui")
		w.WriteHeader(http.StatusFound)
		return
	}
	s.noEndpoint()(w, r)
}

func (s *statusPage) overview(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/ui" { // the page's links are relative to it
		w.Header().Set("Location", "../ui")
		w.WriteHeader(http.StatusMovedPermanently)
		return
	}
	s.show(w, r, "")
}

func (s *statusPage) network(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("network")
	if names := s.partIn(); !slices.Contains(names, name) {
		s.lacks(w, r, fmt.Sprintf("This host takes no part in a network %q, it does in: %s.", registry.Shorten(name, registry.MaxShownKey), strings.Join(names, ", ")))
		return
	}
	s.show(w, r, name)
}

func (s *statusPage) missing(w http.ResponseWriter, r *http.Request) {
	s.lacks(w, r, "There is no such page.")
}

// show answers with a page, or that it has not changed.
func (s *statusPage) show(w http.ResponseWriter, r *http.Request, only string) {
	p := s.page(only)
	p.Query = registry.Shorten(r.URL.Query().Get("q"), maxQuery)
	p.From, _ = strconv.Atoi(r.URL.Query().Get("from")) // what is no number begins with the first
	body, err := s.renderer.Render(p)
	if err != nil {
		s.log.Error("status page cannot be drawn", "error", err)
		http.Error(w, "the page cannot be drawn: "+err.Error(), http.StatusInternalServerError)
		return
	}
	s.deliver(w, r, http.StatusOK, "text/html; charset=utf-8", ui.Version(body), "no-cache", body)
}

const maxQuery = 100 // bytes

func (s *statusPage) lacks(w http.ResponseWriter, r *http.Request, what string) {
	body, err := s.renderer.Missing(strings.Repeat("../", strings.Count(r.URL.Path, "/")-1), what)
	if err != nil {
		http.Error(w, what, http.StatusNotFound)
		return
	}
	s.deliver(w, r, http.StatusNotFound, "text/html; charset=utf-8", "", "no-cache", body)
}

// asset answers with a file of the page. One asked for by its version never
// changes.
func (s *statusPage) asset(w http.ResponseWriter, r *http.Request) {
	content, kind, version, ok := s.renderer.Asset(r.PathValue("name"))
	if !ok {
		s.missing(w, r)
		return
	}
	cache := "no-cache"
	if r.URL.Query().Get("v") == version {
		cache = "public, max-age=31536000, immutable"
	}
	s.deliver(w, r, http.StatusOK, kind, version, cache, content)
}

// deliver writes an answer of the page with what keeps browsers from doing more
// than showing it: nothing is loaded from elsewhere, no script but the page's own
// runs, and nobody frames it.
func (s *statusPage) deliver(w http.ResponseWriter, r *http.Request, code int, kind, version, cache string, body []byte) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "+
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", cache)
	h.Set("Content-Type", kind)
	started := time.Now()
	if version != "" {
		tag := `"` + version + `"`
		h.Set("ETag", tag)
		if strings.Contains(r.Header.Get("If-None-Match"), tag) {
			code, body = http.StatusNotModified, nil
			h.Del("Content-Type")
		}
	}
	w.WriteHeader(code)
	if r.Method != http.MethodHead {
		if _, err := w.Write(body); err != nil {
			s.log.Debug("http answer was cut off", "error", err)
		}
	}
	s.log.Trace("http request", "method", r.Method, "path", r.URL.Path, "status", code, "took", time.Since(started))
}
