package agent

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/agext/levenshtein"
	"github.com/lenonet/leno/registry"
)

// unknown answers what no endpoint does: 405 where one does by another method, and
// else 404 with the endpoint that looks most like it. known is what the server's
// mux would answer.
func (a *Agent) unknown(w http.ResponseWriter, r *http.Request, known http.Handler) {
	probe := &headerOnly{header: http.Header{}}
	known.ServeHTTP(probe, r)
	if probe.status == http.StatusMethodNotAllowed {
		allowed := probe.header.Get("Allow")
		w.Header().Set("Allow", allowed)
		a.refuse(w, http.StatusMethodNotAllowed, "%s takes %s, not %s", registry.Shorten(r.URL.Path, 4*maxQuoted), allowed, registry.Shorten(r.Method, maxQuoted))
		return
	}
	a.noEndpoint()(w, r)
}

// noEndpoint answers 404.
func (a *Agent) noEndpoint() http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		method, path := registry.Shorten(r.Method, maxQuoted), registry.Shorten(r.URL.Path, 4*maxQuoted)
		message := fmt.Sprintf("no such endpoint: %s %s", method, path)
		if near := a.nearest(path); near != "" {
			message += "; the nearest is " + near
		}
		a.refuse(w, http.StatusNotFound, "%s", message)
	}
}

// mostKnown bounds how many names an error lists.
const mostKnown = 20

// knownAre is the end of a sentence about something unknown: what is known of its
// kind.
func knownAre[T fmt.Stringer](names []T) string {
	if len(names) == 0 {
		return "none is known"
	}
	var shown []string
	for _, n := range names[:min(len(names), mostKnown)] {
		shown = append(shown, n.String())
	}
	out := "known are " + strings.Join(shown, ", ")
	if more := len(names) - mostKnown; more > 0 {
		out += fmt.Sprintf(" and %d more", more)
	}
	return out
}

// nearest is the endpoint whose path looks most like the one given, "" when none
// does.
func (a *Agent) nearest(path string) string {
	best, least := "", len(path)/3+2
	for _, e := range a.endpoints() {
		method, pattern, _ := strings.Cut(e.pattern, " ")
		if d := levenshtein.Distance(path, filled(pattern, path), nil); d < least {
			best, least = method+" "+pattern, d
		}
	}
	return best
}

// filled is a pattern with its wildcards replaced by what a path has in their
// place.
func filled(pattern, path string) string {
	want, have := strings.Split(pattern, "/"), strings.Split(path, "/")
	for i := range want {
		if strings.HasPrefix(want[i], "{") && i < len(have) {
			want[i] = have[i]
		}
	}
	return strings.Join(want, "/")
}

// headerOnly keeps an answer's header and drops the rest.
type headerOnly struct {
	header http.Header
	status int
}

func (h *headerOnly) Header() http.Header            { return h.header }
func (h *headerOnly) WriteHeader(status int)         { h.status = status }
func (h *headerOnly) Write(data []byte) (int, error) { return len(data), nil }
