package definition

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/transition"
	"github.com/lenonet/leno/registry"
)

// ErrTurn means that a switch cannot be turned as wanted.
var ErrTurn = errors.New("the switch is left as it is")

// Turn returns the definition with which the switch of network n to another backend takes another heading, or a switch
// to new keys begins. action is one of api.StopSwitch and the constants after it. Errors wrap registry.ErrInvalid for an
// unknown action, and ErrTurn. now is the time at which a switch ends.
func Turn(n registry.Network, action string, now time.Time, kinds map[string]backend.Type) (registry.Network, error) {
	course, err := transition.Parse(n.Backend.Type, n.Backend.Options())
	if err != nil {
		return n, fmt.Errorf("network %s: %w: %w", n.Name, registry.ErrInvalid, err)
	}
	if course.Next == nil && action != api.RotateKeys {
		return n, fmt.Errorf("%w: network %s is not being switched", ErrTurn, n.Name)
	}
	switch action {
	case api.StopSwitch:
		course.Heading = transition.Stopped
	case api.ContinueSwitch:
		course.Heading = transition.Forward
	case api.ReverseSwitch:
		course.Heading = transition.Back
	case api.EndSwitch:
		if course.Heading == transition.Stopped {
			return n, fmt.Errorf("%w: it is stopped: continue or reverse it first", ErrTurn)
		}
		course = course.Ended(now)
	case api.RotateKeys:
		if course, err = rotated(course, kinds); err != nil {
			return n, err
		}
	default:
		return n, fmt.Errorf("action %q: %w: want %s", action, registry.ErrInvalid,
			strings.Join([]string{api.StopSwitch, api.ContinueSwitch, api.ReverseSwitch, api.EndSwitch, api.RotateKeys}, ", "))
	}
	return WithCourse(n, course)
}

// WithCourse returns the network with another course. At the end of a switch, what the new backend was to bring is
// required.
func WithCourse(n registry.Network, course transition.Course) (registry.Network, error) {
	options, err := course.Options()
	if err == nil {
		n.Backend, err = registry.NewBackend(course.Current.Type, options)
	}
	n.Encryption = cmp.Or(course.Current.Encryption, n.Encryption)
	return n, err
}

// rotated returns the course to new keys. Hosts make a key for each device. The new one needs a port of its own, so two
// ports take turns.
func rotated(course transition.Course, kinds map[string]backend.Type) (transition.Course, error) {
	kind := kinds[course.Current.Type]
	switch {
	case course.Next != nil:
		return course, fmt.Errorf("%w: the network is being switched: keys are rotated after that", ErrTurn)
	case kind.Rotate == nil:
		return course, fmt.Errorf("%w: backend %q has no keys", ErrTurn, course.Current.Type)
	}
	options, err := kind.Rotate(course.Current.Options)
	if err != nil {
		return course, fmt.Errorf("%w: %w", ErrTurn, err)
	}
	return course.To(course.Current.Type, options), nil
}

// Progress returns how far the hosts with a lease have switched network n to another backend.
func Progress(n registry.Network, leases []registry.Lease, kinds map[string]backend.Type) api.NetworkSwitch {
	out := api.NetworkSwitch{From: n.Backend.Type, Hosts: []api.HostChange{}, ModifyIndex: n.ModifyIndex}
	course, err := transition.Parse(n.Backend.Type, n.Backend.Options())
	if err != nil || course.Next == nil {
		return out
	}
	out.To, out.Heading = course.Target().Type, api.SwitchForward
	switch course.Heading {
	case transition.Stopped:
		out.Heading = api.SwitchStopped
	case transition.Back:
		out.From, out.Heading = course.Next.Type, api.SwitchBack
	}
	forward := course
	if course.Heading == transition.Stopped {
		forward.Heading = transition.Forward
	}
	c := Change{Old: n, New: n, Backends: kinds}
	for _, l := range leases {
		out.Hosts = append(out.Hosts, api.HostChange{Node: l.Node, Subnet: l.Subnet(), Held: l.Held(), What: c.switching(l)})
		if forward.IsMoved(l.Backend.Options()) {
			out.Moved++
		}
	}
	return out
}
