package api

import (
	"context"
	"net/http"
	"time"
)

// Metrics is the response of GET /v1/agent/metrics: what the agent counts and measures.
type Metrics struct {
	Timestamp time.Time     `json:"timestamp"`
	Gauges    []MetricValue `json:"gauges"`   // current values
	Counters  []MetricValue `json:"counters"` // since the start of the agent
	Times     []MetricTime  `json:"times"`    // durations
}

// MetricValue is the value of one gauge or counter.
type MetricValue struct {
	Name   string            `json:"name"` // "leno_lease_held"
	Labels map[string]string `json:"labels"`
	Value  float64           `json:"value"`
}

// MetricTime sums up how long something took, each time since the start of the agent.
type MetricTime struct {
	Name   string            `json:"name"` // "leno_lease_renewal_seconds"
	Labels map[string]string `json:"labels"`
	Count  uint64            `json:"count"`
	Sum    float64           `json:"sum"` // seconds
}

// Metrics returns what the agent counts and measures (GET /v1/agent/metrics).
func (c *Client) Metrics(ctx context.Context) (Metrics, error) {
	var out Metrics
	_, err := c.do(ctx, http.MethodGet, "/v1/agent/metrics", nil, &out)
	return out, err
}

// PrometheusMetrics returns all metrics in the Prometheus text format
// (GET /v1/agent/metrics?format=prometheus). Code 415 when that is turned off.
func (c *Client) PrometheusMetrics(ctx context.Context) ([]byte, error) {
	var out []byte
	_, err := c.do(ctx, http.MethodGet, "/v1/agent/metrics?format=prometheus", nil, &out)
	return out, err
}
