package switchover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/lenonet/leno/backend"
)

// Apply implements backend.Backend.
func (b *Backend) Apply(ctx context.Context, s backend.State) (backend.Report, error) {
	if s.Zero() {
		return b.remove(ctx, s)
	}
	report, err := b.clear(ctx, s, true)
	if err != nil {
		return report, err
	}
	var passed backend.Report
	if b.next == nil {
		passed, err = b.applyOne(ctx, s)
	} else {
		passed, err = b.applyBoth(ctx, s)
	}
	passed.Writes += report.Writes
	if err != nil || s.Partial {
		return passed, err
	}
	report, err = b.clear(ctx, s, false)
	passed.Writes += report.Writes
	return passed, err
}

// otherDeviceSuffix is appended to a peer's backend type if the peer has the same backend with another device, so that
// the backend skips the peer and reports why.
const otherDeviceSuffix = " with another device"

// applyOne applies a state with one instance.
func (b *Backend) applyOne(ctx context.Context, s backend.State) (backend.Report, error) {
	b.probe.Close()
	c, peers := b.current, slices.Clone(s.Peers)
	for i, p := range peers {
		if !c.IsOnDeviceB() && !mentions(p.Attributes) {
			continue // as in networks that were never switched
		}
		if own, _, ok := c.entry(p.Backend, p.Attributes); ok {
			peers[i].Backend, peers[i].Attributes = c.Type, own
		} else if p.Backend == c.Type {
			peers[i].Backend += otherDeviceSuffix
		}
	}
	s.Peers = peers
	return c.backend.Apply(ctx, s)
}

// rounds is the maximum number of times that one Apply assigns peers: to the target, and back if that fails.
const rounds = 3

// An offer is what a peer's lease says about one instance.
type offer struct {
	attributes json.RawMessage
	fault      string // why the peer cannot use it
	ok         bool
}

// A reading is a peer with its offers, which are read once for each state.
type reading struct {
	backend.Peer
	offers map[*instance]offer
}

// read reads the leases of all peers.
func (b *Backend) read(peers []backend.Peer) []reading {
	out := make([]reading, len(peers))
	for i, p := range peers {
		out[i] = reading{p, make(map[*instance]offer, 2)}
		for _, c := range b.instances() {
			attributes, fault, ok := c.entry(p.Backend, p.Attributes)
			out[i].offers[c] = offer{attributes, fault, ok}
		}
	}
	return out
}

// applyBoth applies a state with both instances. A peer moves to the target as soon as the target turns out to be able
// to send to it.
func (b *Backend) applyBoth(ctx context.Context, s backend.State) (backend.Report, error) {
	target, from := b.target()
	b.peerCount = len(s.Peers)
	peers := b.read(s.Peers)
	mayMove := b.mayMove(s)
	var out backend.Report
	for round := 1; ; round++ {
		b.assigned = b.choose(ctx, peers, mayMove, s)
		for node, c := range b.assigned {
			if c == target {
				target.forget(node) // if it leaves the target, it has to answer again
			}
		}
		// A peer that leaves the target needs its route over the other instance first.
		left, leftErr := b.applyTo(ctx, from, s, peers)
		led, ledErr := b.applyTo(ctx, target, s, peers)
		b.testPeers(target, s, peers)
		if again := b.choose(ctx, peers, mayMove, s); round < rounds && !maps.Equal(again, b.assigned) {
			out.Writes += left.Writes + led.Writes
			out.Repaired = slices.Concat(out.Repaired, left.Repaired, led.Repaired)
			continue
		}
		b.merge(&out, from, left)
		b.merge(&out, target, led)
		out.Switch = b.progress(peers)
		if target == b.next && b.count(target) == 0 {
			ledErr = nil // packets flow without the target, and the progress shows its fault
		}
		return out, errors.Join(leftErr, ledErr)
	}
}

// count returns the number of peers to which packets go over the instance.
func (b *Backend) count(c *instance) (n int) {
	for _, by := range b.assigned {
		if by == c {
			n++
		}
	}
	return n
}

// adoptionTime is how long a process keeps the routes of an earlier process to peers that have not answered yet.
const adoptionTime = 3 * time.Second

