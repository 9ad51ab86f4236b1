package flannel

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lenonet/leno/registry"
	format "github.com/lenonet/leno/registry/flannel"
)

// member is one setting of flannel's backends.
type member struct {
	option string // leno's, "" for none
	other  int    // with option: flannel's default, if leno must not use the same number
	note   string // without option: why it is not carried over
}

const ownMTU = "each agent works the MTU out of the device that sends, see `leno network show`"

// members returns the settings of each backend that both flannel and leno have.
func members() map[string]map[string]member {
	windows := member{note: "it is for Windows"}
	return map[string]map[string]member{
		"vxlan": {
			"vni":           {option: "vni", other: 1},
			"port":          {option: "port"},
			"gbp":           {option: "gbp"},
			"directrouting": {option: "direct_routing"},
			"learning":      {note: "leno's devices never learn, every peer has an entry of its own"},
			"mtu":           {note: ownMTU},
			"macprefix":     windows,
			"name":          windows,
		},
		"host-gw": {},
		"udp":     {"port": {option: "port", other: 8285}},
		"alloc":   {},
	}
}

// alternative returns what leno has instead of one of flannel's other backends.
func alternative(kind string) string {
	switch kind {
	case "wireguard", "ipsec":
		return "leno has no backend that encrypts yet"
	case "ipip":
		return "vxlan does the same for IPv4 and IPv6 with 30 bytes more a packet"
	case "aws-vpc", "gce", "ali-vpc", "tencent-vpc":
		return "with alloc leno gives out the subnets and something else writes the cloud's route table"
	}
	return "leno has none of that kind"
}

// UnsupportedError reports a backend that leno does not have.
type UnsupportedError struct{ Type string }

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("backend %q: %s", e.Type, alternative(e.Type))
}

// backendOf returns the configuration's backend in leno's terms. Values that flannel and leno cannot
// share on a host are changed, so that both can run side by side.
func backendOf(c format.Config) (registry.Backend, []string, error) {
	var notes []string
	given := map[string]json.RawMessage{}
	for name, raw := range c.Backend {
		given[strings.ToLower(name)] = raw
	}
	kind := format.DefaultBackend // despite flannel's documentation
	if raw, ok := given["type"]; ok {
		if err := json.Unmarshal(raw, &kind); err != nil {
			return registry.Backend{}, nil, fmt.Errorf("Backend.Type is %s, not a name", raw)
		}
	} else {
		notes = append(notes, "the configuration names no backend, with which flannel runs udp")
	}
	known, ok := members()[kind]
	if !ok {
		return registry.Backend{}, nil, &UnsupportedError{kind}
	}
	options := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		m, known := known[name]
		switch {
		case name == "type":
		case !known:
			notes = append(notes, fmt.Sprintf("Backend.%s is not carried over: leno's %s has nothing like it", name, kind))
		case m.option == "":
			notes = append(notes, fmt.Sprintf("Backend.%s is not carried over: %s", name, m.note))
		default:
			value, isDefault := settingValue(given[name])
			if _, number := value.(int64); m.other != 0 && !number {
				return registry.Backend{}, nil, fmt.Errorf("%s is %s, not a number", "Backend."+name, given[name])
			}
			if !isDefault {
				options[m.option] = value
			}
		}
	}
	for _, m := range known {
		if m.other != 0 {
			notes = append(notes, otherValue(kind, m, options))
		}
	}
	encoded, err := json.Marshal(options)
	if err != nil {
		return registry.Backend{}, nil, err
	}
	out, err := registry.NewBackend(kind, encoded)
	return out, notes, err
}

// settingValue returns a setting's value; flannel treats 0 and null as the default.
func settingValue(raw json.RawMessage) (value any, isDefault bool) {
	var n int64
	if json.Unmarshal(raw, &n) == nil {
		return n, n == 0
	}
	return raw, false
}

// otherValue gives an option a value next to flannel's.
func otherValue(kind string, m member, options map[string]any) string {
	was := int64(m.other)
	if v, ok := options[m.option].(int64); ok {
		was = v
	}
	now := was + 1
	if limit := map[string]int64{"vni": 1<<24 - 1, "port": 1<<16 - 1}[m.option]; now > limit {
		now = was - 1
	}
	options[m.option] = now
	why := "a host has a VNI on a port once"
	if m.option == "port" {
		why = "a host has a port once, so let it pass between hosts"
	}
	return fmt.Sprintf("%s %s is %d, flannel's is %d: %s, and so both can run", kind, m.option, now, was, why)
}
