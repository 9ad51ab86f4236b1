package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/lenonet/leno/agent/query"
	"github.com/lenonet/leno/api"
)

// storeLimit bounds how many requests read or write the store at once, so that the store has room for what the agent
// itself asks: Consul, for example, accepts 200 connections from a host. Reads that are shared among callers, or wait
// for a change, need no turn.
type storeLimit struct {
	taken chan struct{}
	wait  time.Duration // for a turn, at most
}

func newStoreLimit(l Limits) storeLimit {
	return storeLimit{make(chan struct{}, l.StoreRequests), l.StoreWait}
}

// take waits for a turn. release gives it back.
func (s storeLimit) take(ctx context.Context) (release func(), err error) {
	over := time.NewTimer(s.wait)
	defer over.Stop()
	select {
	case s.taken <- struct{}{}:
		return func() { <-s.taken }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-over.C:
		return nil, api.Errorf(http.StatusServiceUnavailable,
			"%d requests already use the store, which is the limit: try again", cap(s.taken))
	}
}

// handleStored is handle for requests that read or write the store. A request gets its turn when its body is there, and
// gives it back before the answer is sent: slow clients keep no turn.
func handleStored[T any](p responder, s storeLimit, handler func(*http.Request) (T, error)) http.HandlerFunc {
	return handle(p, func(r *http.Request) (out T, err error) {
		if err := receiveBody(r); err != nil {
			return out, err
		}
		release, err := s.take(r.Context())
		if err != nil {
			return out, err
		}
		defer release()
		return handler(r)
	})
}

// handleDone is handleStored for an answer of {}.
func handleDone(p responder, s storeLimit, handler func(*http.Request) error) http.HandlerFunc {
	return handleStored(p, s, func(r *http.Request) (struct{}, error) { return struct{}{}, handler(r) })
}

// limit returns find for queries whose reads of the store take a turn, unless they wait for a change.
func (s storeLimit) limit(find func(*http.Request) (query.Query, error)) func(*http.Request) (query.Query, error) {
	return func(r *http.Request) (query.Query, error) {
		q, err := find(r)
		read := q.ReadStore
		q.ReadStore = func(ctx context.Context, after uint64) (query.Content, uint64, error) {
			if after == 0 {
				release, err := s.take(ctx)
				if err != nil {
					return query.Content{}, 0, err
				}
				defer release()
			}
			return read(ctx, after)
		}
		return q, err
	}
}
