package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of what another host may have written.
const (
	MaxRecordSize = 16 << 10 // bytes of one value
	maxDepth      = 16       // nested JSON
	maxPools      = 2
	maxAddresses  = 16
	maxNameLen    = 128
	maxReasonLen  = 200 // of a quoted error, bytes
	minMTU        = 68  // RFC 791
	maxMTU        = 65535
)

// decode reads one record into v after bounding it.
func decode(value []byte, v any, version *int) error {
	switch {
	case len(value) == 0:
		return fmt.Errorf("%w: empty value", ErrInvalid)
	case len(value) > MaxRecordSize:
		return fmt.Errorf("%w: %d bytes, at most %d are read", ErrInvalid, len(value), MaxRecordSize)
	case !utf8.Valid(value):
		return fmt.Errorf("%w: not UTF-8", ErrInvalid)
	}
	err := json.Unmarshal(value, v)
	if err == nil {
		err = checkStructure(json.NewDecoder(bytes.NewReader(value)), maxDepth)
	}
	if err != nil {
		return fmt.Errorf("%w: %s", ErrInvalid, shorten(err.Error()))
	}
	if *version != Version {
		return fmt.Errorf("%w: version %d, this leno reads version %d", ErrInvalid, *version, Version)
	}
	return nil
}

// checkStructure walks one JSON value and bounds its nesting. It refuses
// members of one object that differ by case alone or not at all: readers differ
// in which of them counts (encoding/json takes the last, whatever its case), and
// all must see the same record.
func checkStructure(dec *json.Decoder, depth int) error {
	token, err := dec.Token()
	if err != nil {
		return err
	}
	open, ok := token.(json.Delim)
	if !ok {
		return nil
	}
	if depth == 0 {
		return fmt.Errorf("nested deeper than %d", maxDepth)
	}
	var seen map[string]bool
	if open == '{' {
		seen = map[string]bool{}
	}
	for dec.More() {
		if seen != nil {
			name, err := dec.Token()
			if err != nil {
				return err
			}
			folded := strings.Map(fold, name.(string))
			if seen[folded] {
				return fmt.Errorf("member %q is there twice", name)
			}
			seen[folded] = true
		}
		if err := checkStructure(dec, depth-1); err != nil {
			return err
		}
	}
	_, err = dec.Token()
	return err
}

// fold is the least of the characters that are r but for case.
func fold(r rune) rune {
	for {
		next := unicode.SimpleFold(r)
		if next <= r {
			return next
		}
		r = next
	}
}

// shorten keeps a text that may quote foreign bytes fit for a log line.
func shorten(text string) string {
	if len(text) <= maxReasonLen {
		return text
	}
	return strings.ToValidUTF8(text[:maxReasonLen], "") + "…"
}

// checkPublicIP refuses addresses that cannot be a host's on the underlay. An
// address inside the overlay would route the overlay into itself.
func checkPublicIP(plan Plan, a netip.Addr) error {
	switch {
	case !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a.Zone() != "" || a.Is4In6() ||
		a.Is6() && a.IsLinkLocalUnicast() || // means nothing to others without a zone
		a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("%w: public ip %s is not a host's unicast address", ErrInvalid, a)
	case slices.ContainsFunc(plan.Prefixes(), func(p netip.Prefix) bool { return p.Contains(a) }):
		return fmt.Errorf("%w: public ip %s is inside the network", ErrInvalid, a)
	}
	return nil
}

// checkName bounds a node name or id: they end up in logs, tables and files.
func checkName(field, name string) error {
	if name == "" {
		return fmt.Errorf("%w: %s is missing", ErrInvalid, field)
	}
	if len(name) > maxNameLen || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) {
		return fmt.Errorf("%w: %s is longer than %d bytes or not printable", ErrInvalid, field, maxNameLen)
	}
	return nil
}
