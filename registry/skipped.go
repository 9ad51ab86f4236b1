package registry

import (
	"net/netip"
	"slices"
	"strings"
)

// Bounds of what is shown of a record that another program wrote, in bytes.
const (
	MaxShownKey    = 512 // a key that leno writes is far shorter
	MaxShownReason = 400
)

// Shortened returns the record with a key and a reason that are short enough to be shown.
func (r BadRecord) Shortened() BadRecord {
	r.Key, r.Reason = Shorten(r.Key, MaxShownKey), Shorten(r.Reason, MaxShownReason)
	return r
}

// Subnet returns the first subnet in the key of a lease or a reservation.
func (r BadRecord) Subnet() (netip.Prefix, error) {
	name := r.Key[strings.LastIndexByte(r.Key, '/')+1:]
	// Flannel's keys have the subnets of both families: 10.5.34.0-24&fd00:5:0:22::-64.
	if v4, v6, both := strings.Cut(name, "&"); both {
		if name = v4; v4 == "0.0.0.0-0" {
			name = strings.ReplaceAll(v6, ":", ".")
		}
	}
	return ParseSubnetKey(name)
}

// Shorten returns s if it has at most so many bytes, and otherwise as many whole characters as fit in them with "…" at
// their end.
func Shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	const end = "…"
	return strings.ToValidUTF8(s[:max(0, most-len(end))], "") + end
}

// Find returns the network with the given name, and reports whether there is one.
func (s NetworkSet) Find(name string) (Network, bool) {
	return find(s.Networks, func(n Network) bool { return n.Name == name })
}

// Deletion returns the record of a network's deletion, and reports whether there is one.
func (s NetworkSet) Deletion(name string) (Deletion, bool) {
	return find(s.Deleted, func(d Deletion) bool { return d.Network == name })
}

// Unusable returns why a network's record cannot be used, and reports whether that is so. The network has not ended
// then: its record is there.
func (s NetworkSet) Unusable(name string) (reason string, unusable bool) {
	bad, unusable := find(s.Bad, func(b BadRecord) bool { return name != "" && b.Network == name })
	return bad.Reason, unusable
}

func find[T any](all []T, is func(T) bool) (found T, ok bool) {
	if i := slices.IndexFunc(all, is); i >= 0 {
		return all[i], true
	}
	return found, false
}
