package kernel

import (
	"encoding/json"

	"github.com/lenonet/leno/backend"
)

// Arrivals returns backend.Arrivals, and the network's second device if it exists in the network
// namespace of the calling thread; see backend.SecondLinkName.
func Arrivals(network, kind string, options json.RawMessage, underlay string) []string {
	links := backend.Arrivals(network, kind, options, underlay)
	second := backend.SecondLinkName(network)
	if _, err := Sysctl("ipv4", "conf", second, "forwarding"); err == nil {
		links = append(links, second)
	}
	return links
}
