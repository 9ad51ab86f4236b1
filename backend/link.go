package backend

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"strings"
)

// LinkAlias returns the alias set on a network's device (IFLA_IFALIAS, shown by `ip link`). It
// identifies the device after another program renamed it. Like the name, it must never change.
func LinkAlias(network string) string { return "leno network " + network }

// LinkPrefix begins the name of every leno device.
const LinkPrefix = "leno-"

// maxLinkName is IFNAMSIZ less the terminating zero.
const maxLinkName = 15

// LinkName returns the name of a network's device: "leno-" and the network's name. If that is
// longer than the 15 bytes the kernel allows, the name is "leno-", the first four bytes of the
// network's name, '~' and 25 bits of a hash of the whole name. Network names cannot contain '~', so
// a short name never equals a shortened one. Pure. The result must never change: an upgrade finds
// its device by it.
func LinkName(network string) string {
	if len(LinkPrefix)+len(network) <= maxLinkName {
		return LinkPrefix + network
	}
	sum := sha256.Sum256([]byte(network))
	hash := strings.ToLower(base32.HexEncoding.EncodeToString(sum[:]))[:5]
	return LinkPrefix + network[:4] + "~" + hash
}

// Arrivals returns the devices on which packets from other hosts to this host's containers arrive,
// for a backend of the given type and options: the network's own device, and the underlay device
// where the backend routes packets directly. underlay is that device's name, "" if unknown. Pure.
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
