package agent

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/registry/memory"
)

// TestRestartWhileTheStoreIsFilled: an agent starts again before every host has written its lease into a store that was
// emptied. The peers that the kernel knows stay until the store has settled.
func TestRestartWhileTheStoreIsFilled(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		a, b, c := newHost(t, store, "a"), newHost(t, store, "b").start(), newHost(t, store, "c").start()
		a.config.Lease.TTL, a.config.Lease.RenewMargin = 2*time.Second, 1900*time.Millisecond
		a.start()
		b.ready()
		c.ready()
		peers := []*host{b, c}
		slices.SortFunc(peers, func(a, b *host) int { return a.subnet().Addr().Compare(b.subnet().Addr()) })
		subnet, lost := a.subnet(), c.subnet()
		without := fmt.Sprintf("%s <- b@%s", subnet, b.subnet())
		want := fmt.Sprintf("%s <- %s@%s, %s@%s", subnet, peers[0].name, peers[0].subnet(), peers[1].name, peers[1].subnet())
		a.applies(want)
		must(t, a.stop())
		must(t, c.stop())
		store.Delete(leaseKey(lost))
		began := len(a.recorder.tries())
		a.start().ready()
		a.more("applies", began, func() int { return len(a.recorder.tries()) })
		a.applies(want)
		a.applies(without)
		states := a.recorder.all()
		if got := states[slices.Index(states, want):]; !slices.Equal(got, []string{want, without}) {
			t.Errorf("applied %q", got)
		}

		// After a release, nothing is remembered.
		must(t, a.client.ReleaseLease(t.Context(), "n"))
		a.applies("zero")
		eventually(t, func() error {
			if exists(state.PeersPath(a.config.DataDir, "n")) {
				return errors.New("the peers are still remembered")
			}
			return nil
		})
	})
}
