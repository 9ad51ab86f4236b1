package agent

import (
	"net/netip"
	"slices"
	"strings"
)

// Bounds of what Consul keeps with a service: 64 pairs, keys of letters, digits,
// '_' and '-' up to 128 bytes, values up to 512. Three of the agent, and one that
// the store adds, come to these.
const (
	maxMetaPairs = 60
	maxMetaValue = 512
)

// Keys of the service's meta. Those of what it has in a network stand there for
// all networks, and again for each with the network's name behind.
const (
	versionMeta = "version"
	nodeMeta    = "node"    // the host's name, which is not that of Consul's node where hosts share its agent
	nodeIDMeta  = "node_id" // which agent it is
	networkMeta = "network"
	subnetMeta  = "subnet"
	backendMeta = "backend"
)

// membership is a host's part in one network, as the catalogue shows it.
type membership struct {
	network, backend string
	subnets          []netip.Prefix
}

// catalogued is what the catalogue says of an agent's networks, which are in order:
// a tag for each, by which DNS finds its hosts, and meta to filter by. Of very many
// networks the last have their tags alone.
func catalogued(parts []membership) (tags []string, meta map[string]string) {
	tags, meta = []string{}, map[string]string{}
	var networks, backends, subnets []string
	for _, p := range parts {
		tags = append(tags, p.network)
		networks, backends = append(networks, p.network), append(backends, p.backend)
		var own []string
		for _, s := range p.subnets {
			own = append(own, s.String())
		}
		subnets = append(subnets, own...)
		if suffix := "_" + strings.ReplaceAll(p.network, ".", "_"); meta[backendMeta+suffix] == "" && len(meta)+2 <= maxMetaPairs-5 {
			meta[subnetMeta+suffix], meta[backendMeta+suffix] = list(own), p.backend
		}
	}
	slices.Sort(backends)
	if len(parts) > 0 {
		meta[networkMeta], meta[subnetMeta], meta[backendMeta] = list(networks), list(subnets), list(slices.Compact(backends))
	}
	return tags, meta
}

// list joins as many as a value has room for.
func list(items []string) string {
	out, rest := strings.Join(items, ","), ",..."
	for n := len(items); len(out) > maxMetaValue; {
		n--
		out = strings.Join(items[:n], ",") + rest
	}
	return out
}
