package transition

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lenonet/leno/backend"
)

// Wrap returns backends that can be switched: each accepts the options of a Course beside its own, and carries the
// network by that course. Backends without a datapath of their own stay as they are.
func Wrap(types map[string]backend.Type) map[string]backend.Type {
	out := maps.Clone(types)
	for name, kind := range types {
		if !CanSwitch(name) {
			continue
		}
		kind.Normalize = func(options json.RawMessage) (json.RawMessage, error) { return normalize(types, name, options) }
		if port := kind.Port; port != nil {
			kind.Port = func(options json.RawMessage) backend.Port {
				course, err := Parse(name, options)
				if err != nil {
					return backend.Port{}
				}
				return port(course.Current.Options)
			}
		}
		kind.New = func(c backend.Config) (backend.Backend, error) { return newBackend(types, name, c) }
		out[name] = kind
	}
	return out
}

// Ports returns the UDP ports of all backends in a definition with these effective options.
func Ports(types map[string]backend.Type, kind string, options json.RawMessage) []backend.Port {
	out := []backend.Port{types[kind].Uses(options)}
	if course, err := Parse(kind, options); err == nil && course.Next != nil {
		out = append(out, types[course.Next.Type].Uses(course.Next.Options))
	}
	return out
}

// CanSwitch reports whether networks can be switched from and to a backend. One that only leases subnets cannot: other
// programs carry its packets.
func CanSwitch(kind string) bool { return kind != "alloc" }

func normalize(types map[string]backend.Type, kind string, options json.RawMessage) (json.RawMessage, error) {
	course, err := Parse(kind, options)
	if err != nil {
		return nil, err
	}
	if course.Current.Options, err = types[kind].Normalize(course.Current.Options); err != nil {
		return nil, err
	}
	if next := course.Next; next != nil {
		to, ok := types[next.Type]
		if !ok || !CanSwitch(next.Type) {
			return nil, &backend.OptionError{Option: "next", Reason: fmt.Sprintf("this leno cannot switch to backend %q", next.Type)}
		}
		if next.Options, err = to.Normalize(next.Options); err != nil {
			return nil, &backend.OptionError{Option: "next", Reason: err.Error()}
		}
	}
	return course.Options()
}

// A Backend carries a network by a Course.
type Backend struct {
	types   map[string]backend.Type
	config  backend.Config
	course  Course
	current *carrier
	next    *carrier            // nil unless the network is being switched
	leaving []*carrier          // which the course no longer has, until their datapath is removed
	by      map[string]*carrier // over which packets go to each peer, by node; nil before that is known

	// until is when this process decides where packets go to peers of which it does not know yet that it can send to them
	// over the target. An earlier process may have sent to them over either carrier, and until then its routes stay.
	until time.Time
	peers int // in the last state that both carriers got

	counting atomic.Pointer[[]backend.Backend]
}

var (
	_ backend.Backend = (*Backend)(nil)
	_ backend.Changer = (*Backend)(nil)
)

// A carrier is a backend that runs.
type carrier struct {
	Carrier
	backend backend.Backend
	threads int

	pools  []netip.Prefix
	advert backend.Advertisement // the last one, with an MTU of 0 if there is none
	unfit  error                 // why it cannot be used on this underlay, nil if it can
	fault  error                 // why its device is not as it should be, nil if it is
	stands bool                  // packets can arrive over it
	proven map[string]string     // the attributes of each peer to which it can send, by node
	why    map[string]string     // why it cannot send to each of the others
}

func newBackend(types map[string]backend.Type, kind string, c backend.Config) (*Backend, error) {
	b := &Backend{types: types, config: c, until: time.Now().Add(adoptionTime)}
	if err := b.follow(kind, c); err != nil {
		return nil, err
	}
	return b, nil
}

