package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command"
)

const jsonHead = `---
title: JSON output
description: The JSON that each command prints with -format=json, field by field.
---

With ` + "`-format=json`" + `, most commands print a [type of the HTTP API](../api/types.mdx), to which their pages link.
This page lists the fields of the others. ` + "`docker-opts`" + ` prints a daemon.json, whose fields are Docker's.

` + "`[]`" + ` stands for each element of a list, and a field with a ` + "`?`" + ` may be absent. All other fields are always present, and a
list is never null. Times are in RFC 3339 format. Releases may add fields, but do not rename or remove them.
`

// jsonPage returns the page of the fields of every command's JSON that is not a type of the API.
func (s *source) jsonPage() (string, error) {
	var page strings.Builder
	page.WriteString(jsonHead)
	described := map[string]bool{"docker-opts": true} // whose format is Docker's
	sections := map[reflect.Type]string{}
	for _, o := range command.Outputs() {
		described[o.Command] = true
		of := reflect.TypeOf(o.Value)
		if isAPI(of) {
			if s.api.Components.Schemas[of.Name()] == nil {
				return "", fmt.Errorf("api/openapi.yaml does not have %s, which %s prints", of.Name(), o.Command)
			}
			continue
		}
		fmt.Fprintf(&page, "\n## %s\n\n", o.Command)
		if same := sections[of]; same != "" {
			fmt.Fprintf(&page, "The same as [%s](#%s).\n", same, strings.ReplaceAll(same, " ", "-"))
			continue
		}
		sections[of] = o.Command
		for _, row := range rowsOf("", of) {
			page.WriteString(row + "\n")
		}
	}
	for name := range s.commands {
		c, ok := s.commands.Leaf(name)
		if ok && c.Flags.Lookup("format") != nil && !described[name] {
			return "", fmt.Errorf("command.Outputs does not have %s, which prints JSON", name)
		}
	}
	return page.String(), nil
}

// isAPI reports whether a type is one of the API, which api/types.mdx describes.
func isAPI(of reflect.Type) bool {
	return of.Kind() == reflect.Struct && of.PkgPath() == reflect.TypeFor[api.Network]().PkgPath()
}

// jsonLink returns a link to what a command prints, for a page that is up below the folder of the commands.
func jsonLink(o command.Output, up string) string {
	if of := reflect.TypeOf(o.Value); isAPI(of) {
		return fmt.Sprintf("[%s](%s../api/types.mdx#%s)", of.Name(), up, strings.ToLower(of.Name()))
	}
	return fmt.Sprintf("[%s](%sjson.mdx#%s)", o.Command, up, strings.ReplaceAll(o.Command, " ", "-"))
}

// rowsOf returns the rows of a type's fields, each followed by those of its nested fields.
func rowsOf(path string, of reflect.Type) []string {
	var rows []string
	described := map[reflect.Type]string{}
	for i := range of.NumField() {
		field := of.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-" || !field.IsExported():
			continue
		case name == "" && field.Anonymous:
			rows = append(rows, rowsOf(path, field.Type)...)
			continue
		case name == "":
			name = field.Name
		}
		name = strings.TrimPrefix(path+"."+name, ".")
		kind, inner, at := jsonKind(field.Type)
		optional := ""
		if strings.Contains(options, "omit") {
			optional = "?"
		}
		if inner != nil && described[inner] != "" {
			kind, inner = kind+", as in `"+described[inner]+"`", nil
		}
		rows = append(rows, fmt.Sprintf("- `%s`%s (%s)", name, optional, kind))
		if inner != nil {
			described[inner] = name
			rows = append(rows, rowsOf(name+at, inner)...)
		}
	}
	return rows
}

// jsonKind returns a type's JSON kind, and the struct in it, if any, with its path.
func jsonKind(of reflect.Type) (kind string, inner reflect.Type, at string) {
	switch of {
	case reflect.TypeFor[time.Time](), reflect.TypeFor[netip.Prefix](), reflect.TypeFor[netip.Addr](), reflect.TypeFor[netip.AddrPort]():
		return "string", nil, ""
	case reflect.TypeFor[json.RawMessage]():
		return "object", nil, ""
	}
	switch of.Kind() {
	case reflect.Pointer:
		return jsonKind(of.Elem())
	case reflect.Slice:
		kind, inner, at = jsonKind(of.Elem())
		return "list of " + kind, inner, "[]" + at
	case reflect.Map:
		kind, inner, at = jsonKind(of.Elem())
		return "object of " + kind, inner, ".*" + at
	case reflect.Struct:
		if isAPI(of) {
			return fmt.Sprintf("[%s](../api/types.mdx#%s)", of.Name(), strings.ToLower(of.Name())), nil, ""
		}
		return "object", of, ""
	case reflect.Bool:
		return "boolean", nil, ""
	case reflect.String:
		return "string", nil, ""
	case reflect.Float32, reflect.Float64:
		return "number", nil, ""
	}
	return "integer", nil, ""
}
