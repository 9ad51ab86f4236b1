package transition

import (
	"encoding/json"

	"github.com/lenonet/leno/backend"
)

// Links returns the names of the devices of a network's backends: that of the current one and, during a switch, that of
// the next one. kind and options are those of the network's definition. A backend need not have created its device, and
// host-gw never does.
func Links(network, kind string, options json.RawMessage) []string {
	definition, err := Parse(kind, options)
	if err != nil {
		return []string{backend.LinkName(network)}
	}
	current, _ := definition.Current.Link(network)
	if definition.Next == nil {
		return []string{current}
	}
	next, _ := definition.Next.Link(network)
	return []string{current, next}
}
