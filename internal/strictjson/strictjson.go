// Package strictjson decodes JSON that other programs send, and says in their words what is wrong with it.
package strictjson

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
)

// Decode decodes a JSON object into v, which points to a struct. It accepts no unknown members and nothing after the
// object. Errors name the member that is wrong, and no types of Go.
func Decode(data []byte, v any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(v)
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("it is empty, want a JSON object")
	case err != nil:
		return describe(err, data, v)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more text follows the JSON object")
	}
	return nil
}

// describe returns an error of encoding/json in the words of JSON, with the member that it is about.
func describe(err error, data []byte, v any) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		err = fmt.Errorf("it is of type %s, want %s", wrong.Value, typeName(wrong.Type))
	}
	if name := wrongMember(data, v); name != "" {
		return fmt.Errorf("%s: %w", name, err)
	}
	return err
}

// wrongMember returns the first member of an object, in the order of their names, that cannot be decoded into v alone;
// "" if each can.
func wrongMember(data []byte, v any) string {
	var members map[string]json.RawMessage
	if json.Unmarshal(data, &members) != nil {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		alone, err := json.Marshal(map[string]json.RawMessage{name: members[name]})
		if err == nil && json.Unmarshal(alone, reflect.New(reflect.TypeOf(v).Elem()).Interface()) != nil {
			return name
		}
	}
	return ""
}

// typeName returns the type of JSON that a type of Go is decoded from, as JSON Schema names it.
func typeName(t reflect.Type) string {
	if reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return "string"
	}
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Slice, reflect.Array:
		return "array"
	case reflect.Float32, reflect.Float64:
		return "number"
	case reflect.Struct, reflect.Map:
		return "object"
	}
	return "integer"
}
