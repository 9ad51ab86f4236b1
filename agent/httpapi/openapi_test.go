package httpapi

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
)

// undescribed matches the endpoints for people and profilers.
var undescribed = regexp.MustCompile(`^\w+ (/ui|/debug/|/\{\$\})`)

// TestOpenAPIEndpoints: the document describes all endpoints, and no others.
func TestOpenAPIEndpoints(t *testing.T) {
	var described, served []string
	for path, item := range agenttest.OpenAPI(t).Paths.Map() {
		for method := range item.Operations() {
			described = append(described, method+" "+path)
		}
	}
	for _, e := range newHost(t, nil).prepare().endpoints {
		if !undescribed.MatchString(e.pattern) {
			served = append(served, e.pattern)
		}
	}
	slices.Sort(described)
	slices.Sort(served)
	if diff := cmp.Diff(served, described); diff != "" {
		t.Errorf("-served +described:\n%s", diff)
	}
}

// TestOpenAPITypes: the schemas have the fields of the client's types, with the same names and kinds, and required where
// they are always present.
func TestOpenAPITypes(t *testing.T) {
	schemas := agenttest.OpenAPI(t).Components.Schemas
	types := map[string]reflect.Type{}
	for _, v := range []any{
		api.Error{}, api.Health{}, api.Self{}, api.Network{}, api.NetworkList{}, api.Lease{}, api.LeaseList{},
		api.Reservation{}, api.ReservationList{}, api.PeerList{}, api.HostList{}, api.NetworkPlan{}, api.EventList{}, api.Reloaded{},
		api.ProbeRequest{}, api.Probe{}, api.Metrics{}, api.Renewal{}, api.NetworkSwitch{}, api.Configuration{}, api.Diagnosis{},
		api.TraceRequest{}, api.Trace{},
	} {
		gather(types, reflect.TypeOf(v))
	}
	for name, of := range types {
		schema, ok := schemas[name]
		if !ok {
			t.Errorf("no schema %s", name)
			continue
		}
		if diff := cmp.Diff(fieldsOf(of), propertiesOf(schema.Value)); diff != "" {
			t.Errorf("%s (-type +schema):\n%s", name, diff)
		}
	}
	var kinds []string
	for _, kind := range schemas["Event"].Value.Properties["kind"].Value.Enum {
		kinds = append(kinds, fmt.Sprint(kind))
	}
	if diff := cmp.Diff(api.EventKinds, kinds); diff != "" {
		t.Errorf("kinds of events (-api +schema):\n%s", diff)
	}
	// What is sent has a shape of its own, and simple values have a name.
	known := []string{"Prefix", "Address", "Status", "Time", "BackendObject", "NetworkRequest", "SwitchRequest", "ReservationRequest"}
	for name := range schemas {
		if _, ok := types[name]; !ok && !slices.Contains(known, name) {
			t.Errorf("schema %s is no type's", name)
		}
	}
}

// gather adds a struct of package api and those in its fields.
func gather(types map[string]reflect.Type, of reflect.Type) {
	switch of.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		gather(types, of.Elem())
	case reflect.Struct:
		if _, known := types[of.Name()]; known || of.PkgPath() != reflect.TypeFor[api.Error]().PkgPath() {
			return
		}
		types[of.Name()] = of
		for i := range of.NumField() {
			if of.Field(i).Tag.Get("json") != "-" {
				gather(types, of.Field(i).Type)
			}
		}
	}
}

// fieldsOf returns the kinds of a type's JSON fields, with a "?" if a field may be absent.
func fieldsOf(of reflect.Type) map[string]string {
	out := map[string]string{}
	for i := range of.NumField() {
		name, options, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		kind := kindOf(of.Field(i).Type)
		if options != "" {
			kind += "?"
		}
		out[name] = kind
	}
	return out
}

func kindOf(of reflect.Type) string {
	switch of {
	case reflect.TypeFor[time.Time](), reflect.TypeFor[netip.Prefix](), reflect.TypeFor[netip.Addr](), reflect.TypeFor[netip.AddrPort]():
		return "string"
	case reflect.TypeFor[json.RawMessage]():
		return "object"
	}
	switch of.Kind() {
	case reflect.Pointer:
		return kindOf(of.Elem())
	case reflect.Slice:
		return "array of " + kindOf(of.Elem())
	case reflect.Struct, reflect.Map:
		return "object"
	case reflect.Bool:
		return "boolean"
	case reflect.String:
		return "string"
	case reflect.Float64:
		return "number"
	}
	return "integer"
}

func propertiesOf(s *openapi3.Schema) map[string]string {
	out := map[string]string{}
	for name, p := range s.Properties {
		out[name] = typeOf(p.Value)
		if !slices.Contains(s.Required, name) {
			out[name] += "?"
		}
	}
	return out
}

func typeOf(s *openapi3.Schema) string {
	if s.Type.Is("array") {
		return "array of " + typeOf(s.Items.Value)
	}
	return strings.Join(s.Type.Slice(), "|")
}
