package main

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/config"
)

// notForListeners is the only setting that no file can set: a listener verifies no server's name.
const notForListeners = "http.tls.server_name"

// allOptions returns the table of all options, with type, default and whether a reload applies them.
func allOptions() (string, error) {
	c, err := config.Parse([]byte("network \"NETWORK\" {}\n"), "leno.hcl", config.Options{})
	if err != nil {
		return "", err
	}
	defaults := map[string]string{}
	for _, v := range config.Values(c) {
		defaults[v.Name] = v.Value
	}
	var b strings.Builder
	b.WriteString("| option | type | default | changes with a reload |\n|---|---|---|---|\n")
	for _, s := range config.Settings() {
		if s.Name == notForListeners {
			continue
		}
		name := strings.Replace(s.Name, "*", "NETWORK", 1)
		value, ok := defaults[name]
		if !ok {
			return "", fmt.Errorf("%s has no default", name)
		}
		kind, err := optionKind(s.Type())
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		if kind == "block" || kind == "list of block" || value == `""` {
			value = "" // Consul has blocks
		}
		if value != "" {
			value = "`" + value + "`"
		}
		reload := "yes"
		if s.Restart {
			reload = "no"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, kind, value, reload)
	}
	return b.String(), nil
}

// optionKind returns the kind of text after the = of an option.
func optionKind(of reflect.Type) (string, error) {
	switch of {
	case reflect.TypeFor[time.Duration]():
		return "duration", nil
	case reflect.TypeFor[netip.Addr]():
		return "address", nil
	case reflect.TypeFor[[]config.Pool](), reflect.TypeFor[*config.Backend]():
		return "block", nil
	}
	switch of.Kind() {
	case reflect.String, reflect.Struct:
		return "text", nil
	case reflect.Bool:
		return "true or false", nil
	case reflect.Int, reflect.Int64:
		return "number", nil
	case reflect.Map:
		if of.Elem().Kind() == reflect.Uint16 {
			return "map of ports", nil
		}
		return "map of text", nil
	case reflect.Slice:
		inner, err := optionKind(of.Elem())
		return "list of " + inner, err
	}
	return "", fmt.Errorf("a type of no kind: %s", of)
}

// blockOptions returns the table of the options of one block. Its columns are the option, the default and a sentence.
// A default that begins with a word instead of code is a sentence, too.
func (s *source) blockOptions(block string, old rows) (rows, error) {
	values := map[string]string{}
	var names []string
	for _, o := range s.options {
		name := strings.Replace(o.Name, "network.*.", "network.", 1)
		below, ok := strings.CutPrefix(name, block+".")
		if block == "" {
			below, ok = name, !strings.Contains(name, ".")
		}
		if ok && !o.Block && !strings.HasPrefix(below, "backend.") {
			names, values[below] = append(names, below), o.Value
		}
	}
	byBackend := func(row []string) bool { return strings.HasPrefix(row[0], "`backend ") } // which is on another page
	return old.update(names, 3, byBackend, func(name string, row []string) {
		value := strings.ReplaceAll(values[name], "/default.", "/<network>.")
		empty := value == `""` || strings.HasPrefix(name, "ipv") || strings.HasPrefix(name, "login.") // described in words
		if strings.HasPrefix(row[1], "`") || !empty && row[1] == "" {
			row[1] = withCode(row[1], value)
		}
	})
}

// restarts returns the table of the options that a reload cannot change, and why.
func restarts(old rows) (rows, error) {
	var names []string
	for _, s := range config.Settings() {
		if s.Restart && s.Name != notForListeners {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return old.update(names, 2, nil, nil)
}
