package api

import (
	"context"
	"net/http"
	"time"
)

// Metrics is the answer of GET /v1/agent/metrics: what the agent measured in ten
// seconds.
type Metrics struct {
	Timestamp time.Time      `json:"timestamp"` // when they began
	Gauges    []MetricGauge  `json:"gauges"`    // as they were last
	Counters  []MetricSample `json:"counters"`  // what happened; sum says how often
	Times     []MetricSample `json:"times"`     // how long things took, milliseconds
}

// MetricGauge is one value.
type MetricGauge struct {
	Name   string            `json:"name"` // "leno.lease.held"
	Labels map[string]string `json:"labels"`
	Value  float64           `json:"value"`
}

// MetricSample sums up what came together under one name.
type MetricSample struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels"`
	Count  int               `json:"count"` // how many numbers came together
	Sum    float64           `json:"sum"`
	Min    float64           `json:"min"`
	Max    float64           `json:"max"`
	Mean   float64           `json:"mean"`
}

// Metrics returns what the agent measured in the last ten seconds that are over
// (GET /v1/agent/metrics).
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
