package backend

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/gocty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
)

// An OptionTarget is where DecodeOptions puts the value of an option.
type OptionTarget struct {
	Value any    // pointer to a variable that has the default
	Is    string // what the option must be, for users: "a whole number"
}

// DecodeOptions decodes a network's options for a backend, a JSON object or nothing, into their targets by name. Values
// are converted as HCL converts those of other options: "1" is a number, too. Each unknown option and each value of the
// wrong type is an *OptionError, and its target keeps the default. The errors are returned in the order of the names.
func DecodeOptions(backend string, raw json.RawMessage, targets map[string]OptionTarget) (errs []error) {
	members := map[string]json.RawMessage{}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &members); err != nil {
			return []error{fmt.Errorf("options of backend %q: %w", backend, err)}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		target, known := targets[name]
		if !known {
			errs = append(errs, &OptionError{Option: name, Reason: "unknown option of backend " + backend})
		} else if string(members[name]) == "null" || decodeOption(members[name], target.Value) != nil {
			errs = append(errs, &OptionError{Option: name, Reason: fmt.Sprintf("must be %s, is %s", target.Is, members[name])})
		}
	}
	return errs
}

// Normalizer returns the Normalize of a Type whose options decode reads, with their defaults.
func Normalizer[T any](decode func(json.RawMessage) (T, error)) func(json.RawMessage) (json.RawMessage, error) {
	return func(raw json.RawMessage) (json.RawMessage, error) {
		o, err := decode(raw)
		if err != nil {
			return nil, err
		}
		return json.Marshal(o)
	}
}

// decodeOption decodes a JSON value into the variable at target, a number, text or boolean, which stays as it is if
// there is an error. A value of the right type needs no conversion, which takes more than ten times as long.
func decodeOption(raw json.RawMessage, target any) error {
	if json.Unmarshal(raw, target) == nil {
		return nil
	}
	kind, err := ctyjson.ImpliedType(raw)
	if err != nil {
		return err
	}
	value, err := ctyjson.Unmarshal(raw, kind)
	if err != nil {
		return err
	}
	if kind, err = gocty.ImpliedType(target); err != nil {
		return err
	}
	if value, err = convert.Convert(value, kind); err != nil {
		return err
	}
	if raw, err = ctyjson.Marshal(value, kind); err != nil {
		return err
	}
	return json.Unmarshal(raw, target)
}
