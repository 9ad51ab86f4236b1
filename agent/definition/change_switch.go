package definition

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/switchover"
	"github.com/lenonet/leno/registry"
)

// ErrSwitch means that a switch cannot be changed as requested.
var ErrSwitch = errors.New("nothing was changed")

// ChangeSwitch returns the definition that stops, continues, reverses or ends the switch of network n to another
// backend, or begins a switch to new keys. action is one of api.StopSwitch and the constants after it. Errors wrap
// registry.ErrInvalid for an unknown action, and ErrSwitch. now is the time at which a switch ends. others are all
// networks in the store, which may include n.
func ChangeSwitch(n registry.Network, action string, now time.Time, others []registry.Network,
	kinds map[string]backend.Type) (registry.Network, error) {
	actions := []string{api.StopSwitch, api.ContinueSwitch, api.ReverseSwitch, api.EndSwitch, api.RotateKeys}
	if !slices.Contains(actions, action) {
		return n, fmt.Errorf("action %q: %w: want %s", action, registry.ErrInvalid, strings.Join(actions, ", "))
	}
	def := carriage.Of(n.Carriage())
	if def.Next == nil && action != api.RotateKeys {
		return n, fmt.Errorf("%w: network %s is not being switched", ErrSwitch, n.Name)
	}
	switch action {
	case api.StopSwitch:
		def.Direction = switchover.Stopped
	case api.ContinueSwitch:
		def.Direction = switchover.Forward
	case api.ReverseSwitch:
		def.Direction = switchover.Back
	case api.EndSwitch:
		if def.Direction == switchover.Stopped {
			return n, fmt.Errorf("%w: it is stopped: continue or reverse it first", ErrSwitch)
		}
		def = def.Ended(now)
	case api.RotateKeys:
		var err error
		if def, err = rotated(def, kinds); err == nil {
			err = checkNewPort(n.Name, def.Next.Port(kinds), others, kinds)
		}
		if err != nil {
			return n, err
		}
	}
	return carriage.Set(n, def)
}

// rotated returns the definition that begins a switch to new keys. Each device has its own key and needs its own port,
// so two ports alternate.
func rotated(def switchover.Definition, kinds map[string]backend.Type) (switchover.Definition, error) {
	kind := kinds[def.Current.Type]
	switch {
	case def.Next != nil:
		return def, fmt.Errorf("%w: the network is being switched: keys are rotated after that", ErrSwitch)
	case kind.Rotate == nil:
		return def, fmt.Errorf("%w: backend %q has no keys", ErrSwitch, def.Current.Type)
	}
	if _, err := kind.Rotate(def.Current.Options); err != nil {
		return def, fmt.Errorf("%w: %w", ErrSwitch, err)
	}
	return def.ToNewKeys(), nil
}

// checkNewPort returns an ErrSwitch if a network other than the named one needs the port.
func checkNewPort(name string, port backend.Port, others []registry.Network, kinds map[string]backend.Type) error {
	for _, o := range others {
		theirs := carriage.Of(o.Carriage()).Ports(kinds)
		if i := slices.IndexFunc(theirs, port.Collides); i >= 0 && o.Name != name {
			return fmt.Errorf("%w: new keys need %s: choose another in the backend's options", ErrSwitch,
				port.Against(theirs[i], o.Name))
		}
	}
	return nil
}

// Progress returns how far the hosts with a lease have switched network n to another backend.
func Progress(n registry.Network, leases []registry.Lease, kinds map[string]backend.Type) api.NetworkSwitch {
	out := api.NetworkSwitch{From: n.Backend.Type, Hosts: []api.HostChange{}, ModifyIndex: n.ModifyIndex}
	def := carriage.Of(n.Carriage())
	if def.Next == nil {
		return out
	}
	out.To, out.Direction = def.Target().Type, api.SwitchForward
	switch def.Direction {
	case switchover.Stopped:
		out.Direction = api.SwitchStopped
	case switchover.Back:
		out.From, out.Direction = def.Next.Type, api.SwitchBack
	}
	forward := def
	if def.Direction == switchover.Stopped {
		forward.Direction = switchover.Forward
	}
	for _, l := range leases {
		out.Hosts = append(out.Hosts, api.HostChange{Node: l.Node, Subnet: l.Subnet(), Held: l.Held(),
			What: switching(l, n, n, kinds)})
		if forward.IsMoved(l.Backend.Options()) {
			out.Moved++
		}
	}
	return out
}
