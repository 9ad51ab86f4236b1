package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
)

// SchemaID identifies the schema.
const SchemaID = "https://github.com/lenonet/leno/blob/main/website/public/schema/leno.schema.json"

// durationPattern matches what time.ParseDuration accepts, without negative values.
const durationPattern = `^\+?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`

// choices returns the settings that have a fixed set of values.
func choices() map[string][]string {
	return map[string][]string{
		"log_level":     {"TRACE", "DEBUG", "INFO", "WARN", "ERROR"},
		"lease.on_lost": {OnLostRenumber, OnLostExit},
		"firewall.type": {FirewallAuto, FirewallIPTables, FirewallNFTables},

		"network.*.encryption": {"", EncryptionRequired},
	}
}

// Schema returns a JSON Schema (2020-12) of configuration files in JSON, from the options that the loader knows. The
// reference describes the options. Backends maps the type of each backend to its effective options by default, as
// Backend.Options has them.
func Schema(reference []Reference, backends map[string]json.RawMessage) ([]byte, error) {
	s := schema{settings: map[string]settingType{}, reference: map[string]Reference{}, backends: backends}
	for _, r := range reference {
		s.reference[r.Name] = r
	}
	for _, setting := range Settings() {
		of := reflect.TypeFor[Config]()
		if strings.HasPrefix(setting.Name, "network.*.") {
			of = reflect.TypeFor[Network]()
		}
		s.settings[setting.Name] = settingType{setting, of.FieldByIndex(setting.index).Type}
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		shape := reflect.TypeFor[poolShape]()
		for i := range shape.NumField() {
			if field, ok := reflect.TypeFor[Pool]().FieldByName(shape.Field(i).Name); ok {
				name := "network.*." + family + "." + hclName(shape.Field(i))
				s.settings[name] = settingType{Setting{Name: name}, field.Type}
			}
		}
	}
	root, err := s.block("", reflect.TypeFor[fileShape]())
	if err != nil {
		return nil, err
	}
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["$id"] = SchemaID
	root["title"] = "Configuration of a leno agent"
	// An agent has one store.
	root["not"] = object{"anyOf": []any{
		object{"required": []string{"consul", "etcd"}},
		object{"required": []string{"consul", "kubernetes"}},
		object{"required": []string{"etcd", "kubernetes"}},
	}}
	out, err := json.MarshalIndent(root, "", "  ")
	return append(out, '\n'), err
}

type object = map[string]any

type settingType struct {
	Setting
	kind reflect.Type
}

type schema struct {
	settings  map[string]settingType
	reference map[string]Reference
	backends  map[string]json.RawMessage
}

// hclName returns the name of a shape's option or block in files, "" for another field.
func hclName(field reflect.StructField) string {
	name, kind, _ := strings.Cut(field.Tag.Get("hcl"), ",")
	if kind != "optional" && kind != "block" {
		return ""
	}
	return name
}

// block returns the schema of a block's body.
func (s *schema) block(path string, shape reflect.Type) (object, error) {
	properties := object{"//": object{"description": "A comment."}} // HCL's JSON syntax ignores it
	for i := range shape.NumField() {
		field := shape.Field(i)
		name := hclName(field)
		if name == "" {
			continue
		}
		at := strings.TrimPrefix(path+"."+name, ".")
		var (
			property object
			err      error
		)
		switch {
		case field.Type == reflect.TypeFor[*hcl.Attribute]():
			property, err = s.option(at)
		case field.Type == reflect.TypeFor[*backendShape]():
			property, err = s.backend(at)
		case field.Type == reflect.TypeFor[[]*networkShape]():
			property, err = s.networks(at)
		default:
			property, err = s.block(at, field.Type.Elem())
		}
		if err != nil {
			return nil, err
		}
		properties[name] = property
	}
	out := object{"type": "object", "properties": properties, "additionalProperties": false}
	if text := s.reference[path].Text; text != "" {
		out["description"] = text
	}
	if shape == reflect.TypeFor[poolShape]() {
		out["required"] = []string{"prefix"}
	}
	return out, nil
}

