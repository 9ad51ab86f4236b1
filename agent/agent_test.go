package agent

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestPacketsPassToTheEnd: an agent that stops closes its backends last, so that packets wait only for the next
// process.
func TestPacketsPassToTheEnd(t *testing.T) {
	for _, tt := range []struct {
		name  string
		start func(a *host)
	}{
		{"at work", func(a *host) { a.start().ready() }},
		{"before its name is known", func(a *host) {
			a.start().ready()
			a.remains = waiting(a.subnet())
			must(a.t, a.stop())
			a.config.NodeName, a.catalog = "", &namelessStore{a.registry, "a"}
			a.config.Lease.ReleaseOnStop = true
			a.registry.Set(registry.ErrUnavailable)
			a.start().check(health.Lease, api.Warning, "stays in use as")
		}},
	} {
		subtest(t, tt.name, func(t *testing.T) {
			a := newHost(t, memory.New(), "a")
			tt.start(a)
			saved, err := state.Load(a.config.DataDir, "n")
			must(t, err)
			subnet := saved.Subnets[0]
			closed := 0
			a.recorder.mu.Lock()
			a.recorder.onClose = func() {
				closed++
				if conn, err := a.dial(t.Context()); err == nil {
					t.Error("the API still answers")
					conn.Close()
				}
				if !exists(state.PeersPath(a.config.DataDir, "n")) {
					t.Error("the peers are not written down yet")
				}
			}
			a.recorder.mu.Unlock()
			must(t, a.stop())
			if closed != 1 {
				t.Errorf("closed %d times", closed)
			}
			if a.recorder.last() == "zero" {
				t.Error("the datapath was taken away")
			}
			if !exists(a.config.Networks[0].SubnetFile) {
				t.Error("the subnet file was removed")
			}
			if _, session, there := a.store.Get(leaseKey(subnet)); !there || session == "" {
				t.Errorf("the lease is not held any more: record there %t, session %q", there, session)
			}
		})
	}
}