// open builds a carrier, which touches nothing.
func (b *Backend) open(c Carrier) (*carrier, error) {
	kind, ok := b.types[c.Type]
	if !ok {
		return nil, fmt.Errorf("this leno has no backend %q", c.Type)
	}
	built, err := kind.New(b.configOf(c))
	if err != nil {
		return nil, fmt.Errorf("backend %q: %w", c.Type, err)
	}
	link, _ := c.Link(b.config.Network)
	_, missing := net.InterfaceByName(link)
	return &carrier{Carrier: c, backend: built, threads: kind.Threads, pools: b.config.Pools, stands: !kind.Device || missing == nil}, nil
}

func (b *Backend) configOf(c Carrier) backend.Config {
	config := b.config
	config.Link, config.Alias = c.Link(b.config.Network)
	config.Options = c.Options
	config.DataDir = c.DataDir(config.DataDir)
	if log := config.Logger; log != nil {
		config.Logger = log.Named(c.Type)
	}
	return config
}

// Change implements backend.Changer. The new options may be those of another backend, if it is one of those that carry
// the network now.
func (b *Backend) Change(c backend.Config) error { return b.follow(b.course.Current.Type, c) }

// ChangeTo is like Change for a definition whose backend has another type.
func (b *Backend) ChangeTo(kind string, c backend.Config) error { return b.follow(kind, c) }

// Course returns the present course.
func (b *Backend) Course() Course { return b.course }

// Threads returns the sum of the carriers' backend.Type.Threads.
func (b *Backend) Threads() int {
	n := b.current.threads
	if b.next != nil {
		n += b.next.threads
	}
	return n
}

// follow takes up a course. Carriers that it has too go on.
func (b *Backend) follow(kind string, c backend.Config) error {
	course, err := Parse(kind, c.Options)
	if err != nil {
		return err
	}
	if b.current != nil && !b.course.Follows(course) {
		return fmt.Errorf("backend %q cannot follow %q without an interruption", kind, b.course.Current.Type)
	}
	if b.current != nil {
		b.until = time.Time{} // the routes are this process's
	}
	b.config = c
	running := slices.Concat(b.carriers(), b.leaving)
	var kept []*carrier
	take := func(want Carrier) (*carrier, error) {
		i := slices.IndexFunc(running, func(r *carrier) bool { return r.is(want) })
		if i < 0 {
			return b.open(want)
		}
		now := running[i]
		if err := b.retune(now, want); err != nil {
			return nil, err
		}
		kept = append(kept, now)
		return now, nil
	}
	current, err := take(course.Current)
	if err != nil {
		return err
	}
	var next *carrier
	if course.Next != nil {
		if next, err = take(*course.Next); err != nil {
			return err
		}
	}
	b.course, b.current, b.next = course, current, next
	b.leaving = slices.DeleteFunc(running, func(r *carrier) bool { return slices.Contains(kept, r) })
	maps.DeleteFunc(b.by, func(_ string, c *carrier) bool { return c != current && c != next })
	if len(b.by) == 0 {
		b.by = nil
	}
	var all []backend.Backend
	for _, c := range b.carriers() {
		all = append(all, c.backend)
	}
	b.counting.Store(&all)
	return nil
}

// retune gives a carrier that runs other options or pools.
func (b *Backend) retune(c *carrier, want Carrier) error {
	if c.Equal(want) && slices.Equal(c.pools, b.config.Pools) {
		return nil
	}
	if changer, ok := c.backend.(backend.Changer); ok && changer.Change(b.configOf(want)) == nil {
		c.Options, c.pools = want.Options, b.config.Pools
		return nil
	}
	rebuilt, err := b.open(want)
	if err != nil {
		return err
	}
	err = c.backend.Close()
	c.backend, c.Options, c.pools = rebuilt.backend, want.Options, b.config.Pools
	return err
}

// carriers returns the carriers of the course.
func (b *Backend) carriers() (out []*carrier) {
	for _, c := range []*carrier{b.current, b.next} {
		if c != nil {
			out = append(out, c)
		}
	}
	return out
}

