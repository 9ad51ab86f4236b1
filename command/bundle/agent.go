package bundle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/lenonet/leno/api"
)

// Agent describes the agent to capture.
type Agent struct {
	Client             *api.Client
	Duration, Interval time.Duration // of what is captured over a period
	Networks           []string
}

const (
	// agentTimeout bounds each one-time capture.
	agentTimeout = 20 * time.Second
	// maxProfile bounds a CPU profile.
	maxProfile = 30 * time.Second
)

// Captures returns the captures of the agent. An agent that does not respond to one request is
// still asked the others: each response, or its absence, is another clue.
func (a Agent) Captures() []Capture {
	out := []Capture{
		a.answer("agent/self.json", "/v1/agent/self"),
		a.answer("agent/config.json", "/v1/agent/config"),
		a.answer("networks.json", "/v1/networks"),
		a.answer("events.json", "/v1/agent/events"),
		a.series("health.jsonl", "/healthz", func(ctx context.Context) (any, error) { return a.Client.Health(ctx) }),
		a.series("metrics.jsonl", "/v1/agent/metrics", func(ctx context.Context) (any, error) {
			var text bytes.Buffer
			err := a.Client.Copy(ctx, "/v1/agent/metrics", &text)
			return json.RawMessage(text.Bytes()), err
		}),
		a.answer("metrics.prom", "/v1/agent/metrics?format=prometheus"),
		Stream("agent/log.txt", "GET /v1/agent/monitor?log_level=debug", a.Duration,
			a.copy("/v1/agent/monitor?log_level=debug")),
	}
	seconds := max(1, int(min(a.Duration, maxProfile)/time.Second))
	for _, profile := range []struct{ file, path string }{
		{"profiles/heap.pprof", "/debug/pprof/heap"},
		{"profiles/goroutines.txt", "/debug/pprof/goroutine?debug=2"},
		{"profiles/processor.pprof", fmt.Sprintf("/debug/pprof/profile?seconds=%d", seconds)},
	} {
		out = append(out, a.profile(profile.file, profile.path))
	}
	for _, n := range a.Networks {
		for _, what := range []string{"leases", "reservations", "peers"} {
			out = append(out, a.answer("networks/"+FileName(n)+"/"+what+".json", "/v1/network/"+url.PathEscape(n)+"/"+what))
		}
	}
	return out
}

// copy returns a function that writes a response unchanged.
func (a Agent) copy(path string) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error { return a.Client.Copy(ctx, path, w) }
}

// answer captures one response.
func (a Agent) answer(file, path string) Capture {
	return Within(agentTimeout, Capture{File: file, Source: "GET " + path, Take: a.copy(path)})
}

// series captures a response over the period.
func (a Agent) series(file, path string, read func(ctx context.Context) (any, error)) Capture {
	return Series(file, "GET "+path, a.Duration, a.Interval, func(ctx context.Context) (any, error) {
		ctx, cancel := context.WithTimeout(ctx, agentTimeout)
		defer cancel()
		return read(ctx)
	})
}

// profile captures a profile of the agent's process.
func (a Agent) profile(file, path string) Capture {
	take := func(ctx context.Context, w io.Writer) error {
		err := a.Client.Copy(ctx, path, w)
		if refused, ok := errors.AsType[*api.Error](err); ok && refused.Code == http.StatusNotFound {
			return errors.New("the agent serves no profiles: set enable_debug = true in its configuration and reload it")
		}
		return err
	}
	return Within(agentTimeout+maxProfile, Capture{File: file, Source: "GET " + path, Take: take})
}