// mayMove reports whether more peers may move to the target. Until this host's lease says that the host takes part in
// the switch, other hosts may end a reversed switch without waiting for it.
func (b *Backend) mayMove(s backend.State) bool {
	switch b.definition.Direction {
	case Stopped:
		return false
	case Back:
		return true
	}
	target, _ := b.target()
	_, _, announced := target.entry(target.Type, s.Published)
	return announced || s.Published == nil
}

// choose assigns each peer to the instance over which packets go to it. If a peer is missing from the result, this
// process has not made a route to it yet.
func (b *Backend) choose(ctx context.Context, peers []reading, mayMove bool, s backend.State) map[string]*instance {
	target, from := b.target()
	routes := map[string]map[netip.Prefix]bool{} // by device
	isRouted := func(p reading) bool {           // an earlier process sent to it over the target
		return slices.ContainsFunc(p.Subnets, func(subnet netip.Prefix) bool {
			link := target.linkTo(subnet, s.Underlay)
			if routes[link] == nil {
				routes[link] = b.routesOver(ctx, link)
			}
			return routes[link][subnet]
		})
	}
	out := make(map[string]*instance, len(peers))
	for _, p := range peers {
		switch moved := b.assigned[p.Node] == target; {
		case !p.offers[target].ok && !p.offers[from].ok:
			out[p.Node] = b.current // which reports why it cannot send to the peer
		case !p.offers[target].ok:
			out[p.Node] = from
		case !p.offers[from].ok:
			out[p.Node] = target
		case target.isProven(p) && (moved || mayMove && target.isReached(p)):
			out[p.Node] = target
		case b.assigned[p.Node] == nil && time.Now().Before(b.adoptUntil):
			// The kernel has the route of an earlier process, or none.
		case b.assigned[p.Node] == nil && b.definition.Direction == Stopped && target.isProven(p) && isRouted(p):
			out[p.Node] = target
		default:
			out[p.Node] = from
		}
	}
	return out
}

// isProven reports whether the instance was able to send to a peer, with the peer's present attributes, when it was
// last applied.
func (c *instance) isProven(p reading) bool {
	before, ok := c.proven[p.Node]
	return ok && before == string(p.offers[c].attributes)
}

// isReached reports whether a peer, with its present attributes, has answered test packets over the instance.
func (c *instance) isReached(p reading) bool {
	before, ok := c.reached[p.Node]
	return ok && before == string(p.offers[c].attributes)
}

// applyTo applies an instance's part of a state.
func (b *Backend) applyTo(ctx context.Context, c *instance, s backend.State, peers []reading) (backend.Report, error) {
	if c.advertiseErr != nil {
		c.ready, c.proven, c.reasons = false, nil, nil
		return backend.Report{}, nil
	}
	mine := s
	mine.Peers = make([]backend.Peer, 0, len(peers))
	known := map[string]string{}
	for _, read := range peers {
		p, offered, isMine := read.Peer, read.offers[c], b.assigned[read.Node] == c
		switch {
		case offered.ok:
			known[p.Node] = string(offered.attributes)
			p.Backend, p.Attributes = c.Type, offered.attributes
		case !isMine:
			p.Backend, p.Attributes = c.Type, nil
		case p.Backend == c.Type:
			p.Backend += otherDeviceSuffix
		}
		if !isMine {
			mine.Elsewhere = append(mine.Elsewhere, p.Subnets...)
		}
		mine.Peers = append(mine.Peers, p)
	}
	if c.advert.MTU > 0 {
		mine.MTU = c.advert.MTU
	}
	report, err := c.backend.Apply(ctx, mine)
	if ctx.Err() != nil {
		return report, ctx.Err()
	}
	c.direct = make(map[netip.Prefix]bool, len(report.Direct))
	for _, subnet := range report.Direct {
		c.direct[subnet] = true
	}
	c.fault = backend.ByPart(err)[backend.Device]
	c.ready = c.fault == nil
	c.proven, c.reasons = known, map[string]string{}
	if c.fault != nil {
		c.proven = nil
		c.forgetAll()
	}
	for _, skip := range report.Skipped {
		c.forget(skip.Node)
		delete(c.proven, skip.Node)
		c.reasons[skip.Node] = skip.Reason
	}
	for _, node := range report.Unproven {
		c.forget(node)
		delete(c.proven, node)
		c.reasons[node] = "no packet from it has arrived so far"
	}
	return report, err
}