// option returns the schema of an option's value.
func (s *schema) option(name string) (object, error) {
	setting, ok := s.settings[name]
	if !ok {
		return nil, fmt.Errorf("no setting has the name %s", name)
	}
	out, err := valueSchema(setting.kind)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if values := choices()[name]; name == "log_level" {
		lower := make([]string, len(values))
		for i, v := range values {
			lower[i] = strings.ToLower(v)
		}
		out["enum"] = slices.Concat(values, lower)
	} else if values != nil {
		out["enum"] = values
	}
	r := s.reference[name]
	text := r.Text
	if setting.Restart {
		text += " To change it, restart the agent."
	}
	if text = strings.TrimSpace(text); text != "" {
		out["description"] = text
	}
	if setting.Secret {
		out["writeOnly"] = true
	}
	// A network's addresses and files have no default that is the same for every network, and a login has none at all.
	example := "examples"
	hasExample := strings.HasPrefix(name, "network.") || strings.HasPrefix(name, "consul.login.")
	if !hasExample || setting.kind == reflect.TypeFor[bool]() {
		example = "default"
	}
	var value any
	if json.Unmarshal([]byte(r.Value), &value) == nil {
		if example == "examples" {
			value = []any{value}
		}
		out[example] = value
	}
	return out, nil
}

// valueSchema returns the schema of values of a type.
func valueSchema(kind reflect.Type) (object, error) {
	switch kind {
	case reflect.TypeFor[time.Duration]():
		return object{"type": "string", "pattern": durationPattern}, nil
	case reflect.TypeFor[netip.Addr](), reflect.TypeFor[netip.Prefix]():
		return object{"type": "string"}, nil
	}
	switch kind.Kind() {
	case reflect.String:
		return object{"type": "string"}, nil
	case reflect.Bool:
		return object{"type": "boolean"}, nil
	case reflect.Int:
		return object{"type": "integer", "minimum": 0}, nil
	case reflect.Uint16:
		return object{"type": "integer", "minimum": 1, "maximum": 65535}, nil
	case reflect.Slice:
		items, err := valueSchema(kind.Elem())
		return object{"type": "array", "items": items}, err
	case reflect.Map:
		values, err := valueSchema(kind.Elem())
		return object{"type": "object", "additionalProperties": values}, err
	}
	return nil, fmt.Errorf("no JSON type for %s", kind)
}

// networks returns the schema of all network blocks: an object by name, or a list of such objects.
func (s *schema) networks(path string) (object, error) {
	network, err := s.block(path+".*", reflect.TypeFor[networkShape]())
	if err != nil {
		return nil, err
	}
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
	}, nil
}

// backend returns the schema of a backend block: an object with the type as its only member.
func (s *schema) backend(path string) (object, error) {
	types := object{}
	for _, name := range slices.Sorted(maps.Keys(s.backends)) {
		var defaults map[string]any
		if err := json.Unmarshal(s.backends[name], &defaults); err != nil {
			return nil, fmt.Errorf("the options of backend %s: %w", name, err)
		}
		properties := object{}
		for option, value := range defaults {
			kinds := map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Float64: "integer"}
			kind, ok := kinds[reflect.TypeOf(value).Kind()]
			if !ok {
				return nil, fmt.Errorf("backend %s: option %s is %v", name, option, value)
			}
			property := object{"type": kind, "default": value}
			if text := s.reference[path+"."+name+"."+option].Text; text != "" {
				property["description"] = text
			}
			properties[option] = property
		}
		types[name] = object{"type": "object", "properties": properties, "additionalProperties": false}
	}
	text := ""
	for name, r := range s.reference { // the example has one backend, whose comment is about all
		if r.Block && strings.HasPrefix(name, path+".") {
			text = r.Text
		}
	}
	return object{
		"type": "object", "description": text, "properties": types, "additionalProperties": false, "minProperties": 1, "maxProperties": 1,
	}, nil
}
