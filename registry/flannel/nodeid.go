package flannel

import (
	"encoding/json"

	"github.com/lenonet/leno/registry"
)

// NodeIDOf returns the node id in the value of a lease, whatever else is wrong with the record, or "" if it has none.
func NodeIDOf(value []byte) string {
	var r struct {
		Leno json.RawMessage `json:"leno"`
	}
	if err := json.Unmarshal(value, &r); err != nil {
		return ""
	}
	if len(r.Leno) > 0 {
		return registry.NodeIDOf(r.Leno)
	}
	a, err := ParseAttributes(value)
	if err != nil {
		return ""
	}
	return hostPrefix + a.PublicIPs()[0].String()
}
