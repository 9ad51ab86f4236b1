package definition

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/switchover"
	"github.com/lenonet/leno/registry"
)

// A typeSet holds the backends that this leno has, by type.
type typeSet map[string]backend.Type

// An optionSet holds a backend's options by name.
type optionSet map[string]json.RawMessage

func parseOptions(options json.RawMessage) (out optionSet) {
	if json.Unmarshal(options, &out) != nil {
		return nil
	}
	return out
}

// differing returns those of the named options whose values differ between the sets.
func (o optionSet) differing(other optionSet, names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return bytes.Equal(o[name], other[name]) })
}

// interrupting returns the options of a backend whose change interrupts traffic, sorted.
func (t typeSet) interrupting(kind string) []string {
	return slices.Sorted(maps.Keys(t[kind].Interrupts))
}

// spec returns the backend with its effective options as hosts run it in a network that was never switched.
func (t typeSet) spec(b registry.Backend) switchover.Spec {
	return t.effective(switchover.Spec{Type: b.Type, Options: b.Options()})
}

// effective returns a backend with its effective options, or unchanged if this version of leno does not know it.
func (t typeSet) effective(spec switchover.Spec) switchover.Spec {
	if kind, ok := t[spec.Type]; ok {
		if options, err := kind.Normalize(spec.Options); err == nil {
			spec.Options = options
		}
	}
	return spec
}

// running returns the options with which a backend runs, with all defaults.
func (t typeSet) running(spec switchover.Spec) optionSet {
	return parseOptions(t.effective(spec).Running(t))
}

// retuned returns spec with the options of wanted, and reports whether they differ only in some that change live. Which
// of its ports spec uses depends on how often its keys were rotated.
func (t typeSet) retuned(spec, wanted switchover.Spec) (switchover.Spec, bool) {
	changed := spec
	changed.Options = wanted.Options
	if spec.Type != wanted.Type || len(t.running(spec).differing(t.running(changed), t.interrupting(spec.Type))) > 0 {
		return spec, false
	}
	from, to := parseOptions(t.effective(spec).Options), parseOptions(wanted.Options)
	if maps.EqualFunc(from, to, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
		return spec, true
	}
	return changed, true
}

// isSame reports whether two backends use the same device and differ at most in options that change live.
func (t typeSet) isSame(a, b switchover.Spec) bool {
	_, ok := t.retuned(a, t.effective(b))
	return ok && a.IsOnDeviceB() == b.IsOnDeviceB()
}

// withLive returns spec with the options of wanted that change live, except its spare port, if both have the same type.
// An option that is invalid together with the others of spec stays as it is, such as rotate_keys with an absolute
// key_file.
func (t typeSet) withLive(spec, wanted switchover.Spec) switchover.Spec {
	if spec.Type != wanted.Type {
		return spec
	}
	kind := t[spec.Type]
	options, to := parseOptions(t.effective(spec).Options), parseOptions(wanted.Options)
	for _, name := range options.differing(to, slices.Sorted(maps.Keys(to))) {
		if _, stops := kind.Interrupts[name]; stops || name == kind.SparePort {
			continue
		}
		changed := maps.Clone(options)
		changed[name] = to[name]
		all, err := json.Marshal(changed)
		if err != nil {
			continue
		}
		if effective, err := kind.Normalize(all); err == nil {
			options, spec.Options = changed, effective
		}
	}
	return spec
}

// ports returns the ports that the network's backends need, and the one that its next keys will need if they are
// rotated periodically.
func (t typeSet) ports(n registry.Network) []backend.Port {
	def := carriage.Of(n.Carriage())
	out := def.Ports(t)
	if t[n.Backend.Type].Rotates(def.Current.Options) == 0 {
		return out
	}
	if next, err := rotated(def, t); err == nil {
		out = append(out, next.Next.Port(t))
	}
	return out
}
