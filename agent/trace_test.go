package agent

import (
	"context"
	"net/http"
	"testing"

	"github.com/lenonet/leno/agent/trace"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry/memory"
)

// traceWithoutKernel stands in for trace.Run on a kernel that tells nothing.
func traceWithoutKernel(_ context.Context, h trace.Host, r api.TraceRequest) (api.Trace, error) {
	p, err := trace.Locate(h, r)
	if err != nil {
		return api.Trace{}, err
	}
	return trace.Judge(trace.Facts{Path: p, Node: h.Node}), nil
}

// TestTrace: a trace knows the hosts of both addresses.
func TestTrace(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		a, b := newHost(t, store, "a"), newHost(t, store, "b").start()
		a.start().ready()
		a.applies(a.subnet().String() + " <- b@" + b.subnet().String())
		request := api.TraceRequest{Source: a.subnet().Addr(), Destination: b.subnet().Addr(), Protocol: "tcp", Port: 80}
		got, err := a.client.Trace(t.Context(), request)
		if err != nil || got.Node != "a" || got.Network != "n" || got.Source.Node != "a" || got.Destination.Node != "b" || len(got.Stages) == 0 {
			t.Errorf("%+v, %v", got, err)
		}
		request.Destination = request.Source
		_, err = a.client.Trace(t.Context(), request)
		agenttest.WantCode(t, "the same address twice", err, http.StatusBadRequest, "same address")
	})
}
