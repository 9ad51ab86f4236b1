package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
)

// Health asks for the agent's verdict on itself (GET /healthz), with all networks
// it takes part in or with some of them alone. A warning or critical verdict is an
// answer, not an error.
func (c *Client) Health(ctx context.Context, networks ...string) (Health, error) {
	return c.health(ctx, "/healthz", networks)
}

// Ready asks whether every configured network is ready (GET /readyz), or some of
// them are. Not being ready is an answer, not an error.
func (c *Client) Ready(ctx context.Context, networks ...string) (Health, error) {
	return c.health(ctx, "/readyz", networks)
}

func (c *Client) health(ctx context.Context, path string, networks []string) (Health, error) {
	var out Health
	if len(networks) > 0 {
		path += "?" + url.Values{"network": networks}.Encode()
	}
	_, err := c.do(ctx, http.MethodGet, path, nil, &out, http.StatusTooManyRequests, http.StatusServiceUnavailable)
	if err == nil && out.Status == "" {
		err = fmt.Errorf("GET %s: not the agent's answer: no status in it", path)
	}
	return out, err
}

// Self describes the agent (GET /v1/agent/self).
func (c *Client) Self(ctx context.Context) (Self, error) {
	var out Self
	_, err := c.do(ctx, http.MethodGet, "/v1/agent/self", nil, &out)
	return out, err
}

// Reloaded is what became of a configuration that was read again. Lists are never
// null.
type Reloaded struct {
	Changed  []Change `json:"changed"`  // options and what they were; of a secret only whether it is set
	Warnings []string `json:"warnings"` // what could not be tidied up
}

// Configuration is what the agent runs on, without secrets (GET
// /v1/agent/config).
func (c *Client) Configuration(ctx context.Context) (Configuration, error) {
	var out Configuration
	_, err := c.do(ctx, http.MethodGet, "/v1/agent/config", nil, &out)
	return out, err
}

// Reload makes the agent read its configuration again (PUT /v1/agent/reload).
// When the new one is unusable, or changes options that need a restart, the agent
// keeps the old one, whole, and the *Error (409) says what is wrong, with file and
// line, or which options they are. So it is with one that looks cut off, a file that
// is empty now or no network that is left, unless force is set.
func (c *Client) Reload(ctx context.Context, force bool) (Reloaded, error) {
	path := "/v1/agent/reload"
	if force {
		path += "?force=true"
	}
	var out Reloaded
	_, err := c.do(ctx, http.MethodPut, path, nil, &out)
	return out, err
}
