package config

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const optionsPage = "../../website/content/docs/configuration.mdx"

// TestOptionsPage compares the table of all options, with type, default and whether a reload applies them, with the
// loader. With LENO_UPDATE_GOLDEN set it writes the table.
func TestOptionsPage(t *testing.T) {
	text, err := os.ReadFile(optionsPage)
	if err != nil {
		t.Fatal(err)
	}
	before, after, ok := strings.Cut(string(text), "\n## All options\n")
	if !ok {
		t.Fatal("configuration.mdx has no section of all options")
	}
	section, rest, more := strings.Cut(after, "\n## ")
	if more {
		rest = "\n## " + rest
	}
	want := optionsTable(t)
	if os.Getenv("LENO_UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(optionsPage, []byte(before+"\n## All options\n"+want+rest), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(section, want); diff != "" {
		t.Errorf("configuration.mdx, All options (-page +loader), LENO_UPDATE_GOLDEN=1 writes it:\n%s", diff)
	}
}

func optionsTable(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "leno.hcl")
	if err := os.WriteFile(path, []byte("network \"NETWORK\" {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load([]string{path}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defaults := map[string]string{}
	for _, v := range Values(c) {
		defaults[v.Name] = v.Value
	}
	var b strings.Builder
	b.WriteString("\nEvery option with its type and its default as `GET /v1/agent/config` returns it. Empty defaults are explained " +
		"above.\n\n| option | type | default | changes with a reload |\n|---|---|---|---|\n")
	for _, s := range Settings() {
		of, name := reflect.TypeFor[Config](), s.Name
		if strings.HasPrefix(name, "network.*.") {
			of, name = reflect.TypeFor[Network](), strings.Replace(name, "*", "NETWORK", 1)
		}
		value, ok := defaults[name]
		if !ok {
			t.Errorf("%s has no default", name)
		}
		if kind := of.FieldByIndex(s.index).Type; kind == reflect.TypeFor[[]Pool]() || kind == reflect.TypeFor[*Backend]() {
			value = "" // Consul has them
		}
		if s.Name == "http.tls.server_name" { // a listener verifies no server's name
			continue
		}
		if value != "" && value != `""` {
			value = "`" + value + "`"
		} else {
			value = ""
		}
		reload := "yes"
		if s.Restart {
			reload = "no"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", strings.Replace(s.Name, "*", "NETWORK", 1), optionKind(t, of.FieldByIndex(s.index).Type), value, reload)
	}
	return b.String()
}

// optionKind returns the text after the = of an option.
func optionKind(t *testing.T, of reflect.Type) string {
	t.Helper()
	switch of {
	case reflect.TypeFor[time.Duration]():
		return "duration"
	case reflect.TypeFor[netip.Addr]():
		return "address"
	case reflect.TypeFor[[]Pool](), reflect.TypeFor[*Backend]():
		return "block"
	}
	switch of.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "number"
	case reflect.Map:
		if of.Elem().Kind() == reflect.Uint16 {
			return "map of ports"
		}
		return "map of text"
	case reflect.Slice:
		return "list of " + optionKind(t, of.Elem())
	case reflect.Struct:
		return "text"
	}
	t.Errorf("%s is of no kind", of)
	return ""
}