// target returns the carrier that packets are to go over in the end, and the other one. The switch must not have ended.
func (b *Backend) target() (target, from *carrier) {
	if b.course.Heading == Back {
		return b.current, b.next
	}
	return b.next, b.current
}

// Advertise implements backend.Backend. The overlay's MTU is the smaller one of both backends.
func (b *Backend) Advertise(u backend.Underlay) (backend.Advertisement, error) {
	out, err := b.current.backend.Advertise(u)
	if err != nil {
		return out, err
	}
	b.current.advert = out
	m := members{Device: b.current.device()}
	if next := b.next; next != nil {
		next.advert, next.unfit = next.backend.Advertise(u)
		if next.unfit == nil && next.advert.MTU < out.MTU {
			out.MTU, out.Overhead = next.advert.MTU, next.advert.Overhead
		}
		if m.Next, err = next.offer(); err != nil {
			return out, err
		}
		m.Sends = b.sends()
	}
	out.Attributes, err = m.join(out.Attributes)
	return out, err
}

// offer returns what the lease says of the next backend: how peers reach this host over it, or why they cannot; nil
// before that is known.
func (c *carrier) offer() (json.RawMessage, error) {
	m := members{Device: c.device()}
	switch err := c.broken(); {
	case err != nil:
		m.Error = err.Error()
		return withType(c.Type, nil, m)
	case !c.stands:
		return nil, nil
	}
	return withType(c.Type, c.advert.Attributes, m)
}

// broken returns why the carrier cannot be used, nil if it can.
func (c *carrier) broken() error {
	if c.unfit != nil {
		return c.unfit
	}
	return c.fault
}

// sends returns the device over which packets go to all peers, "" if there is none.
func (b *Backend) sends() string {
	target, _ := b.target()
	if b.by == nil || !target.stands {
		return "" // an earlier process may have left routes over the other one
	}
	for _, c := range b.by {
		if c != target {
			return ""
		}
	}
	if len(b.by) < b.peers {
		return ""
	}
	return target.device()
}

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

// anotherDevice makes a backend say that it cannot use a peer that has the same backend with another device.
const anotherDevice = " with another device"

// applyOne applies a state with one carrier.
func (b *Backend) applyOne(ctx context.Context, s backend.State) (backend.Report, error) {
	c, peers := b.current, slices.Clone(s.Peers)
	for i, p := range peers {
		if !c.Other && !mentions(p.Attributes) {
			continue // as in networks that were never switched
		}
		if own, _, ok := c.entry(p.Backend, p.Attributes); ok {
			peers[i].Backend, peers[i].Attributes = c.Type, own
		} else if p.Backend == c.Type {
			peers[i].Backend += anotherDevice
		}
	}
	s.Peers = peers
	return c.backend.Apply(ctx, s)
}

// rounds is how often one Apply may move peers: to the target, and back if that fails.
const rounds = 3

// applyBoth applies a state with both carriers. Peers to which the target turns out to be able to send move to it at
// once.
func (b *Backend) applyBoth(ctx context.Context, s backend.State) (backend.Report, error) {
	target, from := b.target()
	b.peers = len(s.Peers)
	var out backend.Report
	for round := 1; ; round++ {
		b.by = b.choose(s.Peers)
		// A peer that leaves the target needs its route over the other carrier first.
		left, leftErr := b.applyTo(ctx, from, s)
		led, ledErr := b.applyTo(ctx, target, s)
		if again := b.choose(s.Peers); round < rounds && !maps.Equal(again, b.by) {
			out.Writes += left.Writes + led.Writes
			out.Healed = slices.Concat(out.Healed, left.Healed, led.Healed)
			continue
		}
		b.merge(&out, from, left)
		b.merge(&out, target, led)
		out.Switch = b.progress(s.Peers)
		if target == b.next && !b.carries(target) {
			ledErr = nil // packets flow without it, and the progress has it
		}
		return out, errors.Join(leftErr, ledErr)
	}
}

