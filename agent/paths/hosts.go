package paths

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
)

const (
	// A change is reported when it has lasted for badAfter: a summary that an agent sent while it started is corrected by
	// then. A recovery must last for goodAfter, so that a host that fails again and again has one event.
	badAfter  = 45 * time.Second
	goodAfter = 2 * time.Minute

	// batch is the shortest time from one report of a change to the next. Hosts that change in the meantime are in the
	// next one.
	batch = time.Minute

	// mostReported is the number of hosts up to which each host has an event of its own when several change at once.
	mostReported = 3
)

// changeText says what other hosts did, by the field "change" of the event. Each is about one host or several.
var changeText = map[string]string{
	"failed":    "Consul reports %s as failed",
	"alive":     "Consul reports %s as alive again",
	"critical":  "%s became critical",
	"warning":   "%s reported a warning",
	"recovered": "%s recovered",
	"version":   "%s changed its version",
}

// hostWatch finds out what to report of the other hosts of a network: what their agents say of themselves, and which of
// them Consul reports as failed. The zero value is ready.
type hostWatch struct {
	hosts    map[netip.Prefix]*watchedHost // by first subnet; nil before the first peers
	reported map[string]time.Time          // when a change was last reported
}

// watchedHost is what is known of one host.
type watchedHost struct {
	node                    string
	member, health, version fact
}

// fact is something about a host that changes.
type fact struct {
	reported string // "" for unknown
	now      string
	since    time.Time // of now
}

// hostChange is a fact of one host that is to be reported.
type hostChange struct {
	*fact
	what, node, details string
	subnet              netip.Prefix
}

// follow takes over what is known of the peers now, and returns events for those that changed. What it is told first is
// no change, except that a host that joins later is expected to be healthy.
func (w *hostWatch) follow(now time.Time, peers map[netip.Prefix]*peer) (out []api.Event) {
	if len(peers) == 0 {
		return nil
	}
	isFirst := w.hosts == nil
	if isFirst {
		w.hosts, w.reported = map[netip.Prefix]*watchedHost{}, map[string]time.Time{}
	}
	maps.DeleteFunc(w.hosts, func(subnet netip.Prefix, h *watchedHost) bool {
		return peers[subnet] == nil || peers[subnet].Node != h.node
	})
	found := map[string][]hostChange{}
	for subnet, p := range peers {
		h := w.hosts[subnet]
		if h == nil {
			h = &watchedHost{node: p.Node}
			if !isFirst {
				h.member.reported, h.health.reported = api.MemberAlive, api.Passing
			}
			w.hosts[subnet] = h
		}
		for _, c := range h.changes(now, p) {
			c.node, c.subnet = p.Node, subnet
			found[c.what] = append(found[c.what], c)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(found)) {
		if now.Sub(w.reported[what]) < batch {
			continue
		}
		w.reported[what] = now
		for _, c := range found[what] {
			c.reported = c.fact.now
		}
		slices.SortFunc(found[what], func(a, b hostChange) int {
			return cmp.Or(strings.Compare(a.node, b.node), a.subnet.Compare(b.subnet))
		})
		out = append(out, hostEvents(what, found[what])...)
	}
	return out
}

// changes takes over what is known of the host now, and returns what is to be reported of it.
func (h *watchedHost) changes(now time.Time, p *peer) (out []hostChange) {
	s := p.summary
	if h.version.set(s.Version, now, 0) {
		details := fmt.Sprintf("%s to %s", h.version.reported, s.Version)
		out = append(out, hostChange{fact: &h.version, what: "version", details: details})
	}
	hold := badAfter
	if p.Member == api.MemberAlive {
		hold = goodAfter
	}
	if (p.Member == api.MemberAlive || p.Member == api.MemberFailed) && h.member.set(p.Member, now, hold) {
		out = append(out, hostChange{fact: &h.member, what: p.Member})
	}
	hold = badAfter
	if slices.Index(api.HostStates, s.Health) > slices.Index(api.HostStates, h.health.reported) {
		hold = goodAfter
	}
	if h.health.set(s.Health, now, hold) {
		what := s.Health
		if what == api.Passing {
			what = "recovered"
		}
		out = append(out, hostChange{fact: &h.health, what: what, details: s.Reason})
	}
	return out
}

// set takes over a value, and reports whether it is another one than was reported and has lasted for hold. An unknown
// value, "", changes nothing.
func (f *fact) set(value string, now time.Time, hold time.Duration) bool {
	if value == "" {
		return false
	}
	f.reported = cmp.Or(f.reported, value)
	if value != f.now {
		f.now, f.since = value, now
	}
	return value != f.reported && now.Sub(f.since) >= hold
}

// hostEvents returns the events for hosts that did the same.
func hostEvents(what string, changes []hostChange) (out []api.Event) {
	e := api.Event{Kind: api.EventPeer, Severity: api.Warning}
	if what == "alive" || what == "recovered" || what == "version" {
		e.Severity = api.Info
	}
	if count := len(changes); count > mostReported {
		var names []string
		for _, c := range changes[:mostReported] {
			names = append(names, c.node)
		}
		who := fmt.Sprintf("%d hosts (%s and %d more)", count, strings.Join(names, ", "), count-len(names))
		e.Message = fmt.Sprintf(changeText[what], who)
		e.Fields = map[string]string{"change": what, "count": fmt.Sprint(count)}
		return []api.Event{e}
	}
	for _, c := range changes {
		e.Message = fmt.Sprintf(changeText[what], c.node)
		if c.details != "" {
			e.Message += ": " + c.details
		}
		e.Fields = map[string]string{"change": what, "host": c.node, "subnet": c.subnet.String()}
		out = append(out, e)
	}
	return out
}
