package httpapi

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/lenonet/leno/agent/query"
)

// How long a read waits for a change, as in Consul: a client that asks for more than maxWait gets maxWait. Up to a
// sixteenth is added, so that readers that came together do not come back together.
const (
	defaultWait = 5 * time.Minute
	maxWait     = 10 * time.Minute
	jitterPart  = 16
)

// blockingOptions are the parameters index and wait of a request.
type blockingOptions struct {
	index uint64        // that the reader has, 0 for none
	wait  time.Duration // at most, with jitter
}

func blockingOptionsOf(r *http.Request) (blockingOptions, error) {
	out := blockingOptions{wait: defaultWait}
	parameters := r.URL.Query()
	if text := parameters.Get("index"); text != "" {
		index, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return out, badRequest("parameter index: %q is not a number from 0 to 18446744073709551615", quoteText(text))
		}
		out.index = index
	}
	if text := parameters.Get("wait"); text != "" {
		wait, err := time.ParseDuration(text)
		if err != nil || wait < 0 {
			return out, badRequest("parameter wait: %q is not a duration such as 30s, 5m or 1500ms", quoteText(text))
		}
		if wait > 0 {
			out.wait = min(wait, maxWait)
		}
	}
	out.wait += rand.N(out.wait/jitterPart + 1)
	return out, nil
}

// blockingReads answers reads that may wait for a change.
type blockingReads struct {
	responder
	cache       *query.Cache
	requestTime time.Duration
}

// handle returns a handler for reads that may wait for a change. find returns the query that a request is about.
func (b blockingReads) handle(find func(*http.Request) (query.Query, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		out, err := b.read(w, r, find)
		if err != nil {
			b.fail(w, err)
			return
		}
		b.sendAnswer(w, r, out)
	}
}

func (b blockingReads) read(w http.ResponseWriter, r *http.Request, find func(*http.Request) (query.Query, error)) (
	out query.Answer, err error) {
	o, err := blockingOptionsOf(r)
	if err != nil {
		return out, err
	}
	q, err := find(r)
	if err != nil {
		return out, err
	}
	if o.index > 0 {
		restore := suspendDeadline(w, b.requestTime)
		defer restore()
		out, again, err := b.cache.Next(r.Context(), q, o.index, o.wait)
		if !again && !errors.Is(err, errMoved) {
			return out, err
		}
		if q, err = find(r); err != nil { // the network is gone, or has become something else
			return out, err
		}
	}
	if out, err = b.cache.Now(r.Context(), q, o.index); errors.Is(err, errMoved) {
		if q, err = find(r); err == nil {
			out, err = b.cache.Now(r.Context(), q, o.index)
		}
	}
	return out, err
}

// suspendDeadline lifts the server's time limit off an answer that has to wait. restore sets requestTime for it.
func suspendDeadline(w http.ResponseWriter, requestTime time.Duration) (restore func()) {
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Time{}) // a connection without deadlines needs none lifted
	return func() { _ = control.SetWriteDeadline(time.Now().Add(requestTime)) }
}
