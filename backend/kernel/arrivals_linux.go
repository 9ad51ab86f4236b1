package kernel

import (
	"encoding/json"

	"github.com/lenonet/leno/backend"
)

// Arrivals returns backend.Arrivals, and the network's second and other device where they exist in the
// network namespace of the calling thread; see backend.SecondLinkName and backend.OtherLinkName.
func Arrivals(network, kind string, options json.RawMessage, underlay string) []string {
	links := backend.Arrivals(network, kind, options, underlay)
	for _, link := range []string{backend.SecondLinkName(network), backend.OtherLinkName(network)} {
		if _, err := Sysctl("ipv4", "conf", link, "forwarding"); err == nil {
			links = append(links, link)
		}
	}
	return links
}
