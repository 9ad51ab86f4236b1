package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// switchLimit is how long a switch to another backend may take once all hosts of the network are there and undisturbed.
const switchLimit = time.Minute

// switchNetwork begins a switch of a network to another backend, or to new keys. It is over when the operator has done
// everything that belongs to the fault: the hosts switch the network by themselves, and may take longer. If the network
// is being switched already, the fault concerns that switch, and a switch to another backend turns it round.
func (r *run) switchNetwork(ctx context.Context, s Step) error {
	r.operator.one.Lock()
	defer r.operator.one.Unlock()
	c, err := r.readBackends(ctx, s.Network)
	switch {
	case err != nil:
		return err
	case c.current.Type == "":
		r.say("network %s is not defined, so it is not switched", s.Network)
		return nil
	case c.switching() && s.Kind == SwitchBackend && c.back:
		return r.turn(ctx, s, "-continue")
	case c.switching() && s.Kind == SwitchBackend:
		return r.turn(ctx, s, "-reverse")
	case !c.switching() && s.Kind == RotateKeys && c.current.Type == "wireguard":
		return r.turn(ctx, s, "-rotate-keys")
	case !c.switching() && s.Kind == RotateKeys:
		if err := r.switchTo(ctx, s, "wireguard"); err != nil {
			return err
		}
	case !c.switching():
		others := slices.DeleteFunc(slices.Clone(datapaths), func(kind string) bool { return kind == c.current.Type })
		if err := r.switchTo(ctx, s, others[s.Pick%len(others)]); err != nil {
			return err
		}
	}
	switch s.Kind {
	case StopSwitch:
		if err := sleep(ctx, time.Duration(s.Pick%2000)*time.Millisecond); err != nil {
			return err
		}
		return errors.Join(r.turn(ctx, s, "-stop"), sleep(ctx, s.For), r.turn(ctx, s, "-continue"))
	case ReverseSwitch:
		return errors.Join(sleep(ctx, s.For), r.turn(ctx, s, "-reverse"))
	case RotateKeys:
		// The rules judge whether the switch ends; the operator does not wait for hosts that are away for long.
		err := await(ctx, switchLimit, "the switch of "+s.Network, func(ctx context.Context) error {
			c, err := r.readBackends(ctx, s.Network)
			if err == nil && c.switching() {
				err = errors.Join(errors.New("it goes on"), sleep(ctx, r.Every))
			}
			return err
		})
		if err != nil {
			r.say("network %s is still being switched, so its keys stay", s.Network)
			return ctx.Err()
		}
		return r.turn(ctx, s, "-rotate-keys")
	}
	return nil
}

// startInSwitch begins a switch of a network while the agent of one of its hosts is down and the host has lost its
// devices and routes, as after a boot. The agent starts in the switch, which is stopped until then if pick is odd.
func (r *run) startInSwitch(ctx context.Context, s Step) error {
	r.operator.one.Lock()
	defer r.operator.one.Unlock()
	stop := func(m *machine, ctx context.Context) error {
		r.say("%s boots", m.Name)
		m.setProcess(nil)
		r.stopAgent(ctx, m)
		return m.script(`ip route flush proto 108; ip -6 route flush proto 108
			for device in $(ip -o link show | sed -n 's/^[0-9]*: \(leno-[^:@]*\)[:@].*/\1/p'); do ip link del $device; done`)(ctx)
	}
	start := func(m *machine, ctx context.Context) error { return r.startAgent(ctx, m) }
	stopped := false
	err := r.silencing(ctx, s, stop, start, func(ctx context.Context) error { // the host is down
		c, err := r.readBackends(ctx, s.Network)
		if err != nil || c.current.Type == "" {
			return err
		}
		if !c.switching() {
			others := slices.DeleteFunc(slices.Clone(datapaths), func(kind string) bool { return kind == c.current.Type })
			err = r.switchTo(ctx, s, others[s.Pick/2%len(others)])
		}
		if stopped = s.Pick%2 == 1; err == nil && stopped {
			err = r.turn(ctx, s, "-stop")
		}
		return err
	})
	if err == nil {
		err = sleep(ctx, s.For)
	}
	if stopped && ctx.Err() == nil {
		err = errors.Join(err, r.turn(ctx, s, "-continue"))
	}
	return err
}

