package httpapi

import (
	"context"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
)

// TestProbeOutlastsRequests: a probe may take longer than the server gives other requests, and is answered all the
// same.
func TestProbeOutlastsRequests(t *testing.T) {
	h := newHost(t, func(l *Limits) { l.RequestTime = 50 * time.Millisecond })
	h.n.probe = func(ctx context.Context, _ api.ProbeRequest) (api.Probe, error) {
		select {
		case <-ctx.Done():
			return api.Probe{}, ctx.Err()
		case <-time.After(300 * time.Millisecond):
			return api.Probe{Network: "n"}, nil
		}
	}
	h.serve("127.0.0.1:0")
	if out, err := h.client.ProbePeers(t.Context(), "n", api.ProbeRequest{}); err != nil || out.Network != "n" {
		t.Errorf("%+v, %v", out, err)
	}
}
