package command

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent"
	"github.com/lenonet/leno/agent/config"
)

// withSetting returns a configuration with one setting, in JSON. A network has the pool that the setting needs.
func withSetting(t *testing.T, name string, value any) []byte {
	t.Helper()
	parts := strings.Split(strings.Replace(name, "*", "n", 1), ".")
	root := map[string]any{}
	at := root
	for _, part := range parts[:len(parts)-1] {
		inner := map[string]any{}
		at[part] = inner
		at = inner
	}
	at[parts[len(parts)-1]] = value
	if parts[0] == "network" {
		network := root["network"].(map[string]any)["n"].(map[string]any)
		family := "ipv4"
		if parts[2] == "ipv6" {
			family = "ipv6"
		}
		pool, _ := network[family].(map[string]any)
		if pool == nil {
			pool = map[string]any{}
			network[family] = pool
		}
		if pool["prefix"] == nil {
			pool["prefix"] = map[string]string{"ipv4": "10.5.0.0/16", "ipv6": "fd00:5::/48"}[family]
		}
	}
	text, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestValuesAreConverted sets each option, also of each backend, to numbers and to true and false, with quotes and
// without: both are refused, or both mean the same.
func TestValuesAreConverted(t *testing.T) {
	kinds := map[string]string{} // by option
	for _, s := range config.Reference() {
		if !s.IsBlock() {
			kinds[s.Name] = s.Kind
		}
	}
	for name, b := range agent.Backends() {
		effective, err := b.Normalize(nil)
		if err != nil {
			t.Fatal(err)
		}
		var options map[string]any
		if err := json.Unmarshal(effective, &options); err != nil {
			t.Fatal(err)
		}
		for option, value := range options {
			kind := map[reflect.Kind]string{reflect.Float64: "number", reflect.Bool: "true or false"}[reflect.TypeOf(value).Kind()]
			kinds["network.*.backend."+name+"."+option] = kind
		}
	}
	values := []any{1, 24, 64, 0, 1.5, -1, true, false}
	for name, kind := range kinds {
		accepted := 0
		for _, value := range values {
			bare, errBare := config.Parse(withSetting(t, name, value), "a.json", configOptions(agent.Backends()))
			quoted, errQuoted := config.Parse(withSetting(t, name, fmt.Sprint(value)), "a.json", configOptions(agent.Backends()))
			// To HCL, "1" and "0" are true and false, but 1 and 0 are not.
			if (errBare == nil) != (errQuoted == nil) && !(kind == "true or false" && (value == 0 || value == 1)) {
				t.Errorf("%s = %v: %v; with quotes: %v", name, value, errBare, errQuoted)
			}
			if errBare != nil {
				continue
			}
			accepted++
			if a, b := config.Values(bare), config.Values(quoted); !slices.Equal(a, b) {
				t.Errorf("%s = %v: %v; with quotes: %v", name, value, a, b)
			}
		}
		if accepted == 0 && (kind == "number" || kind == "true or false") {
			t.Errorf("%s: no %s was accepted", name, kind)
		}
	}
	if len(kinds) < 80 {
		t.Errorf("only %d options", len(kinds))
	}
}
