package definition

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/switchover"
	"github.com/lenonet/leno/registry"
)

// Gradual returns the change with which a new backend, or new options on which both ends of a path must agree, replace
// the old ones without packet loss: the network is switched peer by peer; see package switchover. New is the definition
// that an operator wants in the end. During a switch, it must describe one of the two backends, apart from options that
// change live: the next one, or the current one, which reverses the switch. During a rotation of keys it describes both,
// and the direction stays. Both backends get such options if they have the same type. Hosts whose lease has lapsed are
// switched like other hosts, because their packets may flow without an agent. So are hosts with unreadable records.
//
// If the network cannot be switched to New, Gradual returns the change that Forced makes, and its Plan refuses it: see
// NeedsForce. A network that no host carries, because its definition contradicts itself, changes at once as with
// Forced, also during a switch.
func (c Change) Gradual() Change {
	old := carriage.Of(c.Old.Carriage())
	wanted := switchover.Spec{Type: c.New.Backend.Type, Options: c.effective(c.New.Backend)}
	if !c.exists() || !switchover.CanSwitch(old.Current.Type) || !switchover.CanSwitch(wanted.Type) {
		return c
	}
	current, isCurrent := c.retuned(old.Current, wanted)
	next := old
	switch {
	case !c.isCarried():
		return c.Forced(time.Time{})
	case c.changesRotation(old, wanted):
		return c.refuse(fmt.Sprintf("keys are being rotated between two ports, and another backend.%s changes one of them",
			strings.Join(c.changedPorts(old.Current, wanted), " or backend.")),
			"leave it as it is until the rotation has ended, which `leno network switch` shows")
	case old.Next != nil:
		var ok bool
		if next, ok = c.redirected(old, wanted); !ok {
			return c.refuse(fmt.Sprintf("the network is being switched from %s to %s, and backend.type or an option is that of neither",
				old.Current.Type, old.Next.Type),
				fmt.Sprintf("let the switch end, or reverse it: apply the definition that the network had with %s", old.Current.Type))
		}
	case isCurrent:
		next.Current = current
	case len(c.Leases) == 0 && len(c.BadRecords) == 0 && !c.Lost:
		next.Current.Type, next.Current.Options, next.Current.Rotated = wanted.Type, wanted.Options, false
	default:
		next = old.To(wanted.Type, wanted.Options)
		if port := next.Next.Port(c.Backends); port.Collides(old.Current.Port(c.Backends)) {
			return c.refuse(fmt.Sprintf("hosts have both backends during the switch, and both need %s", port),
				"choose another port in the new backend's options")
		}
	}
	return c.requireLater(&next, old.Next == nil).with(next)
}

// redirected returns the definition old of a network that is being switched, with the direction to the backend that
// wanted describes, and with its options that change live. It returns false if wanted describes neither backend.
func (c Change) redirected(old switchover.Definition, wanted switchover.Spec) (switchover.Definition, bool) {
	current, isCurrent := c.retuned(old.Current, wanted)
	next, isNext := c.retuned(*old.Next, wanted)
	switch {
	case isNext && isCurrent:
		old.Current, old.Next = current, &next // the direction stays
	case isNext:
		old.Direction = switchover.Forward
		if !next.Equal(*old.Next) {
			old.Current, old.Next = c.withLive(old.Current, wanted), &next
		}
	case isCurrent:
		old.Direction = switchover.Back
		if !current.Equal(old.Current) {
			next = c.withLive(*old.Next, wanted)
			old.Current, old.Next = current, &next
		}
	}
	return old, isNext || isCurrent
}

// changesRotation reports whether keys are being rotated, and wanted has another port for the keys after the present
// ones. One of the two backends needs that port until the rotation has ended, and wanted does not say which.
func (c Change) changesRotation(def switchover.Definition, wanted switchover.Spec) bool {
	if !def.IsRotation() {
		return false
	}
	_, isCurrent := c.retuned(def.Current, wanted)
	_, isNext := c.retuned(*def.Next, wanted)
	return isCurrent != isNext
}

