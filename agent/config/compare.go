package config

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Setting is one option of the files.
type Setting struct {
	Name    string // "consul.kv_prefix"; for a network "network.*.ip_masq"
	Restart bool   // a running agent cannot apply another value
	Secret  bool   // its value is never shown

	index []int // of the field in Config, or in Network
}

// Type returns the type of the setting's value.
func (s Setting) Type() reflect.Type {
	if strings.HasPrefix(s.Name, "network.*.") {
		return reflect.TypeFor[Network]().FieldByIndex(s.index).Type
	}
	return reflect.TypeFor[Config]().FieldByIndex(s.index).Type
}

// Change is a setting that differs between two configurations.
type Change struct {
	Name     string // "consul.kv_prefix", "network.blue.ip_masq", "network.blue" for a block that is added or removed
	Old, New string // as written in a file; for a secret, only whether there is one
	Restart  bool
}

func (c Change) String() string { return fmt.Sprintf("%s: %s -> %s", c.Name, c.Old, c.New) }

// Settings returns all settings, in the order of Config.
func Settings() []Setting {
	return slices.Concat(settings(reflect.TypeFor[Config](), Setting{}), settings(reflect.TypeFor[Network](), Setting{Name: "network.*"}))
}

// settings reads the tags below a struct.
func settings(t reflect.Type, above Setting) []Setting {
	var out []Setting
	for i := range t.NumField() {
		field := t.Field(i)
		name, flags, _ := strings.Cut(field.Tag.Get("option"), ",")
		if name == "-" || field.Type == reflect.TypeFor[[]Network]() {
			continue
		}
		s := Setting{Name: strings.Trim(above.Name+"."+name, "."), index: append(slices.Clone(above.index), i),
			Restart: above.Restart || strings.Contains(flags, "restart"), Secret: above.Secret || strings.Contains(flags, "secret")}
		if field.Type.Kind() == reflect.Struct && field.Type != reflect.TypeFor[netip.Addr]() {
			out = append(out, settings(field.Type, s)...)
		} else {
			out = append(out, s)
		}
	}
	return out
}

// Compare returns the settings that differ, in the order of Config, then network by network.
func Compare(before, after Config) []Change {
	out := diff(settings(reflect.TypeFor[Config](), Setting{}), "", reflect.ValueOf(before), reflect.ValueOf(after))
	ofNetwork := settings(reflect.TypeFor[Network](), Setting{Name: "network.*"})
	for _, n := range before.Networks {
		now, stays := after.network(n.Name)
		if !stays {
			out = append(out, Change{Name: "network." + n.Name, Old: "defined", New: "not defined"})
			continue
		}
		out = append(out, diff(ofNetwork, n.Name, reflect.ValueOf(n), reflect.ValueOf(now))...)
	}
	for _, n := range after.Networks {
		if _, was := before.network(n.Name); !was {
			out = append(out, Change{Name: "network." + n.Name, Old: "not defined", New: "defined"})
		}
	}
	return out
}

func (c Config) network(name string) (Network, bool) {
	i := slices.IndexFunc(c.Networks, func(n Network) bool { return n.Name == name })
	if i < 0 {
		return Network{}, false
	}
	return c.Networks[i], true
}

func diff(all []Setting, network string, before, after reflect.Value) []Change {
	var out []Change
	for _, s := range all {
		was, is := before.FieldByIndex(s.index).Interface(), after.FieldByIndex(s.index).Interface()
		if reflect.DeepEqual(was, is) {
			continue
		}
		c := Change{Name: strings.Replace(s.Name, "*", network, 1), Old: written(was), New: written(is), Restart: s.Restart}
		if s.Secret {
			c.Old, c.New = hidden(c.Old), hidden(c.New)
		}
		if c.Old != c.New || s.Secret {
			out = append(out, c)
		}
	}
	return out
}

// hidden replaces a secret by whether there is one.
func hidden(written string) string {
	if written == `""` {
		return "not set"
	}
	return "set"
}

// written formats a value as it might appear in a file.
func written(v any) string {
	switch v := v.(type) {
	case string:
		return fmt.Sprintf("%q", v)
	case time.Duration:
		return fmt.Sprintf("%q", FormatDuration(v))
	case netip.Addr:
		if !v.IsValid() {
			return `""`
		}
		return fmt.Sprintf("%q", v)
	case []string:
		return "[" + quoted(v) + "]"
	case map[string]string:
		var entries []string
		for _, key := range slices.Sorted(maps.Keys(v)) {
			entries = append(entries, fmt.Sprintf("%s = %q", key, v[key]))
		}
		return "{" + strings.Join(entries, ", ") + "}"
	case map[uint16]uint16:
		var entries []string
		for _, port := range slices.Sorted(maps.Keys(v)) {
			entries = append(entries, fmt.Sprintf("%d = %d", port, v[port]))
		}
		return "{" + strings.Join(entries, ", ") + "}"
	case []Pool:
		pools := make([]string, len(v))
		for i, p := range v {
			pools[i] = fmt.Sprintf("%s /%d %s-%s", p.Prefix, p.SubnetLen, end(p.Min), end(p.Max))
		}
		return "[" + strings.Join(pools, ", ") + "]"
	case *Backend:
		if v == nil {
			return "none"
		}
		return v.Type + " " + string(v.Options)
	}
	return fmt.Sprint(v)
}

// end formats an end of a pool's range, "" for the plan's own.
func end(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
