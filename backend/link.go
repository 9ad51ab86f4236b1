package backend

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"strings"
)

// LinkAlias is written on the device of a network (IFLA_IFALIAS, `ip link` shows
// it), so that it is known under whatever name somebody gave it. Never to be
// changed, like the name.
func LinkAlias(network string) string { return "leno network " + network }

// LinkPrefix begins the name of every device of ours.
const LinkPrefix = "leno-"

// maxLinkName is IFNAMSIZ less the terminating zero.
const maxLinkName = 15

// LinkName is the name of a network's device: "leno-" and the network's name,
// or, when that is longer than the 15 bytes the kernel allows, four bytes of the
// name, '~' and 25 bits of a hash of the whole of it. No network may be called
// anything with '~', so that a short name never equals a shortened one. Pure,
// and never to be changed: an upgrade finds its device by it.
func LinkName(network string) string {
	if len(LinkPrefix)+len(network) <= maxLinkName {
		return LinkPrefix + network
	}
	sum := sha256.Sum256([]byte(network))
	hash := strings.ToLower(base32.HexEncoding.EncodeToString(sum[:]))[:5]
	return LinkPrefix + network[:4] + "~" + hash
}

// Arrivals are the devices by which packets of other hosts for this host's
// containers come, with a backend of that type and options: the network's own;
// where backends route them plainly, the device between hosts. underlay is that
// one's name, "" when it is not known. Pure.
func Arrivals(network, kind string, options json.RawMessage, underlay string) []string {
	var o struct {
		DirectRouting bool `json:"direct_routing"`
	}
	_ = json.Unmarshal(options, &o) // broken options are reported where they are used
	switch own := LinkName(network); {
	case underlay == "":
		return []string{own}
	case kind == "host-gw":
		return []string{underlay}
	case o.DirectRouting:
		return []string{own, underlay}
	default:
		return []string{own}
	}
}
