package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/bundle"
)

// ofAgent returns the captures from the agent. An agent that did not even identify itself is still
// asked everything: each response, or its absence, is another clue.
func (d *debugCommand) ofAgent(c *api.Client, self api.Self, selfErr error) []bundle.Capture {
	out := []bundle.Capture{
		d.answer("agent/self.json", "/v1/agent/self", c),
		d.answer("agent/config.json", "/v1/agent/config", c),
		d.answer("networks.json", "/v1/networks", c),
		d.answer("events.json", "/v1/agent/events", c),
		bundle.Series("health.jsonl", "GET /healthz", d.duration, d.interval, once(func(ctx context.Context) (any, error) { return c.Health(ctx) })),
		bundle.Series("metrics.jsonl", "GET /v1/agent/metrics", d.duration, d.interval, once(func(ctx context.Context) (any, error) {
			var text bytes.Buffer
			err := c.Copy(ctx, "/v1/agent/metrics", &text)
			return json.RawMessage(text.Bytes()), err
		})),
		d.answer("metrics.prom", "/v1/agent/metrics?format=prometheus", c),
		bundle.Stream("agent/log.txt", "GET /v1/agent/monitor?log_level=debug", d.duration, func(ctx context.Context, w io.Writer) error {
			return c.Copy(ctx, "/v1/agent/monitor?log_level=debug", w)
		}),
	}
	seconds := max(1, int(min(d.duration, maxProfile)/time.Second))
	for _, profile := range []struct{ file, path string }{
		{"profiles/heap.pprof", "/debug/pprof/heap"},
		{"profiles/goroutines.txt", "/debug/pprof/goroutine?debug=2"},
		{"profiles/processor.pprof", fmt.Sprintf("/debug/pprof/profile?seconds=%d", seconds)},
	} {
		out = append(out, bundle.Within(debugTimeout+maxProfile, bundle.Capture{File: profile.file, Source: "GET " + profile.path, Take: func(ctx context.Context, w io.Writer) error {
			err := c.Copy(ctx, profile.path, w)
			var refused *api.Error
			if errors.As(err, &refused) && refused.Code == http.StatusNotFound {
				return errors.New("the agent serves no profiles: set enable_debug = true in its configuration and reload it")
			}
			return err
		}}))
	}
	networks := []string(d.networks)
	if len(networks) == 0 && selfErr == nil {
		networks = self.Networks
	}
	for _, n := range networks {
		for _, what := range []string{"leases", "reservations", "peers"} {
			out = append(out, d.answer("networks/"+bundle.FileName(n)+"/"+what+".json", "/v1/network/"+url.PathEscape(n)+"/"+what, c))
		}
	}
	return out
}

// answer captures one response unchanged.
func (d *debugCommand) answer(file, path string, c *api.Client) bundle.Capture {
	return bundle.Within(debugTimeout, bundle.Capture{File: file, Source: "GET " + path,
		Take: func(ctx context.Context, w io.Writer) error { return c.Copy(ctx, path, w) }})
}

// once bounds one read of a series.
func once(read func(ctx context.Context) (any, error)) func(context.Context) (any, error) {
	return func(ctx context.Context) (any, error) {
		ctx, cancel := context.WithTimeout(ctx, debugTimeout)
		defer cancel()
		return read(ctx)
	}
}

// links returns the devices of the networks and of their underlays.
func (d *debugCommand) links(ctx context.Context, c *api.Client) []string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	list, err := c.Networks(ctx)
	if err != nil {
		return nil
	}
	var links []string
	for _, n := range list.Networks {
		if n.Local != nil && (len(d.networks) == 0 || slices.Contains(d.networks, n.Name)) {
			links = append(links, n.Local.Link, n.Local.Underlay.Interface)
		}
	}
	return links
}
