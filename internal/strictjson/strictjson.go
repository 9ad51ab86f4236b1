// Package strictjson decodes JSON that other programs send, and says in their words what is wrong with it.
package strictjson

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// Decode decodes a JSON object into v, which points to a struct. It accepts no unknown members and nothing after the
// object. Errors name the first member that is wrong, and no types of Go.
func Decode(data []byte, v any) error {
	text := json.NewDecoder(bytes.NewReader(data))
	var object json.RawMessage
	switch err := text.Decode(&object); {
	case errors.Is(err, io.EOF):
		return errors.New("it is empty, want a JSON object")
	case err != nil:
		return err
	}
	if _, err := text.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more text follows the JSON object")
	}
	members := json.NewDecoder(bytes.NewReader(object))
	if start, err := members.Token(); err != nil || start != json.Delim('{') {
		return describe(json.Unmarshal(object, v))
	}
	for members.More() {
		name, err := members.Token()
		if err != nil {
			return err
		}
		// Each member is decoded alone, because errors of encoding/json do not say which one they are about.
		var value json.RawMessage
		if err := members.Decode(&value); err != nil {
			return err
		}
		alone, err := json.Marshal(map[string]json.RawMessage{fmt.Sprint(name): value})
		if err != nil {
			return err
		}
		decoder := json.NewDecoder(bytes.NewReader(alone))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(v); err != nil {
			return fmt.Errorf("%s: %w", name, describe(err))
		}
	}
	return nil
}

// describe returns an error of encoding/json in the words of JSON.
func describe(err error) error {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return err
	}
	want := typeName(wrong.Type)
	number, isNumber := strings.CutPrefix(wrong.Value, "number ")
	if isNumber && (want == "number" || !strings.ContainsAny(number, ".eE")) {
		return fmt.Errorf("%s is out of range", number)
	}
	return fmt.Errorf("it is of type %s, want %s", wrong.Value, want)
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
