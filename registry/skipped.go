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
	return BadRecord{Key: Shorten(r.Key, MaxShownKey), Reason: Shorten(r.Reason, MaxShownReason)}
}

// Subnet returns the subnet in the key of a lease or a reservation.
func (r BadRecord) Subnet() (netip.Prefix, error) {
	return ParseSubnetKey(r.Key[strings.LastIndexByte(r.Key, '/')+1:])
}

// Shorten returns s if it has at most so many bytes. Otherwise it returns the whole characters in these bytes, followed
// by "…".
func Shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// Find returns the network with the given name, and reports whether there is one.
func (s NetworkSet) Find(name string) (Network, bool) {
	i := slices.IndexFunc(s.Networks, func(n Network) bool { return n.Name == name })
	if i < 0 {
		return Network{}, false
	}
	return s.Networks[i], true
}

// Deletion returns the record of a network's deletion, and reports whether there is one.
func (s NetworkSet) Deletion(name string) (Deletion, bool) {
	i := slices.IndexFunc(s.Deleted, func(d Deletion) bool { return d.Network == name })
	if i < 0 {
		return Deletion{}, false
	}
	return s.Deleted[i], true
}

// Unusable returns why a network's record cannot be used, and reports whether that is so. The network has not ended
// then: its record is there.
func (s NetworkSet) Unusable(name string) (reason string, unusable bool) {
	i := slices.IndexFunc(s.Bad, func(b BadRecord) bool { return strings.HasSuffix(b.Key, "/networks/"+name) })
	if i < 0 {
		return "", false
	}
	return s.Bad[i].Reason, true
}
