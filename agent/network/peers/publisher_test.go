package peers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
)

// remembering returns a host whose earlier process has known b, which the store lacks.
func remembering(t *testing.T) *host {
	t.Helper()
	h := newHost(t)
	h.own.Set(h.join("a", 1))
	b := h.join("b", 2)
	h.start()()
	h.store.Delete(key(b))
	h.Follower = h.newFollower(h.flaky, h.o.DataDir)
	return h
}

const withB, alone = "10.5.1.0/24 <- b@10.5.2.0/24", "10.5.1.0/24 <- "

// TestRememberedPeersStay: peers that only an earlier process knew stay until the store has settled, without a change
// in the store.
func TestRememberedPeersStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := remembering(t)
		settle := SettleTime(h.o.Settings)
		h.start()
		h.wantView(withB)
		if n := len(h.log.With("peers missing from the store stay until it has settled")); n != 1 {
			t.Errorf("logged %d times", n)
		}
		time.Sleep(settle - time.Second)
		h.wantView(withB)
		if n := h.flaky.requests(); n != 0 {
			t.Errorf("%d readings before the time", n)
		}
		time.Sleep(2 * time.Second)
		h.wantView(alone)
		time.Sleep(time.Minute)
		if n := h.flaky.requests(); n != 1 {
			t.Errorf("%d readings, want one", n)
		}
		if n := len(h.log.With("peers missing from the store stay until it has settled")); n != 1 {
			t.Errorf("logged %d times", n)
		}
	})
}

// TestRememberedPeersStayWhileTheStoreIsAway: the time for which remembered peers stay passes while the store does not
// answer. What the store said before is no reason to remove them: their hosts may have written their leases since. In
// the meantime, other changes become Views at once.
func TestRememberedPeersStayWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := remembering(t)
		settle := SettleTime(h.o.Settings)
		h.start()
		h.wantView(withB)
		h.flaky.set(func(s *flakyStore) { s.hangs = true })
		time.Sleep(settle + 10*RefreshEvery)
		h.wantView(withB)
		most := int(10*RefreshEvery/(RefreshEvery+refreshTimeout)) + 1
		if n := h.flaky.requests(); n < 2 || n > most {
			t.Errorf("%d readings, want 2 to %d", n, most)
		}
		for range 20 { // in the middle of a reading, and between two of them
			time.Sleep(700 * time.Millisecond)
			own, _, _ := h.own.Get()
			own.MTU++
			h.own.Set(own)
			synctest.Wait()
			if v, _, _ := h.Views().Get(); v.Own.MTU != own.MTU {
				t.Fatal("a view waits for the store")
			}
		}
		h.wantView(withB)
		h.flaky.set(func(s *flakyStore) { s.hangs = false })
		time.Sleep(2 * RefreshEvery)
		h.wantView(alone)
	})
}

// TestRememberedPeerComesBack: the store decides about a remembered peer as soon as it has a record about it.
func TestRememberedPeerComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := remembering(t)
		h.start()
		h.wantView(withB)
		b := h.join("b", 5)
		h.wantView("10.5.1.0/24 <- b@10.5.5.0/24")
		h.store.Delete(key(b))
		h.wantView(alone)
		time.Sleep(2 * SettleTime(h.o.Settings))
		if n := h.flaky.requests(); n != 0 {
			t.Errorf("%d readings, though no remembered peers were left", n)
		}
	})
}

// TestRememberedInAnotherRun: another Run, as with a later definition, keeps what an earlier process knew for as long as
// the first one would have. The definition may have been put back in the meantime, and another pool may have been added.
func TestRememberedInAnotherRun(t *testing.T) {
	for _, plan := range []string{"10.5.0.0/20", "fd00:5::/52"} {
		synctest.Test(t, func(t *testing.T) {
			h := remembering(t)
			settle := SettleTime(h.o.Settings)
			stop := h.start()
			h.wantView(withB)
			time.Sleep(settle / 2)
			stop()
			h.network.CreateIndex++
			if !strings.HasPrefix(plan, "10.") {
				h.network.Plan = append(h.network.Plan, agenttest.Plan(t, plan)...)
				h.Clear()
			}
			h.start()
			h.wantView(withB)
			time.Sleep(settle/2 - time.Second)
			h.wantView(withB)
			time.Sleep(2 * time.Second)
			h.wantView(alone)
		})
	}
}

