package rules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
)

// The rules are looked at within 2 s of a change, and however many changes there are, not more often than once in
// lookInterval.
func TestLooksAfterChanges(t *testing.T) {
	r := &recorder{}
	running(t, r, time.Hour, func(t *testing.T, _ *Keeper, _ *health.Board) {
		looks := r.looks()
		for range 500 {
			r.disturb()
			pass(5 * time.Millisecond)
		}
		if got := r.looks() - looks; got < 2 || got > 4 {
			t.Errorf("%d looks in 2.5 s of changes", got)
		}
		pass(5 * time.Second)
		// A last change is not lost.
		looks = r.looks()
		r.disturb()
		pass(2 * time.Second)
		if got := r.looks() - looks; got != 1 {
			t.Errorf("%d looks after one change", got)
		}
		pass(time.Minute)
		if got := r.looks() - looks; got != 1 {
			t.Errorf("%d looks a minute later", got)
		}
	})
}

// Rules whose changes are not announced are polled, while they are in use.
func TestSilentRules(t *testing.T) {
	r := &recorder{report: firewall.Report{Silent: true}}
	running(t, r, time.Hour, func(t *testing.T, _ *Keeper, _ *health.Board) {
		looks := r.looks()
		pass(time.Minute)
		if got := r.looks() - looks; got != 0 {
			t.Errorf("%d looks at untouched rules", got)
		}
		r.set(func(r *recorder) { r.touched = true })
		pass(2 * time.Second)
		if got := r.looks() - looks; got < 1 || got > 2 {
			t.Errorf("%d looks in 2 s at rules that are touched all the time", got)
		}
	})
}

// The rules are looked at from time to time also if changes cannot be watched, or there are none.
func TestResync(t *testing.T) {
	r := &recorder{watch: errors.New("no rights to watch")}
	running(t, r, 20*time.Second, func(t *testing.T, k *Keeper, _ *health.Board) {
		looks := r.looks()
		pass(time.Minute)
		if got := r.looks() - looks; got != 3 {
			t.Errorf("%d looks in a minute", got)
		}
		must(t, k.Drop(t.Context(), "n"))
		looks = r.looks()
		pass(30 * time.Minute)
		if got := r.looks() - looks; got != 0 {
			t.Errorf("%d looks without a network", got)
		}
	})
}

// A firewall that fails is tried again with growing pauses, and the networks learn of it: none of them tries by itself.
func TestTriedAgain(t *testing.T) {
	r := &recorder{}
	running(t, r, time.Hour, func(t *testing.T, k *Keeper, board *health.Board) {
		r.fail(errors.New("the lock is held"))
		looks := r.looks()
		r.disturb()
		pass(time.Minute)
		if got := check(board, "n", health.Firewall); got != "critical: the lock is held" {
			t.Errorf("check %q", got)
		}
		var times []time.Time
		r.set(func(r *recorder) { times = slices.Clone(r.times[looks:]) })
		if len(times) < 8 || len(times) > 30 {
			t.Errorf("tried %d times in a minute", len(times))
		}
		for i := 2; i < len(times); i++ {
			if gap := times[i].Sub(times[i-1]); gap < retry.FirstPause/2 {
				t.Errorf("tried again after %s", gap)
			}
		}
		r.fail(nil)
		pass(10 * time.Second)
		if got := check(board, "n", health.Firewall); got != "passing: rules are in place" {
			t.Errorf("check %q", got)
		}
		looks = r.looks()
		must(t, k.Put(t.Context(), wanted("n")))
		if got := r.looks() - looks; got != 0 {
			t.Errorf("%d looks for rules that are in force", got)
		}
	})
}

