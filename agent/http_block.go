package agent

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// How long a read waits for news, as Consul has it: a client that asks for more
// than the most gets the most, and up to a sixteenth is added, so that readers
// who came together do not come back together.
const (
	defaultWait = 5 * time.Minute
	mostWait    = 10 * time.Minute
	jitterPart  = 16
)

// maxQuoted bounds what is said again of a request, in bytes.
const maxQuoted = 64

// awaited is what a read asks for beside its answer.
type awaited struct {
	index uint64        // of the answer the reader has, 0 for none
	wait  time.Duration // at most, jitter included
}

// awaitedBy reads ?index= and ?wait=.
func awaitedBy(r *http.Request) (awaited, error) {
	out := awaited{wait: defaultWait}
	query := r.URL.Query()
	if text := query.Get("index"); text != "" {
		index, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return out, badRequest("parameter index: %q is no number from 0 to 18446744073709551615", registry.Shorten(text, maxQuoted))
		}
		out.index = index
	}
	if text := query.Get("wait"); text != "" {
		wait, err := time.ParseDuration(text)
		if err != nil || wait < 0 {
			return out, badRequest("parameter wait: %q is no duration such as 30s, 5m or 1500ms", registry.Shorten(text, maxQuoted))
		}
		if wait > 0 {
			out.wait = min(wait, mostWait)
		}
	}
	out.wait += rand.N(out.wait/jitterPart + 1)
	return out, nil
}

// block answers reads that may wait: find says what a request asks for.
func (a *Agent) block(find func(*http.Request) (shown, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a.wrap(func(r *http.Request) (reply, error) {
			q, err := awaitedBy(r)
			if err != nil {
				return reply{}, err
			}
			s, err := find(r)
			if err != nil {
				return reply{}, err
			}
			if q.index == 0 {
				return a.answerNow(r, find, s, q)
			}
			restore := a.patient(w)
			defer restore()
			out, again, err := a.board.next(r.Context(), s, q)
			again = again || errors.Is(err, errElsewhere)
			if !again && (err != nil || s.since == nil) {
				return out, err
			}
			if s, err = find(r); err != nil { // it is gone, or has become something else
				return reply{}, err
			}
			return a.answerNow(r, find, s, q)
		})(w, r)
	}
}

// answerNow does not wait. What has moved since it was found is found once more.
func (a *Agent) answerNow(r *http.Request, find func(*http.Request) (shown, error), s shown, q awaited) (reply, error) {
	out, err := a.answer(r, s, q)
	if !errors.Is(err, errElsewhere) {
		return out, err
	}
	if s, err = find(r); err != nil {
		return reply{}, err
	}
	return a.answer(r, s, q)
}

func (a *Agent) answer(r *http.Request, s shown, q awaited) (reply, error) {
	if s.since != nil {
		return s.since(q.index)
	}
	return a.board.now(r.Context(), s)
}

// sendShared sends an answer that many may get at once, compressed once for all.
func (a *Agent) sendShared(w http.ResponseWriter, r *http.Request, out reply) {
	data := out.data
	if len(data) >= minGzip && acceptsGzip(r.Header.Get("Accept-Encoding")) {
		w.Header().Set("Content-Encoding", "gzip")
		data = out.packed()
	}
	a.send(w, http.StatusOK, data)
}

// acceptsGzip is RFC 9110's Accept-Encoding, in short: gzip is named, and not
// refused with a weight of 0.
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

// pack is data with gzip.
func pack(data []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(data) // a buffer takes all
	_ = w.Close()
	return out.Bytes()
}

// patient lifts the server's time limits off a request that waits, until restore
// sets one for the answer.
func (a *Agent) patient(w http.ResponseWriter) (restore func()) {
	control := http.NewResponseController(w)
	// What has no deadlines, as in tests of one handler, needs none lifted.
	_ = control.SetReadDeadline(time.Time{})
	_ = control.SetWriteDeadline(time.Time{})
	return func() {
		until := time.Now().Add(a.limits.requestTime)
		_ = control.SetReadDeadline(until)
		_ = control.SetWriteDeadline(until)
	}
}

func tooMany(readers int) error {
	return &api.Error{Code: http.StatusTooManyRequests,
		Message: fmt.Sprintf("%d reads wait for news already, no more may: ask without index", readers)}
}

// readStore reads something of a network from the store, by the definition in
// force: a watch ends when that changes. What no index tells of is seen by
// reading anew after pace.
func (a *Agent) readStore(ctx context.Context, network string, after uint64, pace time.Duration,
	read func(ctx context.Context, n registry.Network, after uint64) error) error {
	n, err := a.definitionOf(network)
	if err != nil {
		return err
	}
	if after == 0 {
		return read(ctx, n, 0)
	}
	within, cancel := context.WithTimeout(ctx, pace)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		a.awaitAnother(within, n)
	})
	err = read(within, n, after)
	over := within.Err() != nil && ctx.Err() == nil
	cancel()
	wg.Wait()
	if !over {
		return err
	}
	if n, err = a.definitionOf(network); err != nil {
		return err
	}
	return read(ctx, n, 0)
}

// awaitAnother blocks until a network has another definition than n or this agent
// may have another part in it.
func (a *Agent) awaitAnother(ctx context.Context, n registry.Network) {
	_, _, parts := a.env.parts.Get()
	for {
		_, _, defined := a.env.networks.Get()
		if now, err := a.definitionOf(n.Name); err != nil || now.ModifyIndex != n.ModifyIndex {
			return
		}
		select {
		case <-parts:
			return
		case <-defined:
		case <-ctx.Done():
			return
		}
	}
}