// TestRememberedOnce: what an earlier process knew counts in no later Run once the store has decided about it, or the
// host has left the network.
func TestRememberedOnce(t *testing.T) {
	for _, left := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h := remembering(t)
			stop := h.start()
			h.wantView(withB)
			if left {
				stop()
				h.now(t.Context(), h.network)
				h.Reset()
				if set, err := h.Leases(false); err == nil {
					t.Errorf("a host that has left still knows %+v", set)
				}
			} else {
				b := h.join("b", 2)
				h.wantView(withB)
				h.store.Delete(key(b))
				h.wantView(alone)
				stop()
			}
			h.start()
			h.wantView(alone)
		})
	}
}

// fileContent returns the slots that are in the peers file, and its CreateIndex.
func (h *host) fileContent() (slots []uint64, created uint64) {
	h.t.Helper()
	synctest.Wait()
	file, err := state.LoadPeers(h.o.DataDir, "n")
	must(h.t, err)
	return slotsOf(file.ParseLeases(h.network)), file.Created
}

// TestPeersFile: a first View is written at once, later ones after a pause, and the last one before Run returns.
func TestPeersFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		b := h.join("b", 2)
		stop := h.start()
		has := func(want int) {
			t.Helper()
			if slots, created := h.fileContent(); len(slots) != want || created != h.network.CreateIndex {
				t.Errorf("the file has the slots %d and index %d, want %d slots", slots, created, want)
			}
		}
		has(1)
		h.join("c", 3)
		time.Sleep(savePause(3) / 2)
		has(1)
		h.join("d", 4)
		has(1)
		time.Sleep(savePause(3) / 2)
		has(3)
		h.wantCheck(health.DataDir, api.Passing)
		h.store.Delete(key(b))
		has(3)
		stop()
		has(2)
	})
}

// TestViewsRankLeases: a View ranks a lease behind those that were known before, also in the next process.
func TestViewsRankLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		b := h.join("b", 2)
		stop := h.start()
		c := h.join("c", 3)
		ranked := func() {
			t.Helper()
			synctest.Wait()
			v, _, _ := h.Views().Get()
			if rank := v.Seniority; rank[b.Subnet()] == 0 || rank[b.Subnet()] >= rank[c.Subnet()] {
				t.Errorf("b ranks %d, c %d", rank[b.Subnet()], rank[c.Subnet()])
			}
		}
		ranked()
		stop()
		h.Follower = h.newFollower(h.flaky, h.o.DataDir)
		h.start()
		ranked()
	})
}

// TestPeersFileOfANewRecord: the file and the View follow a definition at once, also one that was put back into an emptied
// store with the same content.
func TestPeersFileOfANewRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		h.start()
		n := h.network
		n.CreateIndex = 99
		h.defined.Set(n)
		synctest.Wait()
		if _, created := h.fileContent(); created != 99 {
			t.Errorf("the file is of a definition created at %d", created)
		}
		if v, _, _ := h.Views().Get(); v.Network.CreateIndex != 99 {
			t.Errorf("the view is of a definition created at %d", v.Network.CreateIndex)
		}
	})
}

// TestPeersFileCannotBeWritten: the check says so, and the write is repeated until it succeeds.
func TestPeersFileCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		obstacle := filepath.Dir(state.PeersPath(h.o.DataDir, "n"))
		must(t, os.WriteFile(obstacle, nil, 0o600)) // in place of the directory
		h.start()
		h.wantView(alone)
		h.wantCheck(health.DataDir, api.Warning, "remember the peers")
		time.Sleep(time.Minute)
		h.wantCheck(health.DataDir, api.Warning, "remember the peers")
		must(t, os.Remove(obstacle))
		time.Sleep(10 * time.Second)
		h.wantCheck(health.DataDir, api.Passing)
		if slots, _ := h.fileContent(); len(slots) != 0 {
			t.Errorf("the file has the slots %d", slots)
		}
	})
}