// What cannot be removed of the last network is tried again with growing pauses, and a check of the agent shows it. That
// holds also if the caller gave up.
func TestRemovalTriedAgain(t *testing.T) {
	locked := errors.New("the lock is held")
	for _, tt := range []struct {
		name   string
		report firewall.Report
		gaveUp bool
	}{
		{"rules of iptables stay", firewall.Report{Leftover: locked}, false},
		{"the guard stays", firewall.Report{Unguarded: locked}, false},
		{"the caller gives up", firewall.Report{Leftover: locked}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{}
			running(t, r, time.Hour, func(t *testing.T, k *Keeper, board *health.Board) {
				looks, ctx := r.looks(), t.Context()
				r.set(func(r *recorder) { r.report = tt.report })
				if tt.gaveUp {
					ended, cancel := context.WithCancel(ctx)
					cancel()
					ctx = ended
					r.fail(ctx.Err())
				}
				if err := k.Drop(ctx, "n"); (err != nil) != tt.gaveUp {
					t.Errorf("dropped: %v", err)
				}
				r.fail(nil)
				pass(30 * time.Second)
				for range 100 { // neither adds attempts
					must(t, k.Drop(t.Context(), "n"))
					r.disturb()
				}
				pass(30 * time.Second)
				if got := r.looks() - looks; got < 8 || got > 30 {
					t.Errorf("tried %d times in a minute", got)
				}
				if got := check(board, "", health.Firewall); got != "warning: rules that no network wants could not be removed: the lock is held" {
					t.Errorf("check %q", got)
				}
				r.set(func(r *recorder) { r.report = firewall.Report{} })
				pass(10 * time.Second)
				looks = r.looks()
				pass(30 * time.Minute)
				if got := check(board, "", health.Firewall); got != "" || r.looks() != looks {
					t.Errorf("check %q, %d looks when nothing is left", got, r.looks()-looks)
				}
			})
		})
	}
}

// TestRemovalWithoutRights: an agent without rights, which has networks of `alloc` only, does not say that rules are left:
// it cannot know.
func TestRemovalWithoutRights(t *testing.T) {
	r := &recorder{}
	running(t, r, time.Hour, func(t *testing.T, k *Keeper, board *health.Board) {
		r.set(func(r *recorder) { r.report = firewall.Report{Leftover: fmt.Errorf("look: %w", unix.EPERM)} })
		must(t, k.Drop(t.Context(), "n"))
		looks := r.looks()
		pass(30 * time.Minute)
		if got := check(board, "", health.Firewall); got != "" || r.looks() != looks {
			t.Errorf("check %q, %d looks", got, r.looks()-looks)
		}
	})
}

// What failed waits for its time, whatever other programs change; other wishes do not.
func TestBacksOff(t *testing.T) {
	r := &recorder{err: errors.New("no such table")}
	synctest.Test(t, func(t *testing.T) {
		k, _ := newKeeper(r)
		_ = k.Put(t.Context(), wanted("n")) // fails
		k.look(t.Context(), true)
		if got := r.looks(); got != 1 {
			t.Errorf("%d looks too soon", got-1)
		}
		k.Configure(config.Firewall{Type: "nftables"})
		k.look(t.Context(), true)
		if got := r.looks(); got != 2 {
			t.Errorf("%d looks for another type", got-1)
		}
		pass(retry.FirstPause * 2)
		k.look(t.Context(), false)
		if got := r.looks(); got != 3 {
			t.Errorf("%d looks when the pause is over", got-2)
		}
	})
}

// While rules are expected of a network whose wishes are not known, nothing is written, and the loop does not spin.
func TestWaitsForPending(t *testing.T) {
	r := &recorder{}
	running(t, r, time.Second, func(t *testing.T, k *Keeper, _ *health.Board) {
		k.Expect("m")
		looks := r.looks()
		r.disturb()
		if got := k.next(time.Now()); got < lookInterval/2 {
			t.Errorf("looks again in %s", got)
		}
		pass(time.Hour)
		if got := r.looks() - looks; got != 0 {
			t.Errorf("%d looks", got)
		}
		k.Resolve("m")
		pass(3 * time.Second)
		if got := r.looks() - looks; got == 0 {
			t.Error("no look after it was resolved")
		}
	})
}

