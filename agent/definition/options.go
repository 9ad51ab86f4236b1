package definition

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"

	"github.com/lenonet/leno/backend/switchover"
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

// running returns the options with which a backend runs, with all defaults, or those of the definition if its keys cannot
// be rotated.
func (c Change) running(spec switchover.Spec) optionSet {
	spec.Options = c.normal(spec)
	options, err := spec.Running(c.Backends)
	if err != nil {
		return parseOptions(spec.Options)
	}
	return parseOptions(options)
}

// retuned returns spec with the options of wanted, and reports whether they differ only in some that change live. Which of
// its ports spec uses depends on how often its keys were rotated.
func (c Change) retuned(spec, wanted switchover.Spec) (switchover.Spec, bool) {
	if spec.Type != wanted.Type {
		return spec, false
	}
	changed := spec
	changed.Options = wanted.Options
	if !c.running(spec).agrees(c.running(changed), slices.Collect(maps.Keys(c.Backends[spec.Type].Interrupts))) {
		return spec, false
	}
	from, to := parseOptions(c.normal(spec)), parseOptions(wanted.Options)
	if maps.EqualFunc(from, to, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
		return spec, true
	}
	return changed, true
}

// withLive returns spec with the options of wanted that change live, except its spare port, if both have the same type. An
// option that is invalid together with the others of spec stays as it is, such as rotate_keys with an absolute
// key_file.
func (c Change) withLive(spec, wanted switchover.Spec) switchover.Spec {
	if spec.Type != wanted.Type {
		return spec
	}
	kind := c.Backends[spec.Type]
	options, to := parseOptions(c.normal(spec)), parseOptions(wanted.Options)
	for _, name := range slices.Sorted(maps.Keys(to)) {
		if _, stops := kind.Interrupts[name]; stops || name == kind.SparePort || bytes.Equal(options[name], to[name]) {
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
