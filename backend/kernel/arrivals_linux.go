package kernel

import (
	"encoding/json"
	"slices"

	"github.com/lenonet/leno/backend"
)

// Arrivals returns the devices on which packets from other hosts to this host's containers arrive: the network's own
// device, the underlay device where a backend routes packets directly, and each of the network's devices that exists in
// the network namespace of the calling thread; see backend.LinkNames. backends are the network's backend as an object
// with "type" and, during a switch, the other one. underlay is that device's name, "" if unknown.
func Arrivals(network, underlay string, backends ...json.RawMessage) []string {
	links := definedArrivals(network, underlay, backends)
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

// definedArrivals returns the devices that the backends use, without those that exist only during a switch.
func definedArrivals(network, underlay string, backends []json.RawMessage) []string {
	own, direct := backend.LinkName(network), false
	for i, object := range backends {
		var o struct {
			Type          string `json:"type"`
			DirectRouting bool   `json:"direct_routing"`
		}
		_ = json.Unmarshal(object, &o) // broken options are reported where they are used
		if i == 0 && o.Type == "host-gw" && underlay != "" {
			return []string{underlay}
		}
		direct = direct || o.Type == "host-gw" || o.DirectRouting
	}
	if direct && underlay != "" {
		return []string{own, underlay}
	}
	return []string{own}
}
