package config

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/gocty"
)

// A Field is a variable of a configuration that a setting sets.
type Field struct {
	Kind    string   // what people write: "text", "true or false", "list of text"
	Choices []string // the values, nil if they are no fixed set
	Default string   // as written in a file

	set   func(cty.Value) error // converts, checks and assigns a value; nil for a block
	reset func()                // assigns the default
	value func() string         // as written in a file; nil for a block that has no value of its own
}

// Kinds that have a meaning in the code.
const (
	kindBlock = "block"
	kindMap   = "map of text"
)

// newField returns the field for a variable. HCL converts what is written to want, and parse checks it.
func newField[T, R any](kind string, to *T, standard T, want cty.Type, parse func(R) (T, error)) *Field {
	return &Field{
		Kind:    kind,
		Default: written(standard),
		set: func(v cty.Value) error {
			var raw R
			v, err := convert.Convert(v, want)
			if err == nil {
				err = gocty.FromCtyValue(v, &raw)
			}
			if err != nil {
				return err
			}
			parsed, err := parse(raw)
			if err == nil {
				*to = parsed
			}
			return err
		},
		reset: func() { *to = standard },
		value: func() string { return written(*to) },
	}
}

// whole returns the field for a variable that blocks set, and that is compared as a whole.
func whole[T any](of *T) *Field {
	return &Field{Kind: kindBlock, value: func() string { return written(*of) }}
}

// text is a string that passes all checks.
func text(to *string, standard string, checks ...func(string) error) *Field {
	return newField("text", to, standard, cty.String, func(s string) (string, error) {
		for _, check := range checks {
			if err := check(s); err != nil {
				return "", err
			}
		}
		return s, nil
	})
}

// choice is one of several strings.
func choice(to *string, standard string, choices ...string) *Field {
	f := text(to, standard, oneOf(choices...))
	f.Choices = choices
	return f
}

// level is one of the levels of a log, in either case.
func level(to *string, standard string, levels ...string) *Field {
	f := newField("text", to, standard, cty.String, func(s string) (string, error) {
		s = strings.ToUpper(s)
		return s, oneOf(levels...)(s)
	})
	f.Choices = levels
	return f
}

// texts is a list of strings, each of which passes the check.
func texts(to *[]string, standard []string, check func(string) error) *Field {
	return newField("list of text", to, standard, cty.List(cty.String), func(list []string) ([]string, error) {
		return list, checkAll(list, check)
	})
}

// endpoints is a list of at least one server.
func endpoints(to *[]string, standard ...string) *Field {
	return newField("list of text", to, standard, cty.List(cty.String), func(list []string) ([]string, error) {
		if len(list) == 0 {
			return nil, errors.New(`the list is empty: name at least one server, such as "https://10.0.0.1:2379"`)
		}
		return list, checkAll(list, checkEndpoint)
	})
}

// An elementError is the error of one element of a list.
type elementError struct {
	index int
	error
}

// checkAll returns an elementError for each element that the check refuses, joined.
func checkAll(list []string, check func(string) error) error {
	var errs []error
	for i, s := range list {
		if err := check(s); err != nil {
			errs = append(errs, elementError{i, err})
		}
	}
	return errors.Join(errs...)
}

func textMap(to *map[string]string) *Field {
	return newField(kindMap, to, nil, cty.Map(cty.String), accept[map[string]string])
}

// ports is a map from ports to ports. No two may lead to the same one.
func ports(to *map[uint16]uint16) *Field {
	return newField("map of ports", to, nil, cty.Map(cty.Number), func(m map[string]int) (map[uint16]uint16, error) {
		ports, taken, names := make(map[uint16]uint16, len(m)), map[int]string{}, map[uint64]string{}
		for _, from := range slices.Sorted(maps.Keys(m)) {
			port, err := strconv.ParseUint(from, 10, 16)
			switch to := m[from]; {
			case err != nil || port == 0:
				return nil, fmt.Errorf("%q is not a port from 1 to 65535", from)
			case names[port] != "":
				return nil, fmt.Errorf("%q and %q are the same port", names[port], from)
			case to < 1 || to > 1<<16-1:
				return nil, fmt.Errorf("%d is not a port from 1 to 65535", to)
			case taken[to] != "":
				return nil, fmt.Errorf("%d cannot lead to both %s and %s", to, taken[to], from)
			default:
				ports[uint16(port)], taken[to], names[port] = uint16(to), from, from
			}
		}
		return ports, nil
	})
}

