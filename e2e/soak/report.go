package soak

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// Report is what came of a run. Durations are nanoseconds in JSON.
type Report struct {
	Seed     uint64        `json:"seed"`
	For      time.Duration `json:"for"`  // that faults went on, by plan
	Took     time.Duration `json:"took"` // all of it
	Agents   int           `json:"agents"`
	Carriers int           `json:"carriers"` // of them
	Servers  int           `json:"servers"`
	TTL      time.Duration `json:"ttl"`
	Hold     time.Duration `json:"hold"`

	Rounds int          `json:"rounds"`
	Faults map[Kind]int `json:"faults"`
	// Looks at agents, consistent reads of the store, looks at route tables.
	Claims int `json:"claims"`
	Reads  int `json:"reads"`
	Routes int `json:"routes"`
	Moves  int `json:"moves"` // of a node to another subnet

	PingsSent int `json:"pings_sent"`
	PingsLost int `json:"pings_lost"`
	// PingsExcused are those of PingsLost that were lost to a host that a fault
	// had cut off or that had been given up for longer than hold.
	PingsExcused int `json:"pings_excused"`

	// Recovery is how long after a fault was undone all was as before.
	Recovery map[Kind]Recovery `json:"recovery"`

	Violations []Violation `json:"violations"`
}

// Recovery of one kind of fault.
type Recovery struct {
	Count  int           `json:"count"`
	Median time.Duration `json:"median"`
	Max    time.Duration `json:"max"`
}

func (r *run) report(steps []Step, took time.Duration) Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.h
	out := Report{
		Seed: r.Seed, For: r.For, Took: took.Round(time.Second), Agents: r.Agents, Carriers: r.Carriers, Servers: len(r.Servers),
		TTL: r.Rules.TTL, Hold: r.Rules.Hold, Faults: map[Kind]int{}, Claims: len(h.Claims), Reads: len(h.Reads), Routes: len(h.Routes),
		PingsSent: r.pings.sent, PingsLost: len(h.Losses), PingsExcused: Excused(h), Moves: Moves(h), Recovery: Recoveries(h),
		Violations: Check(h),
	}
	for _, s := range steps {
		out.Rounds = max(out.Rounds, s.Round)
		out.Faults[s.Kind]++
	}
	return out
}

// Moves counts how often a node went to another subnet.
func Moves(h History) int {
	c := newChecker(h)
	n := 0
	for _, ts := range c.tenures {
		for i := range ts {
			if i > 0 && !slices.Equal(ts[i-1].subnets, ts[i].subnets) {
				n++
			}
		}
	}
	return n
}

// Recoveries finds, for every fault that was undone, how long after that the
// agents it concerned were well again: answering, with a subnet, passing.
func Recoveries(h History) map[Kind]Recovery {
	c := newChecker(h)
	took := map[Kind][]time.Duration{}
	for _, s := range h.Silences {
		if s.To != forever {
			c.recovered(took, s.Why, s.To, []string{s.Node})
		}
	}
	everyone := func(at time.Duration) (out []string) {
		for _, n := range h.Nodes {
			if !c.disturbed(n.Name, Span{at, at + h.Rules.Settle}) {
				out = append(out, n.Name)
			}
		}
		return out
	}
	for _, s := range h.Storms {
		c.recovered(took, s.Why, s.To, everyone(s.To))
	}
	for _, s := range h.Rewinds {
		c.recovered(took, s.Why, s.To, everyone(s.To))
	}
	out := map[Kind]Recovery{}
	for why, all := range took {
		slices.Sort(all)
		out[why] = Recovery{len(all), all[len(all)/2], all[len(all)-1]}
	}
	return out
}

// recovered adds the time from at until the last of the nodes was well: the end
// of the last look that shows one unwell before the next fault on it. What ends
// while the store is away says nothing.
func (c *checker) recovered(took map[Kind][]time.Duration, why Kind, at time.Duration, nodes []string) {
	if slices.ContainsFunc(c.Storms, func(s Storm) bool { return s.From < at && at < s.To }) {
		return
	}
	well := time.Duration(0)
	for _, node := range nodes {
		next := c.nextFault(node, at)
		for _, l := range c.claimsOf[node] {
			if l.From >= at && l.To < next && (l.Status != "passing" || !l.subnet().IsValid()) {
				well = max(well, l.To-at)
			}
		}
	}
	took[why] = append(took[why], well)
}

// nextFault is when the next one that concerns a node begins.
func (c *checker) nextFault(node string, after time.Duration) time.Duration {
	next := forever
	for _, s := range c.silent[node] {
		if s.From > after {
			next = min(next, s.From)
		}
	}
	for _, s := range c.Storms {
		if s.From > after {
			next = min(next, s.From)
		}
	}
	for _, s := range c.Rewinds {
		if s.From > after {
			next = min(next, s.From)
		}
	}
	return next
}

// JSON writes the report for programs.
func (r Report) JSON(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// Text writes the report for people.
func (r Report) Text(out io.Writer) error {
	fmt.Fprintf(out, "seed %d: %d rounds in %s, %d agents (%d carrying), %d Consul servers, ttl %s, hold %s\n",
		r.Seed, r.Rounds, r.Took, r.Agents, r.Carriers, r.Servers, r.TTL, r.Hold)
	for _, kind := range slices.Sorted(maps.Keys(r.Faults)) {
		line := fmt.Sprintf("  %-18s %3d", kind, r.Faults[kind])
		if w, ok := r.Recovery[kind]; ok {
			line += fmt.Sprintf("   well again after %.1f s, at most %.1f s", w.Median.Seconds(), w.Max.Seconds())
		}
		fmt.Fprintln(out, line)
	}
	fmt.Fprintf(out, "%d looks at agents, %d consistent reads, %d route tables, %d moves to another subnet\n", r.Claims, r.Reads, r.Routes, r.Moves)
	fmt.Fprintf(out, "%d pings sent, %d lost, %d of them to hosts cut off or given up\n", r.PingsSent, r.PingsLost, r.PingsExcused)
	for _, v := range r.Violations {
		fmt.Fprintf(out, "VIOLATION %s\n", v)
	}
	_, err := fmt.Fprintf(out, "%d violations\n", len(r.Violations))
	return err
}
