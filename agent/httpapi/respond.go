package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/query"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// minGzip is the size in bytes from which answers are compressed. A smaller one fits in a packet or two anyway.
const minGzip = 1400

// A responder sends answers.
type responder struct{ log hclog.Logger }

// handle returns an http.HandlerFunc that sends what handler returns as JSON.
func handle[T any](p responder, handler func(*http.Request) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := handler(r)
		if err != nil {
			p.fail(w, err)
			return
		}
		p.write(w, http.StatusOK, body)
	}
}

func (p responder) write(w http.ResponseWriter, status int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		status, data = http.StatusInternalServerError, []byte(`{"code":500,"error":"the response cannot be encoded"}`)
		p.log.Error("http response cannot be encoded", "error", err)
	}
	p.send(w, status, append(data, '\n'))
}

// fail answers with an error of the registry or of a handler.
func (p responder) fail(w http.ResponseWriter, err error) {
	p.refuse(w, statusOf(err), "%v", err)
}

func (p responder) send(w http.ResponseWriter, status int, data []byte) {
	p.sendAs(w, "application/json", status, data)
}

func (p responder) sendAs(w http.ResponseWriter, contentType string, status int, data []byte) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	if _, err := w.Write(data); err != nil {
		p.log.Debug("http response was cut off", "error", err)
	}
}

// refuse answers with an error.
func (p responder) refuse(w http.ResponseWriter, status int, format string, args ...any) {
	p.write(w, status, api.Errorf(status, format, args...))
}

// sendAnswer sends the answer to a query, which many clients may get at the same time.
func (p responder) sendAnswer(w http.ResponseWriter, r *http.Request, a query.Answer) {
	if a.Index > 0 {
		w.Header().Set("X-Leno-Index", strconv.FormatUint(a.Index, 10))
	}
	data := a.Plain
	if len(data) >= minGzip && acceptsGzip(r.Header.Get("Accept-Encoding")) {
		w.Header().Set("Content-Encoding", "gzip")
		data = a.Gzip()
	}
	p.send(w, http.StatusOK, data)
}

// acceptsGzip reports whether an Accept-Encoding header names gzip with a weight above 0, as in "deflate, gzip;q=0.5"
// (RFC 9110).
func acceptsGzip(header string) bool {
	for part := range strings.SplitSeq(header, ",") {
		name, weight, _ := strings.Cut(strings.TrimSpace(part), ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			q, err := strconv.ParseFloat(strings.TrimPrefix(strings.TrimSpace(weight), "q="), 64)
			return weight == "" || err == nil && q > 0
		}
	}
	return false
}

// errMoved says that the network of a query is no longer where the query looks for it, so that the query has to be made
// again.
var errMoved = errors.New("this host is joining or leaving the network: try again")

// statusOf returns the HTTP status for an error of the registry or of a handler.
func statusOf(err error) int {
	if explicit, ok := errors.AsType[*api.Error](err); ok {
		return explicit.Code
	}
	for _, row := range []struct {
		err    error
		status int
	}{
		{registry.ErrNetworkNotFound, http.StatusNotFound},
		{registry.ErrLeaseNotFound, http.StatusNotFound},
		{registry.ErrLeaseRevoked, http.StatusNotFound},
		{registry.ErrReservationNotFound, http.StatusNotFound},
		{registry.ErrDenied, http.StatusForbidden},
		{registry.ErrInvalid, http.StatusBadRequest},
		{registry.ErrNetworkExists, http.StatusConflict},
		{registry.ErrConflict, http.StatusConflict},
		{registry.ErrReserved, http.StatusConflict},
		{registry.ErrHeld, http.StatusConflict},
		{registry.ErrNetworkFull, http.StatusConflict},
		{registry.ErrNotSupported, http.StatusNotImplemented},
		{registry.ErrUncertain, http.StatusServiceUnavailable},
		{registry.ErrUnavailable, http.StatusServiceUnavailable},
		{errMoved, http.StatusServiceUnavailable},
		{query.ErrTooManyReaders, http.StatusTooManyRequests},
		{context.DeadlineExceeded, http.StatusServiceUnavailable},
		{context.Canceled, http.StatusServiceUnavailable}, // the client is gone, or no longer sends
	} {
		if errors.Is(err, row.err) {
			return row.status
		}
	}
	return http.StatusInternalServerError
}

func badRequest(format string, args ...any) error {
	return api.Errorf(http.StatusBadRequest, format, args...)
}

// skippedRecords returns records that cannot be used as the API shows them.
func skippedRecords(bad []registry.BadRecord) []api.Skipped {
	out := []api.Skipped{}
	for _, b := range bad {
		b = b.Shortened()
		out = append(out, api.Skipped{Key: b.Key, Reason: b.Reason})
	}
	return out
}