// TestChecks holds the check of a network against what the firewall reports.
func TestChecks(t *testing.T) {
	chosen := firewall.Choice{Kind: "iptables-nft", Reason: "it works"}
	const place = "rules are in place: iptables-nft, since it works"
	for _, tt := range []struct {
		name   string
		report firewall.Report
		check  string
	}{
		{"one kind", firewall.Report{Choice: chosen}, "passing: " + place},
		{"old ones stay", firewall.Report{Choice: chosen, Leftover: errors.New("no such program")},
			"warning: " + place + "; older ones could not be removed: no such program"},
		{"another kind", firewall.Report{Choice: chosen, Instead: errors.New("iptables-save hangs")},
			"warning: " + place + "; repair the firewall that this host prefers, because rules of another kind cannot overrule what Docker and others drop: iptables-save hangs"},
		{"unreadable tables", firewall.Report{Choice: chosen, Unreadable: "ip nat, ip filter"},
			"passing: " + place + "; iptables-nft cannot show the tables ip nat, ip filter, which have rules or chains that only nft can write: leno reads its rules there from the kernel"},
		{"changed now and then", firewall.Report{Choice: chosen, Repaired: []string{"no jump"}}, "passing: " + place},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k, board := newKeeper(&recorder{report: tt.report})
			must(t, k.Put(t.Context(), wanted("n")))
			if got := check(board, "n", health.Firewall); got != tt.check {
				t.Errorf("check %q, want %q", got, tt.check)
			}
			if got := k.Status(); got.Choice != chosen || got.Flapping != 0 {
				t.Errorf("status %+v", got)
			}
		})
	}
	t.Run("nothing asked for", func(t *testing.T) {
		k, board := newKeeper(&recorder{report: firewall.Report{Choice: chosen}})
		must(t, k.Put(t.Context(), firewall.Network{Name: "n"}))
		if got := check(board, "n", health.Firewall); got != "passing: no rules are asked for" {
			t.Errorf("check %q", got)
		}
	})
}

// TestFlapping checks that rules that are changed again and again are logged with one line each time, then once a
// minute, and are named in health until that ends.
func TestFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines strings.Builder
		var messages []string
		var passes []Pass
		r := &recorder{report: firewall.Report{Writes: 1, Repaired: []string{"no jump in FORWARD"}}}
		board := health.New(time.Now, nil)
		k := New(r, config.Firewall{Resync: time.Second}, hclog.New(&hclog.LoggerOptions{Output: &lines}), board, Hooks{
			Repaired: func(message string) { messages = append(messages, message) },
			Applied:  func(p Pass) { passes = append(passes, p) },
		})
		must(t, k.Put(t.Context(), wanted("n")))
		for range 59 {
			pass(time.Second)
			k.look(t.Context(), false)
		}
		if got := check(board, "n", health.Firewall); !strings.HasPrefix(got, "warning: rules are in place; they are being changed by another program again and again: no jump in FORWARD (") {
			t.Errorf("check %q", got)
		}
		if k.Status().Flapping != 1 || k.pause(time.Now()) < time.Second {
			t.Errorf("status %+v, looks again after %s", k.Status(), k.pause(time.Now()))
		}
		single := strings.Count(lines.String(), "changed by another program, repaired")
		repeated := strings.Count(lines.String(), "logged once a minute")
		if single != 5 || repeated != 1 || len(messages) != 6 {
			t.Errorf("%d messages, logged was\n%s", len(messages), lines.String())
		}
		if len(passes) != 60 || slices.ContainsFunc(passes, func(p Pass) bool { return p.Writes != 1 || p.Repaired != 1 || p.Err != nil }) {
			t.Errorf("passes %+v", passes)
		}
		r.set(func(r *recorder) { r.report.Repaired = nil })
		pass(3 * time.Minute)
		k.look(t.Context(), false)
		if got := check(board, "n", health.Firewall); got != "passing: rules are in place" || k.Status().Flapping != 0 {
			t.Errorf("check %q, status %+v", got, k.Status())
		}
		if !strings.Contains(lines.String(), "firewall rules are no longer being changed by another program: repaired=\"no jump in FORWARD\"") {
			t.Errorf("logged was\n%s", lines.String())
		}
	})
}

// A Watch that fails is started again, and logged once until it works again.
func TestWatchFails(t *testing.T) {
	r := &recorder{watch: errors.New("no buffer space")}
	var changes atomic.Int32
	synctest.Test(t, func(t *testing.T) {
		var lines strings.Builder
		k := New(r, config.Firewall{Resync: time.Hour}, hclog.New(&hclog.LoggerOptions{Output: &lines}), health.New(time.Now, nil),
			Hooks{Changed: func() { changes.Add(1) }})
		done := make(chan error, 1)
		go func() { done <- k.watch(t.Context()) }()
		pass(time.Minute)
		if got := strings.Count(lines.String(), "watching the firewall failed"); got != 1 || changes.Load() != 0 {
			t.Errorf("%d changes, logged was\n%s", changes.Load(), lines.String())
		}
		r.set(func(r *recorder) { r.watch = nil })
		pass(10 * time.Second)
		r.disturb()
		if changes.Load() != 2 {
			t.Errorf("%d changes", changes.Load())
		}
	})
}
