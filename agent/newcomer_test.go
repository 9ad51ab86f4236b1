package agent

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/registry/memory"
)

// TestNewcomerAfterALoss: a host starts for the first time when the store was set back to a time before the network, and
// another host has restored the definition. It has not seen the loss, and the sessions that would show it are gone. It
// waits until the hosts whose leases were lost have had time to claim their subnets again.
func TestNewcomerAfterALoss(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		before := store.Backup()
		a, b := newHost(t, store, "a"), newHost(t, store, "b")
		a.start().ready()
		subnet, n := a.subnet(), a.inStore()
		must(t, a.stop())
		store.Restore(before)
		n.ModifyIndex, n.Restored = 0, time.Now()
		must(t, store.Client().PutNetwork(context.Background(), n))

		b.start()
		eventually(t, func() error {
			if reason := reasonOf(b.agent, "n", health.Lease); !strings.Contains(reason, "waiting for the other hosts to claim again") {
				return fmt.Errorf("the lease's check says %q", reason)
			}
			return nil
		})
		a.start().ready()
		if again := a.subnet(); again != subnet {
			t.Errorf("the host has %s, before %s", again, subnet)
		}
		b.ready()
		if now := time.Since(n.Restored); now < b.config.Lease.TTL {
			t.Errorf("the newcomer waited for %s", now)
		}
		if now := a.inStore(); now.Revision != n.Revision || now.Revision == "" {
			t.Errorf("revision %q, want %q", now.Revision, n.Revision)
		}
	})
}
