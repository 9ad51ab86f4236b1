package agent

import (
	"compress/gzip"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/gzhttp"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

const requestIDHeader = "X-Request-Id"

// minGzip is the size below which an answer fits a packet or two however it is
// sent, in bytes.
const minGzip = 1400

// goodRequestID is what is taken over from a caller.
var goodRequestID = regexp.MustCompile(`^[A-Za-z0-9._:/=+-]{1,64}$`)

// handler is what all requests of a listener go through before and after those
// that endpoints answer.
func (a *Agent) handler() (http.Handler, error) {
	compress, err := gzhttp.NewWrapper(gzhttp.MinSize(minGzip), gzhttp.CompressionLevel(gzip.BestSpeed), gzhttp.EnableZstd(false))
	if err != nil {
		return nil, fmt.Errorf("http server: %w", err)
	}
	plain := a.told(a.brief(a.guarded(a.bounded(a.routes()))))
	compressed := compress(plain)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == monitorPath { // whose lines, and headers, must not be held back
			plain.ServeHTTP(w, r)
			return
		}
		compressed.ServeHTTP(w, r)
	}), nil
}

// told gives each request an id and a line in the log, and answers for a handler
// that panics.
func (a *Agent) told(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun := time.Now()
		id := r.Header.Get(requestIDHeader)
		if !goodRequestID.MatchString(id) {
			id = newRequestID()
		}
		w.Header().Set(requestIDHeader, id)
		w.Header().Set("Cache-Control", "no-store")
		out := &answered{ResponseWriter: w, code: http.StatusOK}
		log := a.log.With("request_id", id, "method", registry.Shorten(r.Method, maxQuoted), "path", registry.Shorten(r.URL.Path, 4*maxQuoted))
		defer func() {
			if fault := recover(); fault != nil && fault != http.ErrAbortHandler {
				log.Error("http handler panicked", "error", fmt.Sprint(fault), "stack", string(debug.Stack()))
				if out.begun {
					panic(http.ErrAbortHandler) // what was sent must not look whole
				}
				a.refuse(out, http.StatusInternalServerError, "a fault of the agent's own; its log has it under request_id %s", id)
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

// refuse answers with an error.
func (a *Agent) refuse(w http.ResponseWriter, status int, format string, args ...any) {
	a.write(w, status, &api.Error{Code: status, Message: fmt.Sprintf(format, args...)})
}

// guarded keeps web pages of others from the API: a browser on this host reaches a
// listener that nobody else does.
//
// A page may send changes anywhere; browsers say where it came from. A page whose
// name is pointed at this host once it is loaded (DNS rebinding) may even read the
// answers, and is found by that name, whichever address of this host the browser
// reaches: see acceptsHost. TLS needs no such care, for a browser refuses the
// certificate, nor does a socket, which no browser reaches.
func (a *Agent) guarded(next http.Handler) http.Handler {
	origins := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, isTCP := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
		if isTCP && r.TLS == nil && !a.acceptsHost(r.Host) {
			a.refuse(w, http.StatusMisdirectedRequest, "the request is for the host %q, which is no name of this host that the agent knows: "+
				"ask by address, as localhost, by this host's name, or add the name to http.allowed_hosts", registry.Shorten(r.Host, maxQuoted))
			return
		}
		if err := origins.Check(r); err != nil {
			a.refuse(w, http.StatusForbidden, "a page of another site may not change anything: %v", err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// brief gives a client a moment for what is left of a body that nobody read: the
// server waits for it before it takes the connection's next request, or closes it.
// The time for all of a request is not prolonged by it.
func (a *Agent) brief(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			begun := time.Now()
			defer func() {
				left := min(a.limits.rest, a.limits.requestTime-time.Since(begun))
				_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(left))
			}()
		}
		next.ServeHTTP(w, r)
	})
}

// bounded refuses requests when too many are being answered, but for those that
// ask how the agent is, and bounds the bodies of all. A read has none: while one is
// not read, the server does not see that the client has gone.
func (a *Agent) bounded(next http.Handler) http.Handler {
	var under atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer under.Add(-1)
		health := r.URL.Path == "/healthz" || r.URL.Path == "/readyz"
		n := under.Add(1)
		if n > int64(a.limits.requests) && !health {
			w.Header().Set("Connection", "close")
			w.Header().Set("Retry-After", "1")
			a.refuse(w, http.StatusServiceUnavailable, "%d requests are being answered already, no more can be", n-1)
			return
		}
		if !health { // what is past the limit must leave connections to close
			defer hold(r)()
		}
		if (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.ContentLength != 0 {
			w.Header().Set("Connection", "close")
			a.refuse(w, http.StatusBadRequest, "a %s request has no body, and this one does", r.Method)
			return
		}
		if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
			a.refuse(w, http.StatusBadRequest, "query: %v", err)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, a.limits.body)
		next.ServeHTTP(w, r)
	})
}

// unreadBody is what is wrong with a body that could not be read.
func unreadBody(err error) error {
	var large *http.MaxBytesError
	var slow net.Error
	switch {
	case errors.As(err, &large):
		return &api.Error{Code: http.StatusRequestEntityTooLarge, Message: fmt.Sprintf("request body: larger than %d bytes", large.Limit)}
	case errors.As(err, &slow) && slow.Timeout():
		return &api.Error{Code: http.StatusRequestTimeout, Message: "request body: it did not come in time"}
	}
	return badRequest("request body: %v", err)
}
