package command

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/cleanup"
	"github.com/lenonet/leno/agent/handover"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/flannel"
)

// shapes returns what commands print with -format=json. A new command must be added here to be
// documented.
func shapes() []shape {
	return []shape{
		{"status", statusOutput{}},
		{"network list", api.NetworkList{}},
		{"network show", api.Network{}},
		{"network plan", planOutput{}},
		{"network apply", planOutput{}},
		{"network switch", api.NetworkSwitch{}},
		{"network import", flannel.Plan{}},
		{"lease list", api.LeaseList{}},
		{"lease show", api.Lease{}},
		{"lease renew", api.Renewal{}},
		{"reservation list", api.ReservationList{}},
		{"peers", api.PeerList{}},
		{"peers -probe", api.Probe{}},
		{"doctor", api.Diagnosis{}},
		{"events", api.EventList{}},
		{"cleanup", cleanup.Report{}},
		{"flannel adopt", handover.Report{}},
		{"flannel return", handover.Report{}},
		{"store copy", storeCopyOutput{}},
		{"version", versionOutput{}},
	}
}

type shape struct {
	command string
	value   any
}

const jsonPage = docs + "commands/json.mdx"

const jsonHead = `---
title: JSON output
description: The JSON that each command prints with -format=json, field by field.
---

This page lists the fields that each command prints with ` + "`-format=json`" + `. ` + "`[]`" + ` stands for each element of a list, and
` + "`.*`" + ` for each member of an object whose names are data. A field with a ` + "`?`" + ` may be absent. All other fields are
always present, and a list is never null. Times are in RFC 3339 format, subnets are written as ` + "`10.5.34.0/24`" + `.
Releases may add fields, but do not rename or remove them; a test compares this page with the program. Most commands
print a response of the [HTTP API](../api/index.mdx), which explains the fields.

` + "`docker-opts -format=json`" + ` prints a daemon.json, whose fields are Docker's.
`

// TestJSONIsDocumented compares the fields of every command's JSON and their types with the page.
// With LENO_UPDATE_GOLDEN set it writes the page.
func TestJSONIsDocumented(t *testing.T) {
	var page strings.Builder
	page.WriteString(jsonHead)
	var described []string
	for _, s := range shapes() {
		described = append(described, s.command)
		fmt.Fprintf(&page, "\n## %s\n\n| field | type |\n|---|---|\n", s.command)
		for _, row := range rowsOf("", reflect.TypeOf(s.value)) {
			page.WriteString(row + "\n")
		}
	}
	if os.Getenv("LENO_UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(jsonPage, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(read(t, jsonPage), page.String()); diff != "" {
		t.Errorf("%s (-page +program), see it with LENO_UPDATE_GOLDEN=1 and say so in the changelog:\n%s", jsonPage, diff)
	}
	for name := range Commands(cli.Meta{}) {
		c, ok := Commands(cli.Meta{}).Leaf(name)
		if ok && c.Flags.Lookup("format") != nil && !slices.Contains(described, name) && name != "docker-opts" {
			t.Errorf("%s prints JSON that is not described", name)
		}
	}
}

// rowsOf returns the rows of a type's fields, each followed by those of its nested fields.
func rowsOf(path string, of reflect.Type) []string {
	var rows []string
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
		rows = append(rows, fmt.Sprintf("| `%s`%s | %s |", name, optional, kind))
		if inner != nil {
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
