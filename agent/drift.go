package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
)

// What somebody else changes is healed each time and told with one line each
// time. When it is the same again and again, somebody disagrees: a program that
// thinks the device is its own. That is a quarrel. It is told once, then once a
// minute, and health names it until it is over. Healing goes on meanwhile, at a
// pace that costs little and is still within what is promised for everything
// else on the host.
const (
	quarrelAfter = 6               // times the same
	quarrelSpan  = 5 * time.Minute // within which they count
	quarrelOver  = 2 * time.Minute // without it, after which it is over
	quarrelTold  = time.Minute     // from one line to the next

	// longestCalm is the longest pause between a change of the kernel and the look
	// at it: what is wrong is right again within 2 s.
	longestCalm = 1500 * time.Millisecond
)

// drift remembers what was healed. The zero value is ready; it is used by one
// goroutine at a time.
type drift struct {
	faults map[string]*fault
}

// fault is one thing that went wrong, in the words of backend.Repair.
type fault struct {
	times   []time.Time // it was healed, within quarrelSpan
	last    backend.Repair
	quarrel bool
	told    time.Time // when a line was written about the quarrel
	line    string    // which: health says the same as long, for each change wakes all who watch it
}

// heal takes note of repairs. Single ones are to be told in one line, quarrels in
// one each.
func (d *drift) heal(now time.Time, repairs []backend.Repair) (single []backend.Repair, quarrels []string) {
	for _, r := range repairs {
		f := d.faults[r.Fault]
		if f == nil {
			if f = new(fault); d.faults == nil {
				d.faults = map[string]*fault{}
			}
			d.faults[r.Fault] = f
		}
		f.times = slices.DeleteFunc(append(f.times, now), func(t time.Time) bool { return now.Sub(t) > quarrelSpan })
		f.last = r
		f.quarrel = f.quarrel || len(f.times) >= quarrelAfter
		switch {
		case !f.quarrel:
			single = append(single, r)
		case now.Sub(f.told) >= quarrelTold:
			f.told, f.line = now, f.describe()
			quarrels = append(quarrels, f.line)
		}
	}
	return single, quarrels
}

// settle forgets what has not happened for a while and returns the quarrels that
// are over by that.
func (d *drift) settle(now time.Time) (over []string) {
	for name, f := range d.faults {
		since := now.Sub(f.times[len(f.times)-1])
		if since > quarrelSpan || f.quarrel && since > quarrelOver {
			delete(d.faults, name)
			if f.quarrel {
				over = append(over, name)
			}
		}
	}
	slices.Sort(over)
	return over
}

// quarrels says what is being changed again and again, of some parts or of all, ""
// for nothing.
func (d *drift) quarrels(of ...backend.Part) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(d.faults)) {
		if f := d.faults[name]; f.quarrel && (len(of) == 0 || slices.Contains(of, f.last.Part)) {
			out = append(out, f.line)
		}
	}
	return strings.Join(out, "; ")
}

func (f *fault) describe() string {
	return fmt.Sprintf("%s (%d times in %s, healed each time)", f.last, len(f.times), f.times[len(f.times)-1].Sub(f.times[0]).Round(time.Second))
}

// healed tells of repairs and of what follows from them for health.
func (r *runner) healed(repairs []backend.Repair) {
	r.countHealed(repairs)
	now := time.Now()
	for _, name := range r.drift.settle(now) {
		r.log.Info("datapath is not changed again and again any more", "healed", name)
	}
	single, quarrels := r.drift.heal(now, repairs)
	if len(single) > 0 {
		r.log.Warn("datapath was changed by somebody else, healed", "healed", sentence(single))
		r.event(api.EventDrift, api.Warning, "changed by somebody else, healed: "+sentence(single), map[string]string{"fault": single[0].Fault})
	}
	for _, q := range quarrels {
		r.log.Warn("datapath is being changed by somebody else again and again, told once a minute", "healed", q)
		r.event(api.EventDrift, api.Warning, "changed by somebody else again and again: "+q, nil)
	}
}

func sentence(repairs []backend.Repair) string {
	var out []string
	for _, r := range repairs {
		out = append(out, r.String())
	}
	return strings.Join(out, "; ")
}

// calmer is the pause before the next look, from the one before this pass.
// Somebody who changes something again and again is not to be outrun.
func (r *runner) calmer(before time.Duration, healed bool) time.Duration {
	switch {
	case r.drift.quarrels() != "":
		return longestCalm
	case healed:
		return min(2*before, longestCalm)
	}
	return settle
}
