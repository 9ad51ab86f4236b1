package agent

import (
	"time"

	"github.com/lenonet/leno/agent/flapping"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
)

// healed counts and logs repairs, and adds events for them.
func (r *runner) healed(now time.Time, repairs []backend.Repair) {
	r.countHealed(repairs)
	for _, name := range r.flapping.Settle(now) {
		r.log.Info("datapath is not changed again and again any more", "healed", name)
	}
	single, repeated := r.flapping.Record(now, repairs)
	if len(single) > 0 {
		r.log.Warn("datapath was changed by another program, healed", "healed", flapping.Sentence(single))
		r.report.Event(api.EventDrift, api.Warning, "changed by another program, healed: "+flapping.Sentence(single), map[string]string{"fault": single[0].Fault})
	}
	for _, q := range repeated {
		r.log.Warn("datapath is being changed by another program again and again, reported once a minute", "healed", q)
		r.report.Event(api.EventDrift, api.Warning, "changed by another program again and again: "+q, nil)
	}
}

// calmer returns the pause before the next look at the kernel. before is the pause before this pass, and healed reports
// whether this pass repaired something. leno does not race a program that changes something again and again.
func (r *runner) calmer(before time.Duration, healed bool) time.Duration {
	switch {
	case r.flapping.Describe() != "":
		return flapping.LongestPause
	case healed:
		return min(2*before, flapping.LongestPause)
	}
	return settle
}
