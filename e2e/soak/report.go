package soak

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/lenonet/leno/e2e/lab"
)

// A Report is the outcome of a run. Durations are nanoseconds in JSON.
type Report struct {
	Seed     uint64        `json:"seed"`
	For      time.Duration `json:"for"`  // planned duration of the faults
	Took     time.Duration `json:"took"` // duration of the whole run
	Agents   int           `json:"agents"`
	Carriers int           `json:"carriers"` // how many of them carry packets
	Store    string        `json:"store"`    // "consul" or "etcd"
	Servers  int           `json:"servers"`
	TTL      time.Duration `json:"ttl"`
	Hold     time.Duration `json:"hold"`

	Violations []Violation `json:"violations"`
	// Ended is the reason why the run ended early, or "".
	Ended string `json:"ended"`
	// Incidents are problems of the suite itself or of the store.
	Incidents []Incident `json:"incidents"`

	Rounds int          `json:"rounds"`
	Total  int          `json:"total"`  // number of faults
	Faults map[Kind]int `json:"faults"` // number of faults of each kind
	// Claims counts the looks at agents' networks, and Calm those at calm members, which had to be
	// well. Reads counts the consistent reads of the store, and Routes the looks at routes and
	// devices.
	Claims int `json:"claims"`
	Calm   int `json:"calm"`
	Reads  int `json:"reads"`
	Routes int `json:"routes"`
	Moves  int `json:"moves"` // of a node to another subnet

	PingsSent int `json:"pings_sent"`
	PingsLost int `json:"pings_lost"`
	// PingsExcused counts those of PingsLost that were lost to a host that a fault had cut off or
	// that had been given up for longer than hold.
	PingsExcused int `json:"pings_excused"`

	// Recovery is how long after the end of a fault everything was as before.
	Recovery map[Kind]Recovery `json:"recovery"`
}

// Recovery summarizes the recoveries from one kind of fault.
type Recovery struct {
	Count  int           `json:"count"`
	Median time.Duration `json:"median"`
	Max    time.Duration `json:"max"`
}

// report checks the history. ended is the reason why the run ended early.
func (r *run) report(ended error) Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := Report{
		Seed: r.Seed, Store: cmp.Or(r.Options.Store, lab.StoreConsul), For: r.For, Took: r.now().Round(time.Second), Agents: r.Agents, Carriers: r.Carriers,
		TTL: r.Rules.TTL, Hold: r.Rules.Hold, Faults: map[Kind]int{}, Total: len(r.begun), Incidents: r.incidents,
	}
	if r.Lab != nil {
		out.Servers = len(r.StoreServers)
	}
	if r.pings != nil {
		out.PingsSent = r.pings.sent
	}
	if ended != nil {
		out.Ended = fmt.Sprintf("%v; %d of %d faults had begun", ended, len(r.begun), r.planned)
	}
	for _, s := range r.begun {
		out.Rounds = max(out.Rounds, s.Round)
		out.Faults[s.Kind]++
	}
	out.judge(r.h)
	return out
}

// judge fills in everything that follows from a history.
func (r *Report) judge(h History) {
	c := newChecker(h)
	r.Violations = c.check()
	r.Claims, r.Calm, r.Reads, r.Routes = len(h.Claims), c.looks, len(h.Reads), len(h.Routes)
	r.PingsLost = len(h.Losses)
	for _, l := range h.Losses {
		if c.excused(l) {
			r.PingsExcused++
		}
	}
	r.Moves, r.Recovery = c.countMoves(), c.recoveries()
}

// Judge returns the report of a history that an earlier run has saved, without what only the run
// itself knows.
func Judge(h History) Report {
	r := Report{TTL: h.Rules.TTL, Hold: h.Rules.Hold}
	r.judge(h)
	return r
}

// countMoves counts how often a node moved to another subnet.
func (c *checker) countMoves() (n int) {
	for _, ts := range c.tenures {
		for i := range ts {
			if i > 0 && !slices.Equal(ts[i-1].subnets, ts[i].subnets) {
				n++
			}
		}
	}
	return n
}