// readBackends reads what a network's definition says about its backends, the zero value if the network is not defined. A
// definition that the store has lost is awaited.
func (r *run) readBackends(ctx context.Context, name string) (out definedBackends, err error) {
	err = r.onLeader(ctx, "have the definition of "+name, func(ctx context.Context) error {
		p, err := r.store.read(ctx, networkKey(name))
		if err != nil {
			return err
		}
		switch state, _ := stateOf(p); state {
		case stateDefined:
			out = backendsOf(p)
		case stateDeleted:
			out = definedBackends{}
		default:
			return errors.New(state)
		}
		return nil
	})
	return out, err
}

// switchTo changes a network's definition to one with another backend.
func (r *run) switchTo(ctx context.Context, s Step, backend string) error {
	r.operator.mu.Lock()
	variant := r.operator.variant[s.Network]
	r.operator.mu.Unlock()
	file, err := r.writeDefinition(s.Network, variant, backend)
	if err != nil {
		return err
	}
	return r.redirect(ctx, s, "to "+backend, r.commandOf("network", "apply", file))
}

// turn changes where the switch of a network is going, or begins one to new keys, with a flag of network switch.
func (r *run) turn(ctx context.Context, s Step, flag string) error {
	return r.redirect(ctx, s, flag, r.commandOf("network", "switch", flag, s.Network))
}

// redirect runs a command that begins or changes a switch. A command that comes too late, or too early, changes nothing.
func (r *run) redirect(ctx context.Context, s Step, what string, command []string) error {
	done := r.change(s.Kind, s.Network)
	return await(ctx, patience, "network "+s.Network+" to be switched "+what, func(ctx context.Context) error {
		out, err := r.operate(ctx, command...)
		refused := err != nil && strings.Contains(err.Error(), "was not changed")
		if err != nil && !refused {
			return errors.Join(fmt.Errorf("%w: %s", err, out), sleep(ctx, r.Every))
		}
		_, definition, readErr := r.readNetwork(ctx, s.Network)
		if readErr != nil {
			return readErr
		}
		done(definition, true)
		if refused {
			r.say("network %s is not switched %s: %v", s.Network, what, err)
			return nil
		}
		_, target, _ := strings.Cut(definition, "] ")
		r.say("network %s is switched %s, and goes to %s", s.Network, what, target)
		return nil
	})
}

// awaitSwitched blocks until no network is being switched any more, at most for the limit.
func (r *run) awaitSwitched(ctx context.Context, limit time.Duration) {
	for end := r.now() + limit; r.now() < end && r.switching() && sleep(ctx, r.Every) == nil; {
	}
}

// switching reports whether a network was being switched at the last read.
func (r *run) switching() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.h.Reads[max(0, len(r.h.Reads)-len(allNetworks())-1):], func(read Read) bool { return read.switching() })
}

// switching reports whether the network was being switched to another backend.
func (r Read) switching() bool { return len(r.Backends) > 1 }

// definedBackends are what a definition says about the backends that carry the network.
type definedBackends struct {
	current, next definedBackend // next has no type unless the network is being switched
	back          bool           // the switch goes to the current one
}

// A definedBackend is a backend in a definition.
type definedBackend struct {
	Backend
	options map[string]any // its own
}

// backendsOf returns what a network's record says about its backends, the zero value if there is none.
func backendsOf(p *pair) (out definedBackends) {
	var value struct {
		Backend map[string]any
		Epoch   struct {
			Number  int
			Rotated bool
		}
		Switch struct {
			To        map[string]any
			Direction string
			Rotated   bool
		}
	}
	if p == nil || json.Unmarshal(p.record, &value) != nil {
		return out
	}
	out.back = value.Switch.Direction == "back"
	out.current = definedIn(value.Backend, value.Epoch.Number, value.Epoch.Rotated)
	out.next = definedIn(value.Switch.To, value.Epoch.Number+1, value.Switch.Rotated)
	return out
}

// definedIn returns a backend in an epoch of the network. Its device and whether its ports are swapped count as options.
func definedIn(object map[string]any, epoch int, rotated bool) (out definedBackend) {
	if object == nil {
		return out
	}
	out.Type, _ = object["type"].(string)
	delete(object, "type")
	out.options = object
	if out.Other = epoch%2 != 0; out.Other {
		object["device"] = "b"
	}
	if rotated {
		object["rotated"] = true
	}
	return out
}

// switching reports whether the network is being switched.
func (c definedBackends) switching() bool { return c.next.Type != "" }

// target returns the backend that is to carry the network in the end.
func (c definedBackends) target() definedBackend {
	if c.switching() && !c.back {
		return c.next
	}
	return c.current
}

// all returns the current backend and the next one.
func (c definedBackends) all() []Backend {
	out := []Backend{c.current.Backend}
	if c.switching() {
		out = append(out, c.next.Backend)
	}
	return out
}
