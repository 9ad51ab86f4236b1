package backend

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// An OptionTarget is where DecodeOptions puts the value of an option.
type OptionTarget struct {
	Value any    // pointer to a variable that has the default
	Is    string // what the option must be, for users: "a whole number"
}

// DecodeOptions decodes a network's options for a backend, a JSON object or nothing, into their targets by name. Each
// unknown option and each value of the wrong type is an *OptionError, and its target keeps the default. The errors are
// returned in the order of the names.
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
		} else if string(members[name]) == "null" || json.Unmarshal(members[name], target.Value) != nil {
			errs = append(errs, &OptionError{Option: name, Reason: fmt.Sprintf("must be %s, is %s", target.Is, members[name])})
		}
	}
	return errs
}
