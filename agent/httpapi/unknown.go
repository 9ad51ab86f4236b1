package httpapi

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/agext/levenshtein"

	"github.com/lenonet/leno/registry"
)

// refuseUnknown answers a request that matches no endpoint: with 405 if its path exists under another method, otherwise
// with 404 and the endpoint that looks most like it. fallback is the mux's handler for the request.
func (s *Server) refuseUnknown(w http.ResponseWriter, r *http.Request, fallback http.Handler) {
	answer := &headerRecorder{header: http.Header{}}
	fallback.ServeHTTP(answer, r)
	if answer.status == http.StatusMethodNotAllowed {
		allowed := answer.header.Get("Allow")
		w.Header().Set("Allow", allowed)
		s.respond.refuse(w, http.StatusMethodNotAllowed, "%s takes %s, not %s",
			quotePath(r), allowed, quoteText(r.Method))
		return
	}
	s.refuseEndpoint(w, r)
}

// refuseEndpoint answers with 404.
func (s *Server) refuseEndpoint(w http.ResponseWriter, r *http.Request) {
	method, path := quoteText(r.Method), quotePath(r)
	message := fmt.Sprintf("no such endpoint: %s %s", method, path)
	if nearest := s.nearestEndpoint(path); nearest != "" {
		message += "; the nearest is " + nearest
	}
	s.respond.refuse(w, http.StatusNotFound, "%s", message)
}

// nearestEndpoint returns the endpoint whose path looks most like the given one, or "" if none does.
func (s *Server) nearestEndpoint(path string) string {
	nearest, least := "", len(path)/3+2
	for _, e := range s.endpoints {
		method, pattern, _ := strings.Cut(e.pattern, " ")
		if d := levenshtein.Distance(path, fillWildcards(pattern, path), nil); d < least {
			nearest, least = method+" "+pattern, d
		}
	}
	return nearest
}

// fillWildcards replaces the wildcards of a pattern by what a path has in their place.
func fillWildcards(pattern, path string) string {
	want, have := strings.Split(pattern, "/"), strings.Split(path, "/")
	for i := range want {
		if strings.HasPrefix(want[i], "{") && i < len(have) {
			want[i] = have[i]
		}
	}
	return strings.Join(want, "/")
}

// A headerRecorder keeps the status and header of an answer and drops the body.
type headerRecorder struct {
	header http.Header
	status int
}

func (h *headerRecorder) Header() http.Header            { return h.header }
func (h *headerRecorder) WriteHeader(status int)         { h.status = status }
func (h *headerRecorder) Write(data []byte) (int, error) { return len(data), nil }

// maxListed bounds how many names an error lists.
const maxListed = 20

// listKnown returns the end of an error about an unknown name, such as "known are 10.5.1.0/24, 10.5.2.0/24".
func listKnown[T fmt.Stringer](names []T) string {
	if len(names) == 0 {
		return "none is known"
	}
	out := "known are " + registry.Join(names[:min(len(names), maxListed)])
	if more := len(names) - maxListed; more > 0 {
		out += fmt.Sprintf(" and %d more", more)
	}
	return out
}