// merge adds an instance's report to that of the network.
func (b *Backend) merge(out *backend.Report, c *instance, report backend.Report) {
	isMine := func(node string) bool { return b.assigned[node] == c }
	out.Writes += report.Writes
	out.Repaired = append(out.Repaired, report.Repaired...)
	for _, u := range report.Uncarried {
		isSamePool := func(o backend.Uncarried) bool { return o.Pool == u.Pool }
		if !slices.ContainsFunc(out.Uncarried, isSamePool) {
			out.Uncarried = append(out.Uncarried, u)
		}
	}
	out.Peers += b.count(c)
	for _, skip := range report.Skipped {
		if isMine(skip.Node) {
			out.Skipped = append(out.Skipped, skip)
			out.Peers--
		}
	}
	out.Endpoints = append(out.Endpoints, report.Endpoints...)
	for _, node := range report.Unproven {
		if isMine(node) {
			out.Unproven = append(out.Unproven, node)
		}
	}
	for _, note := range report.Notes {
		out.Notes = append(out.Notes, c.Type+": "+note)
	}
}

// progress describes how far the switch has progressed.
func (b *Backend) progress(peers []reading) *backend.Switch {
	target, from := b.target()
	out := &backend.Switch{From: from.Type, To: target.Type, Stopped: b.definition.Direction == Stopped}
	err := target.broken()
	if err == nil && b.probe.err != nil {
		err = fmt.Errorf("test packets cannot be sent: %w", b.probe.err)
	}
	if err != nil {
		out.Fault = err.Error()
	}
	for _, p := range peers {
		if b.assigned[p.Node] == target {
			out.Moved++
			continue
		}
		if b.assigned[p.Node] == nil {
			out.Unassigned++
		}
		reason, offered := target.reasons[p.Node], p.offers[target]
		switch {
		case offered.fault != "":
			reason = fmt.Sprintf("it cannot use %s: %s", target.Type, offered.fault)
		case !offered.ok:
			reason = fmt.Sprintf("it has not prepared %s yet", target.Type)
		case reason == "" && out.Fault != "":
			reason = fmt.Sprintf("this host cannot use %s", target.Type)
		case reason == "" && out.Stopped:
			reason = "the switch is stopped"
		case reason == "":
			reason = "this host's lease does not say yet that it has the backend"
		}
		out.Waiting = append(out.Waiting, backend.Skip{Node: p.Node, Reason: reason})
	}
	return out
}

// clear removes the datapath of instances that the definition no longer has. It is called twice: before the state is
// applied, for instances whose device another instance needs, and afterwards for the others.
func (b *Backend) clear(ctx context.Context, s backend.State, before bool) (backend.Report, error) {
	var out backend.Report
	var errs []error
	elsewhere := slices.Clone(b.config.Pools)
	for _, p := range s.Peers {
		elsewhere = append(elsewhere, p.Subnets...)
	}
	b.retiring = slices.DeleteFunc(b.retiring, func(c *instance) bool {
		if b.isInTheWay(c) != before {
			return false
		}
		report, err := c.backend.Apply(ctx, backend.State{Elsewhere: elsewhere})
		out.Writes += report.Writes
		if err != nil {
			errs = append(errs, fmt.Errorf("remove what backend %s had: %w", c.Type, err))
			return false
		}
		errs = append(errs, c.backend.Close())
		return true
	})
	return out, errors.Join(errs...)
}

// isInTheWay reports whether an instance of the definition needs the same device.
func (b *Backend) isInTheWay(c *instance) bool {
	return slices.ContainsFunc(b.instances(), func(o *instance) bool { return o.IsOnDeviceB() == c.IsOnDeviceB() })
}

// remove applies the zero State.
func (b *Backend) remove(ctx context.Context, s backend.State) (backend.Report, error) {
	var out backend.Report
	var errs []error
	for _, c := range slices.Concat(b.instances(), b.retiring) {
		report, err := c.backend.Apply(ctx, s)
		out.Writes += report.Writes
		c.ready, c.proven = false, nil
		errs = append(errs, err)
	}
	b.assigned = nil
	b.probe.Close()
	return out, errors.Join(errs...)
}
