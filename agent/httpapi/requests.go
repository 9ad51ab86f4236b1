package httpapi

import (
	"compress/gzip"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/gzhttp"
)

const requestIDHeader = "X-Request-Id"

// goodRequestID matches the ids that are taken over from a caller, such as "7c9e6679-7425".
var goodRequestID = regexp.MustCompile(`^[A-Za-z0-9._:/=+-]{1,64}$`)

// Handler returns the handler of all requests. Each handler has its own limit of requests.
func (s *Server) Handler() (http.Handler, error) {
	compressing, err := gzhttp.NewWrapper(gzhttp.MinSize(minGzip), gzhttp.CompressionLevel(gzip.BestSpeed),
		gzhttp.EnableZstd(false))
	if err != nil {
		return nil, fmt.Errorf("http server: %w", err)
	}
	plain := s.withRequestLog(s.withBodyDrain(s.withOriginCheck(s.withLimits(s.routes()))))
	compressed := compressing(plain)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == monitorPath { // its lines and header must not be held back
			plain.ServeHTTP(w, r)
			return
		}
		compressed.ServeHTTP(w, r)
	}), nil
}

// withRequestLog gives each request an id and a line in the log, and answers in place of a handler that panics.
func (s *Server) withRequestLog(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun := time.Now()
		id := r.Header.Get(requestIDHeader)
		if !goodRequestID.MatchString(id) {
			id = newRequestID()
		}
		w.Header().Set(requestIDHeader, id)
		w.Header().Set("Cache-Control", "no-store")
		out := &statusRecorder{ResponseWriter: w, code: http.StatusOK}
		log := s.log.With("request_id", id, "method", quoteText(r.Method), "path", quotePath(r))
		defer func() {
			if fault := recover(); fault != nil && fault != http.ErrAbortHandler {
				log.Error("http handler panicked", "error", fmt.Sprint(fault), "stack", string(debug.Stack()))
				if out.begun {
					panic(http.ErrAbortHandler) // half an answer must not look complete
				}
				s.respond.refuse(out, http.StatusInternalServerError,
					"internal error: see request_id %s in the agent's log", id)
			} else if fault != nil {
				panic(fault)
			}
			log.Trace("http request", "status", out.code, "took", time.Since(begun))
		}()
		next.ServeHTTP(out, r)
	})
}

func newRequestID() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// withOriginCheck keeps other sites' web pages from the API: a browser on this host reaches a listener that no other
// host can reach.
//
// A page may send changes to any address; browsers say where the page came from. A page whose name is pointed at this
// host after it was loaded (DNS rebinding) may even read answers. It is recognised by that name, whatever address of
// this host the browser reaches: see hostnames.Names. TLS needs no such check, because a browser refuses the
// certificate, and neither does a socket, which no browser reaches.
func (s *Server) withOriginCheck(next http.Handler) http.Handler {
	origins := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, isTCP := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
		if isTCP && r.TLS == nil {
			if err := s.names.Check(r.Host); err != nil {
				s.respond.refuse(w, http.StatusMisdirectedRequest, "%v", err)
				return
			}
		}
		if err := origins.Check(r); err != nil {
			s.respond.refuse(w, http.StatusForbidden, "a page of another site may not change anything: %v", err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// withBodyDrain gives a client a moment to send the rest of a body that no handler has read: the server waits for it
// before it takes the next request from the connection or closes it. This never prolongs the time for the whole
// request. Once the body has ended, a deadline would end the contexts of all later requests on the connection.
func (s *Server) withBodyDrain(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			begun, body := time.Now(), &requestBody{ReadCloser: r.Body}
			r.Body = body
			defer func() {
				if !body.ended {
					left := min(s.o.Limits.BodyDrain, s.o.Limits.RequestTime-time.Since(begun))
					_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(left))
				}
			}()
		}
		next.ServeHTTP(w, r)
	})
}

// A requestBody remembers whether it was read to its end.
type requestBody struct {
	io.ReadCloser
	ended bool
}

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.ended = b.ended || err == io.EOF
	return n, err
}

// withLimits refuses requests while too many are being answered, except those for the agent's health, and limits the
// body of every request. A read must not have one: while a body is unread, the server does not notice that the client
// has gone.
func (s *Server) withLimits(next http.Handler) http.Handler {
	var running atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer running.Add(-1)
		health := r.URL.Path == "/healthz" || r.URL.Path == "/readyz"
		n := running.Add(1)
		if n > int64(s.o.Limits.Requests) && !health {
			w.Header().Set("Connection", "close")
			w.Header().Set("Retry-After", "1")
			s.respond.refuse(w, http.StatusServiceUnavailable, "%d requests are in progress already: try again", n-1)
			return
		}
		if (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.ContentLength != 0 {
			w.Header().Set("Connection", "close")
			s.respond.refuse(w, http.StatusBadRequest, "a %s request must not have a body", r.Method)
			return
		}
		if r.ContentLength > s.o.Limits.Body {
			w.Header().Set("Connection", "close")
			s.respond.fail(w, bodyError(&http.MaxBytesError{Limit: s.o.Limits.Body}))
			return
		}
		if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
			s.respond.refuse(w, http.StatusBadRequest, "query: %v", err)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, s.o.Limits.Body)
		next.ServeHTTP(w, r)
	})
}
