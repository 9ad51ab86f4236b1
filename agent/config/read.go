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

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/gocty"
)

// evaluate returns an attribute's value as a T. It returns false for a missing or null attribute, which sets nothing,
// and for one that it reports.
func evaluate[T any](l *loader, a *hcl.Attribute, want cty.Type) (T, bool) {
	var out T
	if a == nil {
		return out, false
	}
	v, diags := a.Expr.Value(nil)
	l.diags = append(l.diags, diags...)
	if diags.HasErrors() || v.IsNull() {
		return out, false
	}
	v, err := convert.Convert(v, want)
	if err == nil {
		err = gocty.FromCtyValue(v, &out)
	}
	if err != nil {
		l.at(a, "%s", err)
		return out, false
	}
	return out, true
}

// set reads an attribute into dst: it evaluates it as an R, then parses that. A missing attribute changes nothing, an
// invalid one is reported.
func set[T, R any](l *loader, a *hcl.Attribute, dst *T, want cty.Type, parse func(R) (T, error)) {
	raw, ok := evaluate[R](l, a, want)
	if !ok {
		return
	}
	v, err := parse(raw)
	if err != nil {
		l.at(a, "%s", err)
		return
	}
	*dst = v
	l.by[dst] = a
}

// text reads a string that must pass every check.
func (l *loader) text(a *hcl.Attribute, dst *string, checks ...func(string) error) {
	set(l, a, dst, cty.String, func(s string) (string, error) {
		for _, check := range checks {
			if err := check(s); err != nil {
				return "", err
			}
		}
		return s, nil
	})
}

// texts reads a list of strings, each of which must pass the check. It reports every element that does not, at its
// place.
func (l *loader) texts(a *hcl.Attribute, dst *[]string, check func(string) error) {
	list, ok := evaluate[[]string](l, a, cty.List(cty.String))
	if !ok {
		return
	}
	elements, diags := hcl.ExprList(a.Expr)
	for i, s := range list {
		err := check(s)
		if err == nil {
			continue
		}
		where := a.Expr.Range()
		if !diags.HasErrors() && len(elements) == len(list) {
			where = elements[i].Range()
		}
		l.report(where, invalidValue(a), "%s", err)
		ok = false
	}
	if ok {
		*dst = list
		l.by[dst] = a
	}
}

// textMap reads a map of strings.
func (l *loader) textMap(a *hcl.Attribute, dst *map[string]string) {
	set(l, a, dst, cty.Map(cty.String), func(m map[string]string) (map[string]string, error) { return m, nil })
}

// ports reads a map from ports to ports. No two may lead to the same one.
func (l *loader) ports(a *hcl.Attribute, dst *map[uint16]uint16) {
	set(l, a, dst, cty.Map(cty.Number), func(m map[string]int) (map[uint16]uint16, error) {
		ports, taken := make(map[uint16]uint16, len(m)), map[int]string{}
		for _, from := range slices.Sorted(maps.Keys(m)) {
			port, err := strconv.ParseUint(from, 10, 16)
			switch to := m[from]; {
			case err != nil || port == 0:
				return nil, fmt.Errorf("%q is not a port from 1 to 65535", from)
			case to < 1 || to > 1<<16-1:
				return nil, fmt.Errorf("%d is not a port from 1 to 65535", to)
			case taken[to] != "":
				return nil, fmt.Errorf("%d cannot lead to both %s and %s", to, taken[to], from)
			default:
				ports[uint16(port)], taken[to] = uint16(to), from
			}
		}
		return ports, nil
	})
}

func (l *loader) flag(a *hcl.Attribute, dst *bool) {
	set(l, a, dst, cty.Bool, func(b bool) (bool, error) { return b, nil })
}

// count reads a whole number that is not negative.
func (l *loader) count(a *hcl.Attribute, dst *int) {
	set(l, a, dst, cty.Number, func(n int) (int, error) {
		if n < 0 {
			return 0, fmt.Errorf("%d is negative", n)
		}
		return n, nil
	})
}

// duration reads a number with a unit. The unit is required, because without it seconds and nanoseconds could be
// confused.
func (l *loader) duration(a *hcl.Attribute, dst *time.Duration) {
	set(l, a, dst, cty.String, func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		switch {
		case err != nil:
			return 0, fmt.Errorf("%q is not a duration: write a number and a unit, such as \"90s\", \"2m\" or \"1h30m\"", s)
		case d < 0:
			return 0, fmt.Errorf("%s is negative", s)
		}
		return d, nil
	})
}

func (l *loader) addr(a *hcl.Attribute, dst *netip.Addr) {
	set(l, a, dst, cty.String, func(s string) (netip.Addr, error) {
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

// at reports that an attribute's value is wrong.
func (l *loader) at(a *hcl.Attribute, format string, args ...any) {
	l.report(a.Expr.Range(), invalidValue(a), format, args...)
}

func invalidValue(a *hcl.Attribute) string { return fmt.Sprintf("Invalid value for %q", a.Name) }

// report adds an error at a place. It ends the detail with a full stop, as hcl does.
func (l *loader) report(place hcl.Range, summary, format string, args ...any) {
	detail := fmt.Sprintf(format, args...)
	if !strings.HasSuffix(detail, ".") && !strings.HasSuffix(detail, "?") {
		detail += "."
	}
	l.diags = append(l.diags, &hcl.Diagnostic{
		Severity: hcl.DiagError,
		Summary:  summary,
		Detail:   detail,
		Subject:  place.Ptr(),
	})
}

// unplaced adds an error that belongs to no line of a file.
func (l *loader) unplaced(summary, detail string) {
	l.diags = append(l.diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: detail})
}

// flatten returns a joined error's parts, in order. It splits only errors whose text reads like a join: fmt.Errorf
// with two %w is one sentence.
func flatten(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || err.Error() != errors.Join(joined.Unwrap()...).Error() {
		return []error{err}
	}
	var out []error
	for _, e := range joined.Unwrap() {
		out = append(out, flatten(e)...)
	}
	return out
}