func flag(to *bool, standard bool) *Field {
	return newField("true or false", to, standard, cty.Bool, accept[bool])
}

func accept[T any](v T) (T, error) { return v, nil }

// count is a whole number that is not negative, 0 by default.
func count(to *int) *Field {
	return newField("number", to, 0, cty.Number, func(n int) (int, error) {
		if n < 0 {
			return 0, fmt.Errorf("%d is negative", n)
		}
		return n, nil
	})
}

// priority is that of a routing rule between the kernel's own ones, or 0.
func priority(to *int) *Field {
	const mainTable = 32766
	return newField("number", to, 0, cty.Number, func(n int) (int, error) {
		if n < 0 || n >= mainTable {
			return 0, fmt.Errorf("%d is not a priority from 1 to %d, or 0 for no rules", n, mainTable-1)
		}
		return n, nil
	})
}

// duration is a number with a unit. The unit is required, because without it seconds and nanoseconds could be confused.
func duration(to *time.Duration, standard time.Duration, checks ...func(time.Duration) error) *Field {
	return newField("duration", to, standard, cty.String, func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		switch {
		case err != nil:
			return 0, fmt.Errorf("%q is not a duration: write a number and a unit, such as \"90s\", \"2m\" or \"1h30m\"", s)
		case d < 0:
			return 0, fmt.Errorf("%s is negative", s)
		}
		for _, check := range checks {
			if err := check(d); err != nil {
				return 0, err
			}
		}
		return d, nil
	})
}

// address is an IP address, or "" for none.
func address(to *netip.Addr) *Field {
	return newField("address", to, netip.Addr{}, cty.String, func(s string) (netip.Addr, error) {
		if s == "" {
			return netip.Addr{}, nil
		}
		addr, err := netip.ParseAddr(s)
		if err != nil || addr.Zone() != "" {
			return addr, fmt.Errorf("%q is not an IP address", s)
		}
		return addr.Unmap(), nil
	})
}

// prefix is an address range of a family.
func prefix(to *netip.Prefix, f family) *Field {
	return newField("prefix", to, netip.Prefix{}, cty.String, func(s string) (netip.Prefix, error) {
		prefix, err := netip.ParsePrefix(s)
		switch {
		case err != nil:
			return prefix, fmt.Errorf("%q is not a prefix, such as \"10.5.0.0/16\" or \"fd00:5::/48\"", s)
		case !f.has(prefix.Addr()):
			return prefix, fmt.Errorf("%s is not an %s prefix, such as %s", prefix, f.name, f.prefix)
		}
		return prefix, nil
	})
}

// written formats a value as it might appear in a file.
func written(v any) string {
	switch v := v.(type) {
	case string:
		return strconv.Quote(v)
	case time.Duration:
		return strconv.Quote(FormatDuration(v))
	case netip.Addr:
		return strconv.Quote(end(v))
	case []string:
		return "[" + quoted(v) + "]"
	case map[string]string:
		return entries(v, "%s = %q")
	case map[uint16]uint16:
		return entries(v, "%d = %d")
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

func entries[K ~string | ~uint16, V any](of map[K]V, format string) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(of)) {
		out = append(out, fmt.Sprintf(format, key, of[key]))
	}
	return "{" + strings.Join(out, ", ") + "}"
}

// end formats an address, "" if it is not set.
func end(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// FormatDuration formats a duration as a person would write it: 2m, not 2m0s.
func FormatDuration(d time.Duration) string {
	text := d.String()
	if minutes, ok := strings.CutSuffix(text, "m0s"); ok {
		text = minutes + "m"
	}
	if hours, ok := strings.CutSuffix(text, "h0m"); ok {
		text = hours + "h"
	}
	return text
}
