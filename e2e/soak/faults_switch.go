package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/backend/transition"
)

// switchLimit is how long a switch to another backend may take once all hosts of the network are there and undisturbed.
const switchLimit = time.Minute

// switchNetwork begins a switch of a network to another backend, or to new keys. It is over when the operator has done
// everything that belongs to the fault: the hosts switch the network by themselves, and may take longer. If the network
// is being switched already, the fault concerns that switch, and a switch to another backend turns it round.
func (r *run) switchNetwork(ctx context.Context, s Step) error {
	r.operator.one.Lock()
	defer r.operator.one.Unlock()
	course, err := r.courseOf(ctx, s.Network)
	switch {
	case err != nil:
		return err
	case course.Current.Type == "":
		r.say("network %s is not defined, so it is not switched", s.Network)
		return nil
	case course.Next != nil && s.Kind == SwitchBackend && course.Heading == transition.Back:
		return r.turn(ctx, s, "-continue")
	case course.Next != nil && s.Kind == SwitchBackend:
		return r.turn(ctx, s, "-reverse")
	case course.Next == nil && s.Kind == RotateKeys && course.Current.Type == "wireguard":
		return r.turn(ctx, s, "-rotate-keys")
	case course.Next == nil && s.Kind == RotateKeys:
		if err := r.switchTo(ctx, s, "wireguard"); err != nil {
			return err
		}
	case course.Next == nil:
		others := slices.DeleteFunc(slices.Clone(datapaths), func(kind string) bool { return kind == course.Current.Type })
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
			course, err := r.courseOf(ctx, s.Network)
			if err == nil && course.Next != nil {
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

// courseOf returns the course in a network's definition, the zero value if the network is not defined. A definition that
// the store has lost is awaited.
func (r *run) courseOf(ctx context.Context, name string) (course transition.Course, err error) {
	err = r.onLeader(ctx, "have the definition of "+name, func(ctx context.Context) error {
		p, err := r.store.read(ctx, networkKey(name))
		if err != nil {
			return err
		}
		switch state, _ := stateOf(p); state {
		case stateDefined:
			course = parseCourse(p)
		case stateDeleted:
			course = transition.Course{}
		default:
			return errors.New(state)
		}
		return nil
	})
	return course, err
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
		refused := err != nil && strings.Contains(err.Error(), "left as it is")
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
func (r Read) switching() bool { return len(r.Carriers) > 1 }

// parseCourse returns the course in a network's record, the zero value if there is none.
func parseCourse(p *pair) transition.Course {
	var value struct{ Backend map[string]any }
	if p == nil || json.Unmarshal(p.record, &value) != nil {
		return transition.Course{}
	}
	kind, _ := value.Backend["type"].(string)
	delete(value.Backend, "type")
	options, err := json.Marshal(value.Backend)
	if err != nil {
		return transition.Course{}
	}
	course, err := transition.Parse(kind, options)
	if err != nil {
		return transition.Course{}
	}
	return course
}

// carriersOf returns the backends of a course.
func carriersOf(course transition.Course) []Carrier {
	out := []Carrier{{course.Current.Type, course.Current.Other}}
	if next := course.Next; next != nil {
		out = append(out, Carrier{next.Type, next.Other})
	}
	return out
}
