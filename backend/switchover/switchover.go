package switchover

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/pathtest"
)

// A Backend carries a network as a Definition says.
type Backend struct {
	types      map[string]backend.Type
	config     backend.Config
	definition Definition
	current    *instance
	next       *instance            // nil unless the network is being switched
	retiring   []*instance          // no longer in the definition, until their datapath is removed
	assigned   map[string]*instance // the one over which packets go to each peer, by node; nil before that is known

	// adoptUntil is when this process assigns peers that have not answered over the target yet. Until then, the routes
	// of an earlier process stay, which may have sent to these peers over either instance.
	adoptUntil time.Time
	peerCount  int // in the last state that both instances got

	hasLink    func(name string) bool // reports whether the host has a device
	routesOver func(ctx context.Context, link string) map[netip.Prefix]bool
	probe      probe
}

var _ backend.Backend = (*Backend)(nil)

// An instance is a running backend.
type instance struct {
	Spec
	link    string // its device, "" for a backend without one
	backend backend.Backend
	pools   []netip.Prefix // that it was built with or told of last

	advert       backend.Advertisement // the last one, with an MTU of 0 if there is none
	advertiseErr error                 // why it cannot be used on this underlay, nil if it can
	fault        error                 // why its device is not as it should be, nil if it is
	ready        bool                  // packets can arrive over it
	proven       map[string]string     // the attributes of each peer to which it can send, by node
	reasons      map[string]string     // why it cannot send to each of the others
	direct       map[netip.Prefix]bool // subnets of peers to which packets do not leave by its device

	// Of peers whose packets do not go over it: the ids of the test packets that were answered, and the attributes of
	// those peers that have answered all, by node.
	answered map[string]map[uint64]bool
	reached  map[string]string
}

// forget makes the answers of a peer so far count no more.
func (c *instance) forget(node string) {
	delete(c.answered, node)
	delete(c.reached, node)
}

// forgetAll makes the answers of all peers so far count no more.
func (c *instance) forgetAll() {
	c.answered, c.reached = map[string]map[uint64]bool{}, map[string]string{}
}

// New returns a backend that carries a network as the definition says, whose options have all defaults. It changes
// nothing on the host.
func New(types map[string]backend.Type, d Definition, c backend.Config) (*Backend, error) {
	b := &Backend{
		types: types, adoptUntil: time.Now().Add(adoptionTime), hasLink: hasLink, routesOver: routesOver,
		probe: probe{tester: pathtest.New()},
	}
	if err := b.ChangeTo(d, c); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(b.instances(), func(i *instance) bool { return i.ready }) {
		b.adoptUntil = time.Time{} // without a device, an earlier process has left no route
	}
	return b, nil
}

func hasLink(name string) bool {
	_, err := net.InterfaceByName(name)
	return err == nil
}

// open builds an instance. It changes nothing on the host. If its device exists, an earlier process left it. Without a
// device, packets can arrive once the instance was applied: the firewall may have dropped them before.
func (b *Backend) open(c Spec) (*instance, error) {
	kind, ok := b.types[c.Type]
	if !ok {
		return nil, fmt.Errorf("this leno has no backend %q", c.Type)
	}
	built, err := kind.New(b.configOf(c))
	if err != nil {
		return nil, fmt.Errorf("backend %q: %w", c.Type, err)
	}
	out := &instance{Spec: c, backend: built, pools: b.config.Pools}
	if kind.Device {
		out.link, _ = c.Link(b.config.Network)
		out.ready = b.hasLink(out.link)
	}
	out.forgetAll()
	return out, nil
}

func (b *Backend) configOf(c Spec) backend.Config {
	config := b.config
	config.Options = c.Running(b.types)
	config.Link, config.Alias = c.Link(b.config.Network)
	config.DataDir = c.DataDir(config.DataDir)
	if log := config.Logger; log != nil {
		config.Logger = log.Named(c.Type)
	}
	return config
}

// Threads returns the sum of the instances' backend.Type.Threads.
func (b *Backend) Threads() (n int) {
	for _, c := range b.instances() {
		n += b.types[c.Type].Threads
	}
	return n
}

// ErrDoesNotFollow: a definition has none of the present backends as its current one, so there is an interruption.
var ErrDoesNotFollow = errors.New("cannot follow without an interruption")