// changedPorts returns the options that differ between the two and that a backend uses as its port, before or after a
// rotation of its keys.
func (c Change) changedPorts(spec, wanted switchover.Spec) []string {
	kind, from, to := c.Backends[spec.Type], parseOptions(c.normal(spec)), parseOptions(wanted.Options)
	names := append(slices.Sorted(maps.Keys(kind.Interrupts)), kind.SparePort)
	return slices.DeleteFunc(names, func(name string) bool { return bytes.Equal(from[name], to[name]) })
}

// NeedsForce reports whether a change that Gradual has returned cannot be made gradually, but only as Forced makes it.
func (c Change) NeedsForce() bool { return c.obstacle != nil }

// refuse returns the change as Forced makes it, with a refusal.
func (c Change) refuse(reason, way string) Change {
	c = c.Forced(time.Time{})
	c.obstacle = &api.Refusal{Reason: reason, Way: way + ", or force it when packets may stop", Force: true}
	return c
}

// isCarried reports whether hosts carry the network as its old definition says. They do not if that contradicts itself.
func (c Change) isCarried() bool { return CheckEncryption(c.Old, c.Backends) == nil }

// requireLater postpones the encryption that New requires to the end of the switch if one of the two backends does not
// encrypt, because packets go over both until then. begins is true if the switch begins with this change.
func (c Change) requireLater(def *switchover.Definition, begins bool) Change {
	if def.Next == nil {
		return c
	}
	if begins {
		def.Current.Encryption = c.Old.Encryption // for a reversal
	}
	target := def.Next
	if def.Direction == switchover.Back {
		target = &def.Current
	}
	target.Encryption = ""
	if !c.Backends[def.Current.Type].Encrypts || !c.Backends[def.Next.Type].Encrypts {
		target.Encryption, c.New.Encryption = c.New.Encryption, ""
	}
	return c
}

// Forced returns the change as it takes effect at once, even if packets are lost. now is the present time. The network
// keeps the device, and with it the keys, of the backend that New describes if it has that backend already. A switch
// ends in any case.
func (c Change) Forced(now time.Time) Change {
	old := carriage.Of(c.Old.Carriage())
	wanted := switchover.Spec{Type: c.New.Backend.Type, Options: c.effective(c.New.Backend)}
	if !c.exists() || !switchover.CanSwitch(old.Current.Type) || !switchover.CanSwitch(wanted.Type) {
		return c
	}
	both := []switchover.Spec{old.Target()}
	switch {
	case old.Next != nil && old.Direction == switchover.Back:
		both = append(both, *old.Next)
	case old.Next != nil:
		both = append(both, old.Current)
	}
	i := slices.IndexFunc(both, func(spec switchover.Spec) bool {
		_, ok := c.retuned(spec, wanted)
		return ok
	})
	if i < 0 {
		i = slices.IndexFunc(both, func(spec switchover.Spec) bool { return spec.Type == wanted.Type })
	}
	next := switchover.Definition{Current: both[max(i, 0)], Since: now.UTC().Truncate(time.Second)}
	switch {
	case i < 0:
		next.Current.Epoch += 2 // with the same device
	case next.Current.Epoch == old.Current.Epoch:
		next.Since = old.Since
	}
	if retuned, ok := c.retuned(next.Current, wanted); ok {
		next.Current = retuned
	} else {
		next.Current.Type, next.Current.Options, next.Current.Rotated = wanted.Type, wanted.Options, false
	}
	next.Current.Encryption = ""
	return c.with(next)
}

func (c Change) with(def switchover.Definition) Change {
	if n, err := carriage.Set(c.New, def); err == nil {
		c.New = n
	}
	return c
}

// effective returns the options of a definition without a switch, with all defaults.
func (c Change) effective(b registry.Backend) json.RawMessage {
	return c.normal(switchover.Spec{Type: b.Type, Options: b.Options()})
}

