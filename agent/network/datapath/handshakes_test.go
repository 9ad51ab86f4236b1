package datapath

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
)

// A look is what the counters of peer b say at one time.
type look struct {
	at        time.Duration
	sent      uint64
	handshake time.Duration // when there was one; negative for never
	late      bool
	next      time.Duration
}

// TestLateHandshakes: a peer is reported if packets are sent to it without a session, and not if it is idle.
func TestLateHandshakes(t *testing.T) {
	const never = -1
	for _, tt := range []struct {
		name  string
		away  bool
		looks []look
	}{
		{"never, nothing is sent", false, []look{{0, 0, never, false, 0}, {time.Hour, 0, never, false, 0}}},
		{"never, packets are sent", false, []look{
			{0, 148, never, false, handshakeTime}, {4 * time.Second, 148, never, false, 6 * time.Second},
			{10 * time.Second, 296, never, true, 0}, {time.Hour, 296, never, true, 0}}},
		{"its lease has lapsed", true, []look{{0, 148, never, false, 0}, {time.Minute, 296, never, false, 0}}},
		{"the handshake comes in time", false, []look{{0, 148, never, false, handshakeTime}, {9 * time.Second, 400, 8 * time.Second, false, 0}}},
		{"the handshake comes late", false, []look{{0, 148, never, false, handshakeTime}, {20 * time.Second, 296, never, true, 0},
			{21 * time.Second, 400, 20 * time.Second, false, 0}}},
		{"idle with an old handshake", false, []look{{time.Hour, 5000, 0, false, 0}, {2 * time.Hour, 5000, 0, false, 0}}},
		{"what was sent in the session does not count", false, []look{{160 * time.Second, 5000, 0, false, 0},
			{181 * time.Second, 9000, 0, false, 0}, {200 * time.Second, 9000, 0, false, 0}}},
		{"a peer that stops answering", false, []look{{160 * time.Second, 5000, 0, false, 0}, {180 * time.Second, 5500, 0, false, 0},
			{181 * time.Second, 5500, 0, false, 0}, {190 * time.Second, 5648, 0, false, handshakeTime},
			{200 * time.Second, 5796, 0, true, 0}, {260 * time.Second, 6000, 250 * time.Second, false, 0}}},
		{"an idle peer is sent to, and answers", false, []look{{time.Hour, 5000, 0, false, 0}, {time.Hour + time.Second, 5148, 0, false, handshakeTime},
			{time.Hour + 11*time.Second, 6000, time.Hour + time.Second, false, 0}}},
		{"a peer that stopped answering is idle", false, []look{{time.Hour, 5000, 0, false, 0}, {time.Hour + time.Second, 5148, 0, false, handshakeTime},
			{time.Hour + time.Minute, 5296, 0, true, 0}, {time.Hour + 2*time.Minute, 5296, 0, true, 0},
			{time.Hour + 5*time.Minute, 5296, 0, false, 0}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var h handshakes
			zero := time.Unix(1e9, 0)
			for _, l := range tt.looks {
				c, unproven := backend.Counters{TxBytes: l.sent, Handshake: zero.Add(l.handshake)}, []string(nil)
				if l.handshake < 0 {
					c.Handshake, unproven = time.Time{}, []string{"b"}
				}
				late, next := h.look(zero.Add(l.at), map[string]backend.Counters{"": {}, "b": c}, unproven, func(string) bool { return tt.away })
				if (len(late) > 0) != l.late || next != l.next {
					t.Errorf("after %s: %v, next %s", l.at, late, next)
				}
			}
		})
	}
}

func TestLateHandshakesInWords(t *testing.T) {
	var h handshakes
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	counted, unproven := map[string]backend.Counters{}, []string{"b", "c", "d", "e"}
	for _, node := range unproven {
		counted[node] = backend.Counters{TxBytes: 1}
	}
	present := func(string) bool { return false }
	_, _ = h.look(now, counted, unproven, present)
	late, _ := h.look(now.Add(time.Minute), counted, unproven, present)
	late[0].last = now
	err := errLate(late)
	if got := fmt.Sprint(err); got != "no handshake with b since 2026-01-02 03:04:05 UTC, c so far, d so far and 1 more" {
		t.Error(got)
	}
	if !errors.Is(err, backend.ErrNoHandshake) || errLate(nil) != nil {
		t.Errorf("%v, %v", err, errLate(nil))
	}
	again, _ := h.look(now.Add(2*time.Minute), counted, unproven, present)
	if !late[0].new || again[0].new {
		t.Errorf("%v, then %v", late, again)
	}
}

// TestRoutesWithoutHandshake: the check of the routes warns within seconds about a peer that packets are sent to and that
// does not answer, says what to do, and passes again after a handshake.
func TestRoutesWithoutHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		kind := l.kind("recorder")
		kind.Encrypts = true
		counted := map[string]backend.Counters{"b": {TxBytes: 148}}
		kind.New = counting{recording{l}, &counted}.new
		l.options.Host.Backends["recorder"] = kind
		l.built()
		l.result.Unproven = []string{"b"}
		stop := l.run()
		defer stop()
		l.views.Set(l.view("b"))
		l.applied()
		l.check(health.Routes, api.Passing, "1 peers in place")
		time.Sleep(handshakeTime + time.Second)
		l.applied()
		l.check(health.Routes, api.Warning, "1 peers in place; no handshake with b so far; ", "UDP port", "psk_file")
		if n := l.logged("packets are sent to a peer without a handshake"); n != 1 {
			t.Errorf("logged %d times", n)
		}
		if n := l.r.Status().Unanswered; n != 1 {
			t.Errorf("%d peers do not answer", n)
		}
		l.edit(func() {
			l.result.Unproven = nil
			counted = map[string]backend.Counters{"b": {TxBytes: 300, Handshake: time.Now()}}
		})
		time.Sleep(slowTick + time.Second)
		l.applied()
		l.check(health.Routes, api.Passing, "1 peers in place")
	})
}

// counting is a backend that counts.
type counting struct {
	recording
	counted *map[string]backend.Counters
}

func (c counting) new(backend.Config) (backend.Backend, error) { return c, nil }

func (c counting) Abilities() backend.Abilities { return backend.Abilities{Counters: c.counters} }

func (c counting) counters() map[string]backend.Counters {
	c.lab.mu.Lock()
	defer c.lab.mu.Unlock()
	return *c.counted
}