// carries reports whether packets go to a peer over the carrier.
func (b *Backend) carries(c *carrier) bool {
	for _, by := range b.by {
		if by == c {
			return true
		}
	}
	return false
}

// adoptionTime is how long a process leaves the routes of an earlier one alone while peers have not answered.
const adoptionTime = 3 * time.Second

// choose decides over which carrier packets go to each peer. A peer that the result lacks has no route of this process yet.
func (b *Backend) choose(peers []backend.Peer) map[string]*carrier {
	target, from := b.target()
	out := make(map[string]*carrier, len(peers))
	for _, p := range peers {
		_, _, overTarget := target.entry(p.Backend, p.Attributes)
		_, _, overFrom := from.entry(p.Backend, p.Attributes)
		switch moved := b.by[p.Node] == target; {
		case !overTarget && !overFrom:
			out[p.Node] = b.current // which says why it cannot
		case !overTarget:
			out[p.Node] = from
		case !overFrom:
			out[p.Node] = target
		case target.isProven(p) && (moved || b.course.Heading != Stopped):
			out[p.Node] = target
		case b.by[p.Node] == nil && time.Now().Before(b.until):
			// The kernel has the route of an earlier process, or none.
		default:
			out[p.Node] = from
		}
	}
	return out
}

// isProven reports whether the carrier was last found to be able to send to a peer.
func (c *carrier) isProven(p backend.Peer) bool {
	own, _, _ := c.entry(p.Backend, p.Attributes)
	before, ok := c.proven[p.Node]
	return ok && before == string(own)
}

// applyTo applies a carrier's part of a state.
func (b *Backend) applyTo(ctx context.Context, c *carrier, s backend.State) (backend.Report, error) {
	mine := s
	mine.Peers = make([]backend.Peer, 0, len(s.Peers))
	known := map[string]string{}
	for _, p := range s.Peers {
		own, _, ok := c.entry(p.Backend, p.Attributes)
		isMine := b.by[p.Node] == c
		switch {
		case ok:
			known[p.Node] = string(own)
			p.Backend, p.Attributes = c.Type, own
		case !isMine:
			p.Backend, p.Attributes = c.Type, nil
		case p.Backend == c.Type:
			p.Backend += anotherDevice
		}
		if !isMine {
			mine.Elsewhere = append(mine.Elsewhere, p.Subnets...)
		}
		mine.Peers = append(mine.Peers, p)
	}
	if c.unfit != nil {
		c.stands, c.proven, c.why = false, nil, nil
		return backend.Report{}, nil
	}
	if c.advert.MTU > 0 {
		mine.MTU = c.advert.MTU
	}
	report, err := c.backend.Apply(ctx, mine)
	if ctx.Err() != nil {
		return report, ctx.Err()
	}
	c.fault = backend.ByPart(err)[backend.Device]
	c.stands = c.fault == nil
	c.proven, c.why = known, map[string]string{}
	if c.fault != nil {
		c.proven = nil
	}
	for _, skip := range report.Skipped {
		delete(c.proven, skip.Node)
		c.why[skip.Node] = skip.Reason
	}
	for _, node := range report.Unproven {
		delete(c.proven, node)
		c.why[node] = "no packet from it has arrived so far"
	}
	return report, err
}

// merge adds a carrier's report to that of the network.
func (b *Backend) merge(out *backend.Report, c *carrier, report backend.Report) {
	isMine := func(node string) bool { return b.by[node] == c }
	out.Writes += report.Writes
	out.Healed = append(out.Healed, report.Healed...)
	for _, by := range b.by {
		if by == c {
			out.Peers++
		}
	}
	for _, skip := range report.Skipped {
		if isMine(skip.Node) {
			out.Skipped = append(out.Skipped, skip)
			out.Peers--
		}
	}
	for _, node := range report.Unproven {
		if isMine(node) {
			out.Unproven = append(out.Unproven, node)
		}
	}
	for _, note := range report.Notes {
		out.Notes = append(out.Notes, c.Type+": "+note)
	}
}

