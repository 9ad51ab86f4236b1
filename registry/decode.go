package registry

import (
	"crypto/sha256"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits for records written by other hosts.
const (
	MaxRecordSize = 16 << 10 // bytes of one value
	maxKeySize    = 4 << 10  // bytes of one key, far more than leno's have
	maxDepth      = 16       // nested JSON
	maxPools      = 2
	maxAddresses  = 16
	maxNameLen    = 255 // the longest node_name the configuration accepts, bytes
	maxReasonLen  = 280 // of the reason given for one record, bytes
	minMTU        = 68  // RFC 791
	maxMTU        = 65535
)

// tooLarge is what Bounded returns parts of. Nothing writes to it, so the kernel gives it no memory.
var tooLarge [16 << 20]byte

// Bounded returns value, or zero bytes instead of a value that is too large for a record. They are as many as it had,
// up to 16 MiB, so a reason names its size, and they take no memory.
func Bounded(value []byte) []byte {
	if len(value) > MaxRecordSize {
		return TooLarge(len(value))
	}
	return value
}

// TooLarge returns what Bounded does for a value of so many bytes.
func TooLarge(size int) []byte {
	size = min(size, len(tooLarge))
	return tooLarge[:size:size]
}

// BoundedKey returns key, or only the beginning of one that is too long for a record.
func BoundedKey(key string) string {
	if len(key) <= maxKeySize {
		return key
	}
	return strings.Clone(strings.ToValidUTF8(key[:maxKeySize], ""))
}

// DistinctKey is BoundedKey with a checksum after the beginning of a long key, so that no other key is the same.
func DistinctKey(key string) string {
	bounded := BoundedKey(key)
	if bounded != key {
		bounded += fmt.Sprintf("~%x", sha256.Sum256([]byte(key)))
	}
	return bounded
}

// decode parses one record into v within the limits above.
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
		err = CheckStructure(value)
	} else if other, ok := versionOf(value); ok {
		// In a later version, members may have other types.
		*version, err = other, nil
	}
	switch {
	case err != nil:
		return InvalidRecord(explain(err))
	case *version > Version:
		return fmt.Errorf("%w: version %d is a newer leno's, this one reads version %d", ErrInvalid, *version, Version)
	case *version == 0:
		return fmt.Errorf("%w: version is missing, this leno reads version %d", ErrInvalid, Version)
	case *version != Version:
		return fmt.Errorf("%w: version %d, this leno reads version %d", ErrInvalid, *version, Version)
	}
	return nil
}

// versionOf returns the version of a record that could not be read as the current version, and true if that version is
// another one.
func versionOf(value []byte) (version int, ok bool) {
	var r struct {
		Version int `json:"version"`
	}
	return r.Version, json.Unmarshal(value, &r) == nil && r.Version != 0 && r.Version != Version
}

// explain rewrites an error of encoding/json in words for users who do not know Go.
func explain(err error) string {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return err.Error()
	}
	where := "the record"
	if wrong.Field != "" {
		where = wrong.Field
	}
	want := "a string"
	switch wrong.Type.Kind() {
	case reflect.Int, reflect.Uint64:
		want = "a whole number"
	case reflect.Slice:
		want = "a list"
	case reflect.Bool:
		want = "true or false"
	case reflect.Struct:
		if !reflect.PointerTo(wrong.Type).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
			want = "an object"
		}
	}
	return fmt.Sprintf("%s is not %s but: %s", where, want, wrong.Value)
}

// InvalidRecord returns an error that wraps ErrInvalid and gives the reason why a record cannot be used, for example
// "invalid: pool 10.5.0.0/16: min 10.6.0.0 is outside". The reason may quote what another program wrote: it becomes one
// short line of printable text. An "invalid: " inside of it is left out.
func InvalidRecord(reason string) error {
	return fmt.Errorf("%w: %s", ErrInvalid, shorten(strings.ReplaceAll(reason, ErrInvalid.Error()+": ", "")))
}

// shorten makes text that may quote foreign bytes fit for one line of a log or a terminal: bounded, and without
// unprintable characters.
func shorten(text string) string {
	var b strings.Builder
	for i, r := range text {
		switch {
		case b.Len() > maxReasonLen:
			return b.String() + "…"
		case r == '\n':
			b.WriteString("; ")
		case unicode.IsPrint(r) && (r != utf8.RuneError || strings.HasPrefix(text[i:], "\uFFFD")):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// checkPublicIP refuses addresses that cannot be a host's address on the underlay. An address inside the overlay would
// route the overlay into itself.
func checkPublicIP(plan Plan, a netip.Addr) error {
	switch {
	case !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a.Zone() != "" || a.Is4In6() ||
		a.Is6() && a.IsLinkLocalUnicast() || // means nothing to other hosts without a zone
		a.Is4() && a.As4()[0] == 0 || // "this network", RFC 6890
		a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("%w: public ip %s is not a host's unicast address", ErrInvalid, a)
	case slices.ContainsFunc(plan.Prefixes(), func(p netip.Prefix) bool { return p.Contains(a) }):
		return fmt.Errorf("%w: public ip %s is inside the network", ErrInvalid, a)
	}
	return nil
}

// checkName checks the length and characters of a node name or id, which end up in logs, tables and files.
func checkName(field, name string) error {
	if name == "" {
		return fmt.Errorf("%w: %s is missing", ErrInvalid, field)
	}
	if len(name) > maxNameLen {
		return fmt.Errorf("%w: %s has %d bytes, at most %d", ErrInvalid, field, len(name), maxNameLen)
	}
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) {
		return fmt.Errorf("%w: %s %.64q has characters that cannot be printed", ErrInvalid, field, name)
	}
	return nil
}
