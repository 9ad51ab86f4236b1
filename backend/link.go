package backend

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

const (
	aliasPrefix       = "leno network "
	otherFamilyAlias  = ", second device"
	otherFamilySuffix = "~2"
	aliasB            = ", other device"
	suffixB           = "~b"
)

// LinkAlias returns the alias set on a network's device (IFLA_IFALIAS, shown by `ip link`). It
// identifies the device after another program renamed it. Like the name, it must never change.
func LinkAlias(network string) string { return aliasPrefix + network }

// OtherFamilyLinkAlias returns the alias of a network's device for the other address family; see OtherFamilyLinkName.
func OtherFamilyLinkAlias(network string) string { return LinkAlias(network) + otherFamilyAlias }

// LinkAliasB returns the alias of a network's device b; see LinkNameB.
func LinkAliasB(network string) string { return LinkAlias(network) + aliasB }

// NetworkOfAlias returns the network one of whose devices has the alias. ok is false for any other alias. Pure.
func NetworkOfAlias(alias string) (network string, ok bool) {
	network, ok = strings.CutPrefix(alias, aliasPrefix)
	return strings.TrimSuffix(strings.TrimSuffix(network, otherFamilyAlias), aliasB), ok
}

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
	return LinkPrefix + network[:4] + "~" + linkHash(network)
}

// OtherFamilyLinkName returns the name of a network's device for the other address family: LinkName and "~2", as in
// leno-default~2. If that is longer than 15 bytes, the name is "leno-", the first two bytes of the
// network's name, '~', the hash as in LinkName, and "~2". The vxlan backend keeps such a device
// where hosts of the network run flannel and receive packets over the address family that this
// host's first device does not send over. Pure. The result must never change.
func OtherFamilyLinkName(network string) string {
	return suffixedLinkName(network, otherFamilySuffix)
}

// LinkNameB returns the name of a network's device b: LinkName and "~b", as in leno-default~b, shortened like
// OtherFamilyLinkName. A network that is switched from one backend to another has devices a, with the name LinkName,
// and b until the switch is complete, and then the one that the new backend uses. Pure. The result must never change.
func LinkNameB(network string) string { return suffixedLinkName(network, suffixB) }

// BridgeName returns the name of the bridge that leno-cni makes for a network unless its configuration names one. It
// has at most 15 bytes.
func BridgeName(network string) string {
	return "cni-" + strings.TrimPrefix(LinkName(network), LinkPrefix)
}

// LinkNames returns the names of all devices that a network may have.
func LinkNames(network string) []string {
	return []string{LinkName(network), OtherFamilyLinkName(network), LinkNameB(network)}
}

func suffixedLinkName(network, suffix string) string {
	if name := LinkPrefix + network + suffix; len(name) <= maxLinkName {
		return name
	}
	return LinkPrefix + network[:2] + "~" + linkHash(network) + suffix
}

// linkHash returns 25 bits of a hash of the network's name as 5 characters.
func linkHash(network string) string {
	sum := sha256.Sum256([]byte(network))
	return strings.ToLower(base32.HexEncoding.EncodeToString(sum[:]))[:5]
}