// progress describes how far the switch is.
func (b *Backend) progress(peers []backend.Peer) *backend.Switch {
	target, from := b.target()
	out := &backend.Switch{From: from.Type, To: target.Type, Stopped: b.course.Heading == Stopped}
	if err := target.broken(); err != nil {
		out.Fault = err.Error()
	}
	for _, p := range peers {
		if b.by[p.Node] == target {
			out.Moved++
			continue
		}
		reason := target.why[p.Node]
		_, fault, ok := target.entry(p.Backend, p.Attributes)
		switch {
		case fault != "":
			reason = fmt.Sprintf("it cannot use %s: %s", target.Type, fault)
		case !ok:
			reason = fmt.Sprintf("it has not prepared %s yet", target.Type)
		case reason == "" && out.Fault != "":
			reason = fmt.Sprintf("this host cannot use %s", target.Type)
		case reason == "":
			reason = "the switch is stopped"
		}
		out.Waiting = append(out.Waiting, backend.Skip{Node: p.Node, Reason: reason})
	}
	return out
}

// clear removes the datapath of carriers that have left. Those that have the device of a carrier of the course go before
// it is applied, and the others after it.
func (b *Backend) clear(ctx context.Context, s backend.State, before bool) (backend.Report, error) {
	var out backend.Report
	var errs []error
	elsewhere := slices.Clone(b.config.Pools)
	for _, p := range s.Peers {
		elsewhere = append(elsewhere, p.Subnets...)
	}
	b.leaving = slices.DeleteFunc(b.leaving, func(c *carrier) bool {
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

// isInTheWay reports whether a carrier of the course has the same device.
func (b *Backend) isInTheWay(c *carrier) bool {
	return slices.ContainsFunc(b.carriers(), func(o *carrier) bool { return o.Other == c.Other })
}

// remove applies the zero State.
func (b *Backend) remove(ctx context.Context, s backend.State) (backend.Report, error) {
	var out backend.Report
	var errs []error
	for _, c := range slices.Concat(b.carriers(), b.leaving) {
		report, err := c.backend.Apply(ctx, s)
		out.Writes += report.Writes
		c.stands, c.proven = false, nil
		errs = append(errs, err)
	}
	b.by = nil
	return out, errors.Join(errs...)
}

// Close implements backend.Backend.
func (b *Backend) Close() error {
	var errs []error
	for _, c := range slices.Concat(b.carriers(), b.leaving) {
		errs = append(errs, c.backend.Close())
	}
	return errors.Join(errs...)
}

// Counting returns what counts the traffic over all carriers, by peer and in total; nil if no carrier does.
func (b *Backend) Counting() (backend.Counter, backend.Meter) {
	var counter backend.Counter
	var meter backend.Meter
	for _, c := range *b.counting.Load() {
		if _, ok := c.(backend.Counter); ok {
			counter = counting{b}
		}
		if _, ok := c.(backend.Meter); ok {
			meter = counting{b}
		}
	}
	return counter, meter
}

// counting adds up what the carriers count.
type counting struct{ of *Backend }

// Counters implements backend.Counter.
func (c counting) Counters() map[string]backend.Counters {
	out := map[string]backend.Counters{}
	for _, each := range *c.of.counting.Load() {
		if counter, ok := each.(backend.Counter); ok {
			for node, n := range counter.Counters() {
				out[node] = out[node].Plus(n)
			}
		}
	}
	return out
}

// Totals implements backend.Meter.
func (c counting) Totals() (backend.Counters, error) {
	var out backend.Counters
	var errs []error
	for _, each := range *c.of.counting.Load() {
		if meter, ok := each.(backend.Meter); ok {
			n, err := meter.Totals()
			out, errs = out.Plus(n), append(errs, err)
		}
	}
	return out, errors.Join(errs...)
}