// ChangeTo adopts another definition and configuration. Backends of the present definition keep running. A key that is
// outdated under the new definition is deleted; nothing else on the host changes. It returns ErrDoesNotFollow if the
// definition does not follow the present one.
func (b *Backend) ChangeTo(definition Definition, c backend.Config) error {
	if b.current != nil && !b.definition.Follows(definition) {
		return fmt.Errorf("backend %q after %q: %w", definition.Current.Type, b.definition.Current.Type, ErrDoesNotFollow)
	}
	if b.current != nil {
		b.adoptUntil = time.Time{} // the present routes are of this process
	}
	b.config = c
	running := slices.Concat(b.instances(), b.retiring)
	var kept []*instance
	take := func(want Spec) (*instance, error) {
		i := slices.IndexFunc(running, func(r *instance) bool { return r.is(want) })
		if i < 0 {
			opened, err := b.open(want)
			if err == nil && b.types[want.Type].Device && slices.ContainsFunc(running,
				func(r *instance) bool { return r.IsOnDeviceB() == want.IsOnDeviceB() }) {
				opened.ready = false // the device is that of another backend, which is still to be removed
			}
			return opened, err
		}
		now := running[i]
		if rekey := now.backend.Abilities().Rekey; rekey != nil && b.definition.isOutdated(definition, want) {
			if err := rekey(); err != nil {
				return nil, err
			}
		}
		if err := b.retune(now, want); err != nil {
			return nil, err
		}
		kept = append(kept, now)
		return now, nil
	}
	current, err := take(definition.Current)
	if err != nil {
		return err
	}
	var next *instance
	if definition.Next != nil {
		if next, err = take(*definition.Next); err != nil {
			return err
		}
	}
	if definition.Direction != b.definition.Direction {
		for _, c := range kept {
			c.forgetAll() // of a target that is one no more, or was one some time ago
		}
	}
	b.definition, b.current, b.next = definition, current, next
	b.retiring = slices.DeleteFunc(running, func(r *instance) bool { return slices.Contains(kept, r) })
	maps.DeleteFunc(b.assigned, func(_ string, c *instance) bool { return c != current && c != next })
	if len(b.assigned) == 0 {
		b.assigned = nil
	}
	return nil
}

// retune changes the options or pools of a running instance. After a change of an option on which both ends of a path
// must agree, the instance can receive, and send to its peers, only once it was applied.
func (b *Backend) retune(c *instance, want Spec) error {
	if c.Equal(want) && slices.Equal(c.pools, b.config.Pools) {
		c.Spec = want
		return nil
	}
	if b.interrupts(c.Spec, want) {
		c.ready, c.proven = !b.types[want.Type].Device, nil
		c.forgetAll()
	}
	if change := c.backend.Abilities().Change; change != nil {
		err := change(b.configOf(want))
		if err == nil {
			c.Spec, c.pools = want, b.config.Pools
		}
		return err
	}
	rebuilt, err := b.open(want)
	if err != nil {
		return err
	}
	err = c.backend.Close()
	c.backend, c.Spec, c.pools = rebuilt.backend, want, rebuilt.pools
	return err
}

// interrupts reports whether an option differs on which both ends of a path must agree.
func (b *Backend) interrupts(now, want Spec) bool {
	var before, after map[string]json.RawMessage
	if json.Unmarshal(now.Running(b.types), &before) != nil || json.Unmarshal(want.Running(b.types), &after) != nil {
		return true
	}
	for option := range b.types[want.Type].Interrupts {
		if !bytes.Equal(before[option], after[option]) {
			return true
		}
	}
	return false
}

// instances returns the instances of the definition.
func (b *Backend) instances() []*instance {
	return slices.DeleteFunc([]*instance{b.current, b.next}, func(c *instance) bool { return c == nil })
}

// target returns the instance that carries all packets at the end of the switch, and the other one. The network must be
// in a switch.
func (b *Backend) target() (target, from *instance) {
	if b.definition.Direction == Back {
		return b.current, b.next
	}
	return b.next, b.current
}

// Advertise implements backend.Backend. The overlay's MTU is the smaller MTU of the two backends.
func (b *Backend) Advertise(u backend.Underlay) (backend.Advertisement, error) {
	out, err := b.advertise(b.current, u)
	if err != nil {
		return out, err
	}
	b.current.advert = out
	m := members{Epoch: b.definition.Current.Epoch}
	if next := b.next; next != nil {
		next.advert, next.advertiseErr = b.advertise(next, u)
		if next.advertiseErr == nil && next.advert.MTU < out.MTU {
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

// advertise derives what one instance publishes.
func (b *Backend) advertise(c *instance, u backend.Underlay) (backend.Advertisement, error) {
	if !b.types[c.Type].SharedAddress {
		if err := u.Alone(c.Type); err != nil {
			return backend.Advertisement{}, err
		}
	}
	return c.backend.Advertise(u)
}

// offer returns what the lease says about the next backend: how peers reach this host over it, or why they cannot. It
// returns nil before that is known.
func (c *instance) offer() (json.RawMessage, error) {
	m := members{Type: c.Type}
	switch err := c.broken(); {
	case err != nil:
		m.Error = err.Error()
		return m.join(nil)
	case !c.ready:
		return nil, nil
	}
	return m.join(c.advert.Attributes)
}

// broken returns why the instance cannot be used, nil if it can.
func (c *instance) broken() error { return cmp.Or(c.advertiseErr, c.fault) }

// sends returns the target's device if packets go to all peers over it, and "" otherwise.
func (b *Backend) sends() string {
	target, _ := b.target()
	if b.assigned == nil || !target.ready {
		return "" // an earlier process may have left routes over the other one
	}
	if n := b.count(target); n < len(b.assigned) || n < b.peerCount {
		return ""
	}
	return target.device()
}

// Close implements backend.Backend.
func (b *Backend) Close() error {
	b.probe.Close()
	var errs []error
	for _, c := range slices.Concat(b.instances(), b.retiring) {
		errs = append(errs, c.backend.Close())
	}
	return errors.Join(errs...)
}
