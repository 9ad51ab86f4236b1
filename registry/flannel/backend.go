package flannel

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/lenonet/leno/registry"
)

// Types that flannel and leno have in common. Their options are listed by settings.
const (
	vxlan  = "vxlan"
	hostGW = "host-gw"
	udp    = "udp"
	alloc  = "alloc"
)

// setting is one member of a configuration's Backend.
type setting struct {
	name   string // flannel's, "VNI"
	option string // leno's, "vni"; "" for none

	// With option: flannel's default, an int64 or a bool, and the highest number.
	preset any
	most   int64
	// zeroIsPreset means that flannel takes an explicit 0 for the default.
	zeroIsPreset bool

	// overhead, if not 0, makes the option one that each host may lack: flannel's value is the underlay's MTU, leno's is
	// that of the overlay, which is less by this number of bytes, and 0 stands for none.
	overhead int64

	reason string // without option: why leno needs none
}

// settings returns the settings of a backend that flannel and leno have in common; ok is false for another backend.
func settings(kind string) (list []setting, ok bool) {
	const (
		highestVNI  = 1<<24 - 1
		highestPort = 1<<16 - 1
		neverLearns = "leno's device never learns, because each peer has an entry of its own"
		windows     = "it is for Windows, where leno does not run"
	)
	switch kind {
	case vxlan:
		return []setting{
			{name: "VNI", option: "vni", preset: int64(1), most: highestVNI},
			{name: "Port", option: "port", preset: int64(8472), most: highestPort, zeroIsPreset: true},
			{name: "GBP", option: "gbp", preset: false},
			{name: "DirectRouting", option: "direct_routing", preset: false},
			{name: "Learning", reason: neverLearns},
			{name: "MTU", option: "mtu", most: highestPort, zeroIsPreset: true, overhead: 50},
			{name: "MacPrefix", reason: windows},
			{name: "Name", reason: windows},
		}, true
	case udp:
		return []setting{{name: "Port", option: "port", preset: int64(8285), most: highestPort}}, true
	case hostGW, alloc:
		return nil, true
	}
	return nil, false
}

// parse returns a setting's value, an int64 or a bool; set is false where flannel uses its default.
func (s setting) parse(raw json.RawMessage) (value any, set bool, err error) {
	if string(raw) == "null" { // encoding/json leaves the default in place
		return nil, false, nil
	}
	if _, isBool := s.preset.(bool); isBool {
		var b bool
		if json.Unmarshal(raw, &b) != nil {
			return nil, false, fmt.Errorf("is %s, not true or false", raw)
		}
		return b, true, nil
	}
	var n int64
	if json.Unmarshal(raw, &n) != nil {
		return nil, false, fmt.Errorf("is %s, not a number", raw)
	}
	if n == 0 && s.zeroIsPreset {
		return n, false, nil
	}
	return n - s.overhead, true, nil
}

// Translation is a configuration's Backend in leno's terms. Settings that leno does not have are left out.
type Translation struct {
	Type     string
	Options  map[string]any // leno's options that are set, int64 or bool, for example "vni"
	Defaults map[string]any // flannel's defaults of all options
}

// UnsupportedError reports a backend that leno does not have.
type UnsupportedError struct{ Type string }

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("backend %q: %s", e.Type, alternative(e.Type))
}

// alternative returns what leno has instead of one of flannel's other backends.
func alternative(kind string) string {
	switch kind {
	case "wireguard", "ipsec":
		return "leno has none that understands flannel's; its own wireguard encrypts between hosts that run leno"
	case "ipip":
		return "vxlan does the same for IPv4 and IPv6 with 30 bytes more a packet"
	case "aws-vpc", "gce", "ali-vpc", "tencent-vpc":
		return "with alloc leno gives out the subnets and something else writes the cloud's route table"
	}
	return "leno has none of that kind"
}

// backendType returns the type in lower case, which is how flannel looks it up. named is false for the default.
func (c Config) backendType() (kind string, named bool, err error) {
	for name, raw := range c.Backend {
		if !strings.EqualFold(name, "Type") {
			continue
		}
		if json.Unmarshal(raw, &kind) != nil {
			return "", false, fmt.Errorf("Backend.Type is %s, not a name", raw)
		}
		return strings.ToLower(kind), true, nil
	}
	return DefaultBackend, false, nil // despite flannel's documentation
}

// TranslateBackend translates Backend. The error is an *UnsupportedError for a type that leno does not have. Ranges of
// numbers are not checked.
func (c Config) TranslateBackend() (Translation, error) {
	kind, _, err := c.backendType()
	if err != nil {
		return Translation{}, err
	}
	known, ok := settings(kind)
	if !ok {
		return Translation{}, &UnsupportedError{kind}
	}
	t := Translation{Type: kind, Options: map[string]any{}, Defaults: map[string]any{}}
	for _, s := range known {
		if s.option != "" && s.preset != nil {
			t.Defaults[s.option] = s.preset
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Backend)) {
		s := find(known, name)
		if s.option == "" {
			continue
		}
		value, set, err := s.parse(c.Backend[name])
		if err != nil {
			return Translation{}, fmt.Errorf("%s %w", "Backend."+strings.ToLower(name), err)
		}
		if set {
			t.Options[s.option] = value
		}
	}
	return t, nil
}

