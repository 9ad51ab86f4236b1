package api

import (
	"context"
	"net/http"
	"time"
)

// Metrics is the response of GET /v1/agent/metrics: what the agent measured in ten seconds.
type Metrics struct {
	Timestamp time.Time      `json:"timestamp"` // start of the ten seconds
	Gauges    []MetricGauge  `json:"gauges"`    // last values
	Counters  []MetricSample `json:"counters"`  // events; sum is their number
	Times     []MetricSample `json:"times"`     // durations in milliseconds
}

// MetricGauge is the value of one gauge.
type MetricGauge struct {
	Name   string            `json:"name"` // "leno.lease.held"
	Labels map[string]string `json:"labels"`
	Value  float64           `json:"value"`
}

// MetricSample aggregates the values recorded under one name.
type MetricSample struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels"`
	Count  int               `json:"count"` // number of values
	Sum    float64           `json:"sum"`
	Min    float64           `json:"min"`
	Max    float64           `json:"max"`
	Mean   float64           `json:"mean"`
}

// Metrics returns what the agent measured in the last completed ten seconds (GET
// /v1/agent/metrics).
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
