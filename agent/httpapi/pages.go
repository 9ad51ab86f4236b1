package httpapi

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

// statusPage serves the page for people at /ui. It shows what the API's reads return and changes nothing.
type statusPage struct {
	server   *Server
	renderer *ui.Renderer
}

// addPages adds the page to the endpoints.
func (p *statusPage) addPages(mux *http.ServeMux) {
	mux.HandleFunc("GET /ui", p.overview)
	mux.HandleFunc("GET /ui/{$}", p.overview)
	mux.HandleFunc("GET /ui/network/{network}", p.network)
	mux.HandleFunc("GET /ui/assets/{name}", p.asset)
	mux.HandleFunc("GET /ui/{path...}", p.missing)
	mux.HandleFunc("GET /{$}", p.root)
}

// root leads people to the page. Programs get the error about an unknown endpoint.
func (p *statusPage) root(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept")
	if strings.Contains(r.Header.Get("Accept"), "text/html") {
		w.Header().Set("Location", "ui")
		w.WriteHeader(http.StatusFound)
		return
	}
	p.server.refuseEndpoint(w, r)
}

func (p *statusPage) overview(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/ui" { // the page's links are relative to it
		w.Header().Set("Location", "../ui")
		w.WriteHeader(http.StatusMovedPermanently)
		return
	}
	p.show(w, r, "")
}

func (p *statusPage) network(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("network")
	if names := p.networks(); !slices.Contains(names, name) {
		p.notFound(w, r, fmt.Sprintf("This host takes no part in network %q. Its networks: %s.",
			registry.Shorten(name, registry.MaxShownKey), strings.Join(names, ", ")))
		return
	}
	p.show(w, r, name)
}

func (p *statusPage) missing(w http.ResponseWriter, r *http.Request) {
	p.notFound(w, r, "There is no such page.")
}

const maxQuery = 100 // bytes

// show sends a page, or says that it has not changed.
func (p *statusPage) show(w http.ResponseWriter, r *http.Request, only string) {
	page := p.page(only)
	page.Query = registry.Shorten(r.URL.Query().Get("q"), maxQuery)
	page.Path = registry.Shorten(r.URL.Query().Get("path"), maxQuery)
	page.From, _ = strconv.Atoi(r.URL.Query().Get("from")) // anything but a number means the first row
	body, err := p.renderer.Render(page)
	if err != nil {
		p.server.log.Error("status page could not be rendered", "error", err)
		http.Error(w, "the page could not be rendered: "+err.Error(), http.StatusInternalServerError)
		return
	}
	p.send(w, r, pageAnswer{http.StatusOK, "text/html; charset=utf-8", ui.Version(body), "no-cache", body})
}

func (p *statusPage) notFound(w http.ResponseWriter, r *http.Request, what string) {
	body, err := p.renderer.Missing(strings.Repeat("../", strings.Count(r.URL.Path, "/")-1), what)
	if err != nil {
		http.Error(w, what, http.StatusNotFound)
		return
	}
	p.send(w, r, pageAnswer{http.StatusNotFound, "text/html; charset=utf-8", "", "no-cache", body})
}

// asset sends a file of the page. A file that is requested by its version never changes.
func (p *statusPage) asset(w http.ResponseWriter, r *http.Request) {
	content, kind, version, ok := p.renderer.Asset(r.PathValue("name"))
	if !ok {
		p.missing(w, r)
		return
	}
	cache := "no-cache"
	if r.URL.Query().Get("v") == version {
		cache = "public, max-age=31536000, immutable"
	}
	p.send(w, r, pageAnswer{http.StatusOK, kind, version, cache, content})
}

// pageAnswer is an answer of the page.
type pageAnswer struct {
	code    int
	kind    string // Content-Type
	version string // for ETag, "" for none
	cache   string // Cache-Control
	body    []byte
}

// send writes an answer with headers that keep browsers from doing more than showing it: they load nothing from
// elsewhere, run no script but the page's own, and show it in no frame.
func (p *statusPage) send(w http.ResponseWriter, r *http.Request, a pageAnswer) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "+
		"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", a.cache)
	h.Set("Content-Type", a.kind)
	started := time.Now()
	if a.version != "" {
		tag := `"` + a.version + `"`
		h.Set("ETag", tag)
		if strings.Contains(r.Header.Get("If-None-Match"), tag) {
			a.code, a.body = http.StatusNotModified, nil
			h.Del("Content-Type")
		}
	}
	w.WriteHeader(a.code)
	log := p.server.log
	if r.Method != http.MethodHead {
		if _, err := w.Write(a.body); err != nil {
			log.Debug("http response was cut off", "error", err)
		}
	}
	log.Trace("http request", "method", r.Method, "path", r.URL.Path, "status", a.code, "took", time.Since(started))
}
