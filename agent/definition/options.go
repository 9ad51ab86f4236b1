package definition

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/transition"
	"github.com/lenonet/leno/registry"
)

// An optionSet holds a backend's options by name.
type optionSet map[string]json.RawMessage

func parseOptions(options json.RawMessage) (out optionSet) {
	if json.Unmarshal(options, &out) != nil {
		return nil
	}
	return out
}

// agrees reports whether both sets have the same values of the named options.
func (o optionSet) agrees(other optionSet, names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return !bytes.Equal(o[name], other[name]) })
}

// rotatedOptions returns the names of the options that a rotation of keys changes, for example listen_port and
// rotation_port.
func rotatedOptions(kind backend.Type) []string {
	if kind.Rotate == nil {
		return nil
	}
	before, err := kind.Normalize(nil)
	if err != nil {
		return nil
	}
	after, err := kind.Rotate(before)
	if err != nil {
		return nil
	}
	from, to := parseOptions(before), parseOptions(after)
	return slices.DeleteFunc(slices.Sorted(maps.Keys(to)), func(name string) bool { return bytes.Equal(from[name], to[name]) })
}

// rotatedAs returns options as they are once keys were rotated as often as for has, both with all defaults, and reports
// whether they have the same ports in any order. The other options may differ.
func rotatedAs(kind backend.Type, options, has json.RawMessage) (json.RawMessage, bool) {
	names, stored := rotatedOptions(kind), parseOptions(has)
	rotated := options
	for range 3 { // the first rotation may spell out a default
		if parseOptions(rotated).agrees(stored, names) {
			return rotated, true
		}
		if kind.Rotate == nil {
			break
		}
		var err error
		if rotated, err = kind.Rotate(rotated); err != nil {
			break // these keys are not leno's to rotate
		}
	}
	return options, false
}

// unrotated returns backend b with the ports of given if they are the same in another order, because keys were rotated.
func unrotated(kinds map[string]backend.Type, b, given registry.Backend) registry.Backend {
	kind := kinds[b.Type]
	_, same := rotatedAs(kind, given.Options(), b.Options())
	if !same || kind.Rotate == nil || b.Type != given.Type {
		return b
	}
	options, ports := parseOptions(b.Options()), parseOptions(given.Options())
	for _, name := range rotatedOptions(kind) {
		options[name] = ports[name]
	}
	all, err := json.Marshal(options)
	if err != nil {
		return b
	}
	out, err := registry.NewBackend(b.Type, all)
	if err != nil {
		return b
	}
	return out
}

// retuned returns spec with the options of wanted, and reports whether they differ only in some that change live. The
// spec keeps its ports if they are those of wanted, no matter how often keys were rotated.
func (c Change) retuned(spec, wanted transition.Spec) (transition.Spec, bool) {
	if spec.Type != wanted.Type {
		return spec, false
	}
	kind, has := c.Backends[spec.Type], c.normal(spec)
	options, _ := rotatedAs(kind, wanted.Options, has)
	from, to := parseOptions(has), parseOptions(options)
	if !from.agrees(to, slices.Collect(maps.Keys(kind.Interrupts))) {
		return spec, false
	}
	if !maps.EqualFunc(from, to, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
		spec.Options = options
	}
	return spec, true
}

// withLive returns spec with the options of wanted that change live, except its ports, if both have the same type. An
// option that is invalid together with the others of spec stays as it is, such as rotate_keys with an absolute
// key_file.
func (c Change) withLive(spec, wanted transition.Spec) transition.Spec {
	if spec.Type != wanted.Type {
		return spec
	}
	kind := c.Backends[spec.Type]
	ports, options, to := rotatedOptions(kind), parseOptions(c.normal(spec)), parseOptions(wanted.Options)
	for _, name := range slices.Sorted(maps.Keys(to)) {
		if _, stops := kind.Interrupts[name]; stops || slices.Contains(ports, name) || bytes.Equal(options[name], to[name]) {
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
