package config

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"
	"time"
)

// TestEveryFieldIsASetting changes each field of a configuration and of a network: the comparison reports it, because
// the table has a row for it.
func TestEveryFieldIsASetting(t *testing.T) {
	other := map[reflect.Type]any{
		reflect.TypeFor[string]():            "x",
		reflect.TypeFor[bool]():              true,
		reflect.TypeFor[int]():               7,
		reflect.TypeFor[time.Duration]():     7 * time.Second,
		reflect.TypeFor[netip.Addr]():        netip.MustParseAddr("192.0.2.7"),
		reflect.TypeFor[[]string]():          []string{"x"},
		reflect.TypeFor[map[string]string](): map[string]string{"x": "y"},
		reflect.TypeFor[map[uint16]uint16](): map[uint16]uint16{7: 8},
		reflect.TypeFor[[]Pool]():            []Pool{{SubnetLen: 7}},
		reflect.TypeFor[*Backend]():          &Backend{Type: "udp", Options: json.RawMessage(`{}`)},
	}
	noSettings := map[string]bool{"Dev": true, "Files": true, "Empty": true, "NetworkFiles": true, "Networks": true,
		"HTTP.TLS.ServerName": true, // a listener verifies no server's name
		"Name":                true}
	fields := 0
	var walk func(path string, index []int, of reflect.Type, change func(index []int, value any) int)
	walk = func(path string, index []int, of reflect.Type, change func(index []int, value any) int) {
		for i := range of.NumField() {
			field := of.Field(i)
			at, name := append(index[:len(index):len(index)], i), path+field.Name
			value, known := other[field.Type]
			switch {
			case noSettings[name]:
			case known:
				fields++
				if n := change(at, value); n != 1 {
					t.Errorf("%s: %d settings differ, want 1", name, n)
				}
			case field.Type.Kind() == reflect.Struct:
				walk(name+".", at, field.Type, change)
			default:
				t.Errorf("%s has another type, %s", name, field.Type)
			}
		}
	}
	walk("", nil, reflect.TypeFor[Config](), func(index []int, value any) int {
		var c Config
		reflect.ValueOf(&c).Elem().FieldByIndex(index).Set(reflect.ValueOf(value))
		return len(Compare(Config{}, c))
	})
	walk("", nil, reflect.TypeFor[Network](), func(index []int, value any) int {
		n := Network{Name: "blue"}
		reflect.ValueOf(&n).Elem().FieldByIndex(index).Set(reflect.ValueOf(value))
		return len(Compare(Config{Networks: []Network{{Name: "blue"}}}, Config{Networks: []Network{n}}))
	})
	if fields != len(Settings()) {
		t.Errorf("%d fields and %d settings", fields, len(Settings()))
	}
}
