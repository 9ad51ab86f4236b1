package definition

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend/switchover"
)

// Gradual returns the change with which a new backend, or new options on which both ends of a path must agree, replace
// the old ones without packet loss: the network is switched peer by peer; see package switchover. New is the definition
// that an operator wants in the end. During a switch, it must describe one of the two backends, apart from options that
// change live: the next one, or the current one, which reverses the switch. During a rotation of keys it describes
// both, and the direction stays. Both backends get such options if they have the same type. Hosts whose lease has
// lapsed are switched like other hosts, because their packets may flow without an agent. So are hosts with unreadable
// records.
//
// If the network cannot be switched to New, Gradual returns the change that Forced makes, and its Plan refuses it: see
// NeedsForce. A network that no host carries, because its definition contradicts itself, changes at once as with
// Forced, also during a switch.
func (c Change) Gradual() Change {
	types := typeSet(c.Backends)
	old, wanted := carriage.Of(c.Old.Carriage()), types.spec(c.New.Backend)
	if !c.canSwitch() {
		return c
	}
	next, isCurrent, isNext := types.redirect(old, wanted)
	switch {
	case !c.isCarried():
		return c.Forced(time.Time{})
	case old.IsRotation() && isCurrent != isNext:
		return c.refuse(fmt.Sprintf("keys are being rotated between two ports, and another backend.%s changes one of them",
			strings.Join(types.changedPorts(old.Current, wanted), " or backend.")),
			"leave it as it is until the rotation has ended, which `leno network switch` shows")
	case isCurrent, isNext:
	case old.Next != nil:
		return c.refuse(fmt.Sprintf("the network is being switched from %s to %s, and backend.type or an option is that of "+
			"neither", old.Current.Type, old.Next.Type),
			fmt.Sprintf("let the switch end, or reverse it: apply the definition that the network had with %s",
				old.Current.Type))
	case len(c.Leases) == 0 && len(c.BadRecords) == 0 && !c.Lost:
		next.Current.Type, next.Current.Options, next.Current.Rotated = wanted.Type, wanted.Options, false
	default:
		next = old.To(wanted.Type, wanted.Options)
		if port := next.Next.Port(types); port.Collides(old.Current.Port(types)) {
			return c.refuse(fmt.Sprintf("hosts have both backends during the switch, and both need %s", port),
				"choose another port in the new backend's options")
		}
	}
	return c.with(next)
}

// redirect returns a definition with the direction to the backend that wanted describes, and with its options that
// change live. It reports which of the two backends wanted describes.
func (t typeSet) redirect(def switchover.Definition,
	wanted switchover.Spec) (out switchover.Definition, isCurrent, isNext bool) {
	current, isCurrent := t.retuned(def.Current, wanted)
	if def.Next == nil {
		def.Current = current
		return def, isCurrent, false
	}
	next, isNext := t.retuned(*def.Next, wanted)
	switch {
	case isNext && !isCurrent:
		def.Direction = switchover.Forward
		if !next.Equal(*def.Next) {
			current = t.withLive(current, wanted)
		}
	case isCurrent && !isNext:
		def.Direction = switchover.Back
		if !current.Equal(def.Current) {
			next = t.withLive(next, wanted)
		}
	}
	def.Current, def.Next = current, &next
	return def, isCurrent, isNext
}

// canSwitch reports whether the change replaces a definition, and networks can be switched between the backends of
// both.
func (c Change) canSwitch() bool {
	return c.exists() && switchover.CanSwitch(c.Old.Backend.Type) && switchover.CanSwitch(c.New.Backend.Type)
}

// changedPorts returns the options that differ between the two and that a backend uses as its port, before or after a
// rotation of its keys.
func (t typeSet) changedPorts(spec, wanted switchover.Spec) []string {
	names := append(t.interrupting(spec.Type), t[spec.Type].SparePort)
	return parseOptions(t.effective(spec).Options).differing(parseOptions(wanted.Options), names)
}

// NeedsForce reports whether a change that Gradual has returned cannot be made gradually, but only as Forced makes it.
func (c Change) NeedsForce() bool { return c.obstacle != nil }

// refuse returns the change as Forced makes it, with a refusal.
func (c Change) refuse(reason, way string) Change {
	c = c.Forced(time.Time{})
	c.obstacle = []api.Refusal{{Reason: reason, Way: way + ", or force it when packets may stop", Force: true}}
	return c
}

// isCarried reports whether hosts carry the network as its old definition says. They do not if that contradicts itself.
func (c Change) isCarried() bool { return CheckEncryption(c.Old, c.Backends) == nil }

// with returns the change to the backends of def. It postpones the encryption that New requires to the end of a switch
// if one of the two backends does not encrypt, because packets go over both until then.
func (c Change) with(def switchover.Definition) Change {
	if next := def.Next; next != nil {
		if c.Old.Switch == nil {
			def.Current.Encryption = c.Old.Encryption // for a reversal
		}
		target := next
		if def.Direction == switchover.Back {
			target = &def.Current
		}
		target.Encryption = ""
		if !c.Backends[def.Current.Type].Encrypts || !c.Backends[next.Type].Encrypts {
			target.Encryption, c.New.Encryption = c.New.Encryption, ""
		}
	}
	if n, err := carriage.Set(c.New, def); err == nil {
		c.New = n
	}
	return c
}

// Forced returns the change as it takes effect at once, even if packets are lost. now is the present time. The network
// keeps the device, and with it the keys, of the backend that New describes if it has that backend already. A switch
// ends in any case.
func (c Change) Forced(now time.Time) Change {
	types := typeSet(c.Backends)
	old, wanted := carriage.Of(c.Old.Carriage()), types.spec(c.New.Backend)
	if !c.canSwitch() {
		return c
	}
	has := old.Backends()
	i := slices.IndexFunc(has, func(spec switchover.Spec) bool {
		_, ok := types.retuned(spec, wanted)
		return ok
	})
	if i < 0 {
		i = slices.IndexFunc(has, func(spec switchover.Spec) bool { return spec.Type == wanted.Type })
	}
	current, isSame := types.retuned(has[max(i, 0)], wanted)
	if !isSame {
		current.Type, current.Options, current.Rotated = wanted.Type, wanted.Options, false
	}
	next := switchover.Definition{Current: current, Since: now.UTC().Truncate(time.Second)}
	switch {
	case i < 0:
		next.Current.Epoch += 2 // with the same device
	case current.Epoch == old.Current.Epoch:
		next.Since = old.Since
	}
	next.Current.Encryption = ""
	return c.with(next)
}