// recoveries measures, for every fault that was undone, how long it took from then until the agents
// concerned had recovered: responding, with a subnet, passing.
func (c *checker) recoveries() map[Kind]Recovery {
	took := map[Kind][]time.Duration{}
	for _, s := range c.Silences {
		if s.To != forever {
			c.recovered(took, s.Why, s.To, c.membersOf(s.Node))
		}
	}
	everyone := func(at time.Duration) (out []member) {
		for _, n := range c.Nodes {
			if !c.disturbed(n.Name, Span{at, at + c.Rules.Settle}) {
				out = append(out, member{n.Name, n.Network})
			}
		}
		return out
	}
	for _, s := range c.Storms {
		if s.To != forever {
			c.recovered(took, s.Why, s.To, everyone(s.To))
		}
	}
	for _, s := range c.Rewinds {
		if s.To != forever {
			c.recovered(took, s.Why, s.To, everyone(s.To))
		}
	}
	out := map[Kind]Recovery{}
	for why, all := range took {
		slices.Sort(all)
		out[why] = Recovery{len(all), all[len(all)/2], all[len(all)-1]}
	}
	return out
}

// recovered adds the time from at until the last of the nodes was well: the end of the last look
// before the next fault on the node that shows it unwell. A time that ends while the store is
// unavailable is not counted.
func (c *checker) recovered(took map[Kind][]time.Duration, why Kind, at time.Duration, members []member) {
	if slices.ContainsFunc(c.Storms, func(s Storm) bool { return s.From < at && at < s.To }) {
		return
	}
	well := time.Duration(0)
	for _, m := range members {
		next := c.nextFault(m, at)
		for _, l := range c.claimsOf[m] {
			if l.From >= at && l.To < next && (l.Status != passing || !l.subnet().IsValid()) && c.defined(m.network, l.Span) {
				well = max(well, l.To-at)
			}
		}
	}
	took[why] = append(took[why], well)
}

// nextFault returns when the next fault that concerns a member begins.
func (c *checker) nextFault(m member, after time.Duration) time.Duration {
	next := forever
	begins := func(at time.Duration) {
		if at > after {
			next = min(next, at)
		}
	}
	for _, s := range c.silent[m.node] {
		begins(s.From)
	}
	for _, s := range c.Storms {
		begins(s.From)
	}
	for _, s := range c.Rewinds {
		begins(s.From)
	}
	for _, s := range c.Changes {
		if s.Network == m.network {
			begins(s.From)
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

var storeNames = map[string]string{lab.StoreConsul: "Consul", lab.StoreEtcd: "etcd"}

// Text writes the report for people, starting with the violations.
func (r Report) Text(out io.Writer) error {
	for _, v := range r.Violations {
		fmt.Fprintf(out, "VIOLATION %s\n", v)
	}
	if r.Ended != "" {
		fmt.Fprintf(out, "ENDED before its time: %s\n", r.Ended)
	}
	for _, i := range r.Incidents {
		fmt.Fprintf(out, "INCIDENT at %s, not about leno: %s\n", i.At.Round(time.Millisecond), i.Text)
	}
	fmt.Fprintf(out, "seed %d: %d faults in %d rounds in %s, %d agents (%d carrying), %d %s servers, ttl %s, hold %s\n",
		r.Seed, r.Total, r.Rounds, r.Took, r.Agents, r.Carriers, r.Servers, storeNames[r.Store], r.TTL, r.Hold)
	for _, kind := range slices.Sorted(maps.Keys(r.Faults)) {
		line := fmt.Sprintf("  %-19s %3d", kind, r.Faults[kind])
		if w, ok := r.Recovery[kind]; ok {
			line += fmt.Sprintf("   recovered after %.1f s, at most %.1f s", w.Median.Seconds(), w.Max.Seconds())
		}
		fmt.Fprintln(out, line)
	}
	fmt.Fprintf(out, "%d looks at agents' networks, %d of them when all had to be well, %d consistent reads, %d looks at routes and devices, %d moves to another subnet\n",
		r.Claims, r.Calm, r.Reads, r.Routes, r.Moves)
	fmt.Fprintf(out, "%d pings sent, %d lost, %d of them to hosts cut off or given up\n", r.PingsSent, r.PingsLost, r.PingsExcused)
	_, err := fmt.Fprintf(out, "%d violations\n", len(r.Violations))
	return err
}
