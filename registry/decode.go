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
		err = checkStructure(bytes.TrimLeft(value, jsonSpace), maxDepth)
	}
	if err != nil {
		return fmt.Errorf("%w: %s", ErrInvalid, shorten(err.Error()))
	}
	if *version != Version {
		return fmt.Errorf("%w: version %d, this leno reads version %d", ErrInvalid, *version, Version)
	}
	return nil
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
