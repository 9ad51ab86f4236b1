package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/lenonet/leno/agent"
)

// schemaID identifies the schema.
const schemaID = "https://github.com/lenonet/leno/blob/main/website/public/schema/leno.schema.json"

// durationPattern matches what time.ParseDuration accepts, without negative values.
const durationPattern = `^\+?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`

type object = map[string]any

// schema returns a JSON Schema (2020-12) of configuration files in JSON.
func (s *source) schema() (string, error) {
	root := s.blockSchema("")
	network, _ := root["properties"].(object)["network"].(object)
	backend, err := s.backendSchema()
	if err != nil {
		return "", err
	}
	network["properties"].(object)["backend"] = backend
	root["properties"].(object)["network"] = networksSchema(network)
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["$id"] = schemaID
	root["title"] = "Configuration of a leno agent"
	// An agent has one store.
	root["not"] = object{"anyOf": []any{
		object{"required": []string{"consul", "etcd"}},
		object{"required": []string{"consul", "kubernetes"}},
		object{"required": []string{"etcd", "kubernetes"}},
	}}
	out, err := json.MarshalIndent(root, "", "  ")
	return string(out) + "\n", err
}

// blockSchema returns the schema of a block's body, or of a file.
func (s *source) blockSchema(path string) object {
	properties := object{"//": object{"description": "A comment."}} // HCL's JSON syntax ignores it
	out := object{"type": "object", "properties": properties, "additionalProperties": false}
	for _, o := range s.options {
		switch {
		case o.Name == path && o.text != "":
			out["description"] = o.text
		case o.block() != path:
		case o.IsBlock():
			properties[o.last()] = s.blockSchema(o.Name)
		default:
			properties[o.last()] = optionSchema(o)
		}
	}
	if strings.HasPrefix(path, "network.*.ipv") {
		out["required"] = []string{"prefix"}
	}
	return out
}

// optionSchema returns the schema of an option's value.
func optionSchema(o setting) object {
	out := kindSchema(o.Kind)
	if o.Name == "log_level" {
		out["anyOf"] = []any{object{"enum": o.Choices}, object{"pattern": inAnyCase(o.Choices)}}
	} else if o.Choices != nil {
		out["enum"] = o.Choices
	}
	if text := o.withRestart(); text != "" {
		out["description"] = text
	}
	if o.Secret {
		out["writeOnly"] = true
	}
	var value any
	if json.Unmarshal([]byte(cmp.Or(o.Example, o.Default)), &value) != nil {
		return out
	}
	// The default of subnet_file differs from network to network.
	if o.Example != "" || strings.Contains(o.Default, "*.") {
		out["examples"] = []any{value}
	} else {
		out["default"] = value
	}
	return out
}

// inAnyCase returns a pattern that matches the words in upper and lower case.
func inAnyCase(words []string) string {
	pattern := ""
	for _, letter := range strings.Join(words, "|") {
		if letter != '|' {
			pattern += fmt.Sprintf("[%c%c]", letter, unicode.ToLower(letter))
		} else {
			pattern += "|"
		}
	}
	return "^(" + pattern + ")$"
}

// kindSchema returns the schema of values of a kind.
func kindSchema(kind string) object {
	switch kind {
	case "duration":
		return object{"type": "string", "pattern": durationPattern}
	case "true or false":
		return object{"type": "boolean"}
	case "number":
		return object{"type": "integer", "minimum": 0}
	case "list of text":
		return object{"type": "array", "items": object{"type": "string"}}
	case "map of text":
		return object{"type": "object", "additionalProperties": object{"type": "string"}}
	case "map of ports":
		port := object{"type": "integer", "minimum": 1, "maximum": 65535}
		return object{"type": "object", "additionalProperties": port}
	}
	return object{"type": "string"}
}

// networksSchema returns the schema of all network blocks: an object by name, or a list of such objects.
func networksSchema(network object) object {
	network["dependentSchemas"] = object{
		"backend": object{"anyOf": []any{object{"required": []string{"ipv4"}}, object{"required": []string{"ipv6"}}}},
	}
	byName := object{
		"type":                 "object",
		"properties":           object{"//": object{"description": "A comment."}},
		"additionalProperties": network,
	}
	return object{
		"description": network["description"],
		"anyOf":       []any{byName, object{"type": "array", "items": byName}},
	}
}

// backendChoices returns the values of a backend's option, which the error about another value lists; nil if they are
// no fixed set.
func backendChoices(normalize func(json.RawMessage) (json.RawMessage, error), option string) (choices []string) {
	_, err := normalize(json.RawMessage(fmt.Sprintf(`{%q: "no such value"}`, option)))
	if err == nil {
		return nil
	}
	list := regexp.MustCompile(`must be (("\w*"(, | or )?)+)`).FindString(err.Error())
	for _, quoted := range regexp.MustCompile(`"(\w*)"`).FindAllStringSubmatch(list, -1) {
		choices = append(choices, quoted[1])
	}
	return choices
}

// backendSchema returns the schema of a backend block: an object with the type as its only member.
func (s *source) backendSchema() (object, error) {
	types := object{}
	for name, kind := range agent.Backends() {
		properties := object{"//": object{"description": "A comment."}}
		for _, o := range backendOptions(kind.Normalize) {
			var value any
			if err := json.Unmarshal([]byte(o.standard), &value); err != nil {
				return nil, err
			}
			kinds := map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Float64: "integer"}
			of, ok := kinds[reflect.TypeOf(value).Kind()]
			if !ok {
				return nil, fmt.Errorf("backend %s: option %s is %v", name, o.name, value)
			}
			property := object{"type": of, "default": value}
			if choices := backendChoices(kind.Normalize, o.name); of == "string" && choices != nil {
				property["enum"] = choices
			}
			if text := s.backendTexts[name][o.name]; text != "" {
				property["description"] = text
			}
			properties[o.name] = property
		}
		types[name] = object{"type": "object", "properties": properties, "additionalProperties": false}
	}
	i := slices.IndexFunc(s.options, func(o setting) bool { return o.Name == "network.*.backend" })
	return object{
		"type": "object", "description": s.options[i].text, "properties": types, "additionalProperties": false,
		"minProperties": 1, "maxProperties": 1,
	}, nil
}
