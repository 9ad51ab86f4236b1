package catalog

import (
	"net/netip"
	"slices"
	"strings"
)

// Consul's limits for the meta of a service: 64 pairs, keys of at most 128 bytes from letters, digits, '_' and '-', and
// values of at most 512 bytes. Three pairs describe the agent, and the registry adds one.
const (
	maxMetaPairs = 60
	maxMetaValue = 512
)

// NodeIDMeta is the meta key of the agent's node id.
const NodeIDMeta = "node_id"

// The other meta keys. The last three describe all networks together, and appear again for each network, with the
// network's name as suffix: "subnet" is "10.5.34.0/24,10.6.1.0/24", and "subnet_blue" is "10.5.34.0/24".
const (
	versionMeta = "version"
	nodeMeta    = "node" // the host's name, which is not Consul's node name if hosts share a Consul agent
	networkMeta = "network"
	subnetMeta  = "subnet"
	backendMeta = "backend"
)

// A Membership is a host's part in one network.
type Membership struct {
	Network string
	Backend string // "vxlan"
	Subnets []netip.Prefix
}

// tagsAndMeta returns the tags and the meta for the networks of an agent, which must be sorted. There is a tag for each
// network, by which DNS finds its hosts. With very many networks, the last ones have no meta of their own.
func tagsAndMeta(memberships []Membership) (tags []string, meta map[string]string) {
	tags, meta = []string{}, map[string]string{}
	var backends, subnets []string
	for _, m := range memberships {
		tags, backends = append(tags, m.Network), append(backends, m.Backend)
		var own []string
		for _, s := range m.Subnets {
			own = append(own, s.String())
		}
		subnets = append(subnets, own...)
		suffix := "_" + strings.ReplaceAll(m.Network, ".", "_")
		if meta[backendMeta+suffix] == "" && len(meta)+2 <= maxMetaPairs-5 {
			meta[subnetMeta+suffix], meta[backendMeta+suffix] = list(own), m.Backend
		}
	}
	slices.Sort(backends)
	if len(memberships) > 0 {
		meta[networkMeta] = list(tags)
		meta[subnetMeta] = list(subnets)
		meta[backendMeta] = list(slices.Compact(backends))
	}
	return tags, meta
}

// list joins as many items as fit into a value. If some do not fit, it ends with "...".
func list(items []string) string {
	out, rest := strings.Join(items, ","), ",..."
	for n := len(items); len(out) > maxMetaValue; {
		n--
		out = strings.Join(items[:n], ",") + rest
	}
	return out
}
