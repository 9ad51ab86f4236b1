package paths

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/hello"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/plural"
)

// tell adds an event for each path whose state has changed, or of which the direction became known in which all packets
// are lost, except for one that was found in order at its first test. It wakes the readers of these, and of what the
// peers say of themselves.
func (n *network) tell() {
	isChanged := false
	for _, subnet := range slices.SortedFunc(maps.Keys(n.peers), netip.Prefix.Compare) {
		p := n.peers[subnet]
		isChanged, p.hasNews = isChanged || p.hasNews, false
		node, now, before := p.Node, p.result(), p.reported
		if now.State == "" {
			continue // it has moved: what was reported lasts until it is tested
		}
		direction := p.direction()
		isDirected := direction != "" && now.State == api.PathLost && now.Reason != before.Reason
		if before.State == now.State && !isDirected {
			if before.Reason != now.Reason {
				isChanged, p.reported = true, now
			}
			continue
		}
		isChanged, p.reported = true, now
		e := api.Event{
			Network:  n.Name,
			Kind:     api.EventPath,
			Severity: api.Info,
			Message:  "packets reach " + node,
			Fields:   map[string]string{"host": node, "state": now.State},
		}
		switch {
		case isDirected:
			e.Severity, e.Message = api.Warning, now.Reason
		case now.State != api.PathReached:
			e.Severity, e.Message = api.Warning, fmt.Sprintf("packets are lost between this host and %s: %s", node, now.Reason)
		case before.State == "":
			continue
		}
		n.m.o.Events.Add(e)
	}
	if isChanged {
		n.m.o.Changed.Set(struct{}{})
	}
}

// judge returns the result of the health check. Only peers that hold their leases count: a host without one may be
// gone.
func (n *network) judge() (status, reason string) {
	var peers, pinged, blocked, filtered []*peer
	untested := 0
	for _, p := range n.peers {
		if p.Held {
			peers = append(peers, p)
			switch {
			case p.shown.State == "":
				untested++
			case p.datagrams.isLost:
				blocked = append(blocked, p)
			case p.isOnlyPinged():
				pinged = append(pinged, p)
			case p.isFiltered:
				filtered = append(filtered, p)
			}
		}
	}
	slices.SortFunc(blocked, func(a, b *peer) int { return strings.Compare(a.Node, b.Node) })
	bad, failure := append(worst(peers), blocked...), ""
	if n.err != nil {
		failure = "not tested now: " + n.err.Error()
	}
	switch {
	case len(n.peers) == 0:
		return api.Passing, "no other host is in the datapath"
	case len(peers) == 0:
		return api.Passing, "no other host holds its lease"
	case len(bad) == 0 && failure != "":
		return api.Passing, failure
	case len(bad) == 0 && untested > 0:
		return api.Passing, fmt.Sprintf("packets reach %d of %s, %d %s not tested yet", len(peers)-untested,
			plural.Count(len(peers), "host"), untested, plural.Form(untested, "is", "are"))
	case len(bad) == 0:
		return api.Passing, fmt.Sprintf("packets reach %d of %s", len(peers), plural.Count(len(peers), "host")) +
			describeFiltered(filtered) + describePinged(pinged)
	}
	var names []string
	for _, b := range bad[:min(len(bad), mostNamed)] {
		names = append(names, fmt.Sprintf("%s (%s)", b.Node, b.result().Reason))
	}
	if more := len(bad) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	if failure != "" {
		names = append(names, failure)
	}
	text := fmt.Sprintf("packets are lost to %d of %s: %s", len(bad), plural.Count(len(peers), "host"),
		strings.Join(names, ", "))
	if others := n.othersReached(peers); others != "" {
		return api.Critical, "this host reaches no other one; " + others + ": " + text
	}
	return api.Warning, text
}

// describePinged says that only pings are known to reach some peers.
func describePinged(peers []*peer) string {
	if len(peers) == 0 {
		return ""
	}
	return fmt.Sprintf(", but only pings are known to pass to %d of them: %s. Run `leno doctor`, unless a rule drops UDP "+
		"port %d or the agent there does not run", len(peers), nameSome(peers), hello.Port)
}

// describeFiltered says that full-size packets to some peers are not tested.
func describeFiltered(peers []*peer) string {
	if len(peers) == 0 {
		return ""
	}
	return fmt.Sprintf(", full-size ones to %d of them are not tested, as pings are not answered: %s", len(peers),
		nameSome(peers))
}

// nameSome names the first of some peers, and counts the rest.
func nameSome(peers []*peer) string {
	var names []string
	for _, p := range peers {
		names = append(names, p.Node)
	}
	slices.Sort(names)
	if more := len(names) - mostNamed; more > 0 {
		names = append(names[:mostNamed], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}