// find returns the setting of a name in any case, the zero setting if there is none.
func find(known []setting, name string) setting {
	for _, s := range known {
		if strings.EqualFold(s.name, name) {
			return s
		}
	}
	return setting{}
}

// backend returns leno's backend with all options that flannel has, because leno's defaults may be others.
func (t Translation) backend() (registry.Backend, error) {
	options := maps.Clone(t.Defaults)
	maps.Copy(options, t.Options)
	known, _ := settings(t.Type)
	for _, s := range known {
		if n, isNumber := options[s.option].(int64); isNumber && (n < 1 || n > s.most) {
			return registry.Backend{}, fmt.Errorf("%s %d is not within %d..%d", "Backend."+s.name, n+s.overhead, 1+s.overhead,
				s.most+s.overhead)
		}
	}
	encoded, err := json.Marshal(options)
	if err != nil {
		return registry.Backend{}, err
	}
	return registry.NewBackend(t.Type, encoded)
}

// formatBackend returns leno's backend as the Backend of a configuration. A type that flannel or this package does not
// know has no options.
func formatBackend(b registry.Backend) (map[string]json.RawMessage, error) {
	kind, err := json.Marshal(b.Type)
	if err != nil {
		return nil, err
	}
	out := map[string]json.RawMessage{"Type": kind}
	options := members(b)
	known, _ := settings(b.Type)
	for _, s := range known {
		raw, given := options[s.option]
		if s.option == "" || !given {
			continue
		}
		if s.overhead != 0 {
			var n int64
			if json.Unmarshal(raw, &n) != nil {
				return nil, fmt.Errorf("option %s of backend %q is %s", s.option, b.Type, raw)
			}
			if n != 0 {
				out[s.name] = strconv.AppendInt(nil, n+s.overhead, 10)
			}
			continue
		}
		if _, set, err := s.parse(raw); err != nil || !set {
			return nil, fmt.Errorf("option %s of backend %q is %s", s.option, b.Type, raw)
		}
		out[s.name] = raw
	}
	return out, nil
}

// members returns the members of leno's backend object.
func members(b registry.Backend) map[string]json.RawMessage {
	var all map[string]json.RawMessage
	if json.Unmarshal(b.Object, &all) != nil {
		return nil
	}
	return all
}

// number returns a whole number of leno's backend object, such as its vni or port. Without it, or where it is not a
// number, it returns flannel's default.
func number(b registry.Backend, option string) int64 {
	var n *int64
	if json.Unmarshal(members(b)[option], &n) == nil && n != nil {
		return *n
	}
	known, _ := settings(b.Type)
	for _, s := range known {
		if preset, isNumber := s.preset.(int64); isNumber && s.option == option {
			return preset
		}
	}
	return 0
}

// numbers returns the settings of a backend that all hosts must have the same number of: VNI and Port.
func numbers(kind string) (out []setting) {
	known, _ := settings(kind)
	for _, s := range known {
		if _, isNumber := s.preset.(int64); isNumber {
			out = append(out, s)
		}
	}
	return out
}

// valueIn returns a setting's value in leno's backend object, an int64 or a bool, and otherwise flannel's default.
func (s setting) valueIn(b registry.Backend) any {
	preset, isBool := s.preset.(bool)
	if !isBool {
		return number(b, s.option)
	}
	value := &preset
	if json.Unmarshal(members(b)[s.option], &value) != nil || value == nil {
		return s.preset
	}
	return *value
}

// text returns a value as flannel's configuration has it, "" if it has none.
func (s setting) text(value any) string {
	n, isNumber := value.(int64)
	switch {
	case value == nil, s.overhead != 0 && n == 0:
		return ""
	case isNumber:
		return strconv.FormatInt(n+s.overhead, 10)
	}
	return fmt.Sprint(value)
}

// Complete returns a network that flannel's operator has configured with what flannel cannot express of the backend, as
// it is in known: leno's own options, and the MTU 0, which stands for none.
func Complete(n, known registry.Network) registry.Network {
	list, _ := settings(n.Backend.Type)
	if !n.Foreign || n.Backend.Type != known.Backend.Type {
		return n
	}
	options := members(n.Backend)
	for option, value := range members(known.Backend) {
		i := slices.IndexFunc(list, func(s setting) bool { return s.option == option })
		if i < 0 || options[option] == nil && list[i].text(list[i].valueIn(known.Backend)) == "" {
			options[option] = value
		}
	}
	encoded, _ := json.Marshal(options) // which always succeeds
	if b, err := registry.NewBackend(n.Backend.Type, encoded); err == nil {
		n.Backend = b
	}
	return n
}

// IsLink reports whether a device has a name that flannel gives: flannel.1 and flannel-v6.1 with vxlan, flannel0 with
// udp.
func IsLink(name string) bool {
	return strings.HasPrefix(name, "flannel.") || strings.HasPrefix(name, "flannel-v6.") || name == "flannel0"
}
