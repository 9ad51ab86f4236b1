package kernel

import (
	"encoding/json"
	"slices"

	"github.com/lenonet/leno/backend"
)

// Arrivals returns backend.Arrivals, and each of the network's devices that exists in the network namespace of the
// calling thread; see backend.LinkNames.
func Arrivals(network, underlay string, backends ...json.RawMessage) []string {
	links := backend.Arrivals(network, underlay, backends...)
	for _, link := range backend.LinkNames(network) {
		if slices.Contains(links, link) {
			continue
		}
		if _, err := Sysctl("ipv4", "conf", link, "forwarding"); err == nil {
			links = append(links, link)
		}
	}
	return links
}
