package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
)

// Health returns the agent's health (GET /healthz), with all its networks or only the given ones.
// A warning or critical status is a result, not an error.
func (c *Client) Health(ctx context.Context, networks ...string) (Health, error) {
	return c.health(ctx, "/healthz", networks)
}

// Ready returns whether the configured networks are ready (GET /readyz), all of them or only the
// given ones. Not being ready is a result, not an error.
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

// Self returns a description of the agent (GET /v1/agent/self).
func (c *Client) Self(ctx context.Context) (Self, error) {
	var out Self
	_, err := c.do(ctx, http.MethodGet, "/v1/agent/self", nil, &out)
	return out, err
}

// Reloaded is the result of a reload. Lists are never null.
type Reloaded struct {
	Changed  []Change `json:"changed"`  // options and their previous values; for a secret only whether it is set
	Warnings []string `json:"warnings"` // what failed or has no effect
}

// Configuration returns the agent's effective configuration without secrets (GET
// /v1/agent/config).
func (c *Client) Configuration(ctx context.Context) (Configuration, error) {
	var out Configuration
	_, err := c.do(ctx, http.MethodGet, "/v1/agent/config", nil, &out)
	return out, err
}

// Reload makes the agent read its configuration again (PUT /v1/agent/reload). If the new one is
// unusable, or changes options that need a restart, the agent keeps the whole old one. The *Error
// (409) then names the fault with file and line, or the options that need a restart. The same
// applies to a configuration that looks truncated (a file that is now empty, or no network left),
// unless force is set.
func (c *Client) Reload(ctx context.Context, force bool) (Reloaded, error) {
	path := "/v1/agent/reload"
	if force {
		path += "?force=true"
	}
	var out Reloaded
	_, err := c.do(ctx, http.MethodPut, path, nil, &out)
	return out, err
}