// normal returns a backend's effective options, or its options unchanged if this version of leno does not know the
// backend.
func (c Change) normal(spec switchover.Spec) json.RawMessage {
	if kind, ok := c.Backends[spec.Type]; ok {
		if effective, err := kind.Normalize(spec.Options); err == nil {
			return effective
		}
	}
	return spec.Options
}

// redirects reports whether a switch begins, ends or changes its direction.
func (c Change) redirects() bool {
	old, now := c.Old.Switch, c.New.Switch
	return (old == nil) != (now == nil) || now != nil && old.Direction != now.Direction
}

// refusedSwitch returns the reason why the network cannot be switched to New, if there is one.
func (c Change) refusedSwitch() []api.Refusal {
	if c.obstacle == nil {
		return nil
	}
	return []api.Refusal{*c.obstacle}
}

// switching describes what a switch does to a host, and how far the host has moved.
func (c Change) switching(l registry.Lease) []string {
	def := carriage.Of(c.New.Carriage())
	if def.Next == nil {
		return nil
	}
	target := def.Target()
	if l.Foreign && !def.IsMoved(l.Backend.Options()) {
		return []string{fmt.Sprintf("stays with %s: it %s", l.Backend.Type, cannotFollow)}
	}
	if c.Old.Switch == nil {
		out := []string{fmt.Sprintf("switches from %s to %s: it has both until all hosts send over %[2]s", c.name(def.Current), c.name(target))}
		if !l.Held() {
			out = append(out, "is away: the switch waits until it is back, or until its lease expires")
		}
		if mtu := c.mtuAfter(l, def); mtu != l.MTU {
			out = append(out, fmt.Sprintf("its containers' MTU becomes %d instead of %d: those that run keep theirs, and the host tells them what fits", mtu, l.MTU))
		}
		return out
	}
	ready, fault := target.Ready(l.Backend.Type, l.Backend.Options())
	switch {
	case def.IsMoved(l.Backend.Options()):
		return []string{"sends to all hosts over " + c.name(target)}
	case ready:
		return []string{"receives over " + c.name(target)}
	case fault != "":
		return []string{fmt.Sprintf("cannot use %s: %s", c.name(target), fault)}
	case !l.Held():
		return []string{fmt.Sprintf("has not prepared %s: it is away", c.name(target))}
	}
	return []string{fmt.Sprintf("has not prepared %s yet; an agent older than this one cannot", c.name(target))}
}

// name returns the type of a backend, with its port where both backends of the switch have the same type.
func (c Change) name(spec switchover.Spec) string {
	def := carriage.Of(c.New.Carriage())
	if def.Next == nil || def.Current.Type != def.Next.Type {
		return spec.Type
	}
	if port := spec.Port(c.Backends); port.Number != 0 {
		return fmt.Sprintf("%s (%s)", spec.Type, port)
	}
	return spec.Type
}

// mtuAfter returns the overlay's MTU on a host during the switch, which is the smaller MTU of the two backends.
func (c Change) mtuAfter(l registry.Lease, def switchover.Definition) int {
	mtu := min(l.MTU, c.mtuOver(l, def.Next.Type))
	if option := backend.MTUOption(def.Next.Options); option != 0 {
		mtu = min(mtu, option)
	}
	return mtu
}

// mtuOver returns the overlay's MTU on a host over a backend that the network does not have yet, derived from the size
// of the backends' headers alone, regardless of its option mtu. Of a network that is being switched, the lease has the smaller MTU of two backends.
func (c Change) mtuOver(l registry.Lease, kind string) int {
	if len(l.PublicIPs) == 0 {
		return l.MTU
	}
	taken := func(kind string) int {
		if f := c.Backends[kind].Overhead; f != nil {
			return f(l.PublicIPs[0])
		}
		return 0
	}
	most := 0
	for _, has := range kindsOf(c.Old) {
		most = max(most, taken(has))
	}
	return l.MTU + most - taken(kind)
}