// TestNothingReadIsNotWritten: a Run that has read nothing keeps the file, also when the definition was put back.
func TestNothingReadIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := remembering(t)
		h.flaky.fail(registry.ErrUnavailable)
		n := h.network
		n.CreateIndex++
		h.defined.Set(n)
		stop := h.start()
		h.wantView("none")
		stop()
		if slots, _ := h.fileContent(); len(slots) != 1 {
			t.Errorf("the file has the slots %d", slots)
		}
	})
}

// TestLeaseThatIsTakenBackUnchanged: a lease that was claimed again, and is as it was, wakes the readers of the View,
// which stays the same.
func TestLeaseThatIsTakenBackUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		h.join("b", 2)
		h.start()
		h.wantView(withB)
		before, _, changed := h.Views().Get()
		own, _, _ := h.own.Get()
		h.own.Set(own)
		synctest.Wait()
		select {
		case <-changed:
		default:
			t.Error("no reader was woken")
		}
		now, _, changed := h.Views().Get()
		if now != before {
			t.Error("it is another view")
		}
		time.Sleep(2 * checkEvery)
		select {
		case <-changed:
			t.Error("a view was published again")
		default:
		}
	})
}

// TestConflictIsJudgedAgain: a rival that falls silent writes nothing to the store, so a conflict is judged again for
// as long as it lasts.
func TestConflictIsJudgedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		b := h.join("b", 2)
		h.start()
		if got := h.suspected(); len(got) != 1 || got[0] != "" {
			t.Errorf("suspected %q", got)
		}
		clone := b // the store would refuse the address in a claim
		own, _, _ := h.own.Get()
		clone.PublicIPs = own.PublicIPs
		record, err := registry.FormatLease(clone)
		must(t, err)
		h.store.Put(key(b), record)
		got := h.suspected()
		if len(got) != 2 || !strings.Contains(got[1], `"b"`) || !strings.Contains(got[1], "192.0.2.97") {
			t.Errorf("suspected %q", got)
		}
		v, _, changed := h.Views().Get()
		if len(Of(v.Leases, v.Own, nil)) != 1 {
			t.Error("it is no peer")
		}
		h.flaky.set(func(s *flakyStore) { s.isBlind = true })
		time.Sleep(2*RefreshEvery + time.Second)
		if got := h.suspected(); len(got) != 4 || got[3] != got[1] {
			t.Errorf("suspected %q", got)
		}
		h.store.EndSession(b.Session)
		time.Sleep(RefreshEvery)
		if got := h.suspected(); len(got) != 5 || got[4] != "" {
			t.Errorf("suspected %q", got)
		}
		time.Sleep(time.Minute)
		if got := h.suspected(); len(got) != 5 {
			t.Errorf("judged again: %q", got)
		}
		select {
		case <-changed:
			t.Error("a view was published")
		default:
		}
	})
}

// TestRedefined: with another definition the watch goes on from where it was, and a View of the same leases is published.
func TestRedefined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		h.join("b", 2)
		h.start()
		want := h.view()
		before, reads := h.Followed(), h.flaky.requests()
		n := h.network
		n.Backend = agenttest.Backend(t, "alloc", `{"colour":"blue"}`)
		n.ModifyIndex++
		h.defined.Set(n)
		h.wantView(want)
		if v, _, _ := h.Views().Get(); !v.Network.Backend.Equal(n.Backend) {
			t.Errorf("the view is of %s", v.Network.Backend.Object)
		}
		if now := h.Followed(); !now.Equal(before) || h.flaky.requests() != reads {
			t.Errorf("read again at %s, before %s; %d requests, before %d", now, before, h.flaky.requests(), reads)
		}
		h.join("c", 3)
		h.wantView(want + ", c@10.5.3.0/24")
		h.wantCheck(health.Snapshot, api.Passing)
	})
}
