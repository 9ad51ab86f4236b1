package flannel

import (
	"encoding/json"
	"fmt"

	"github.com/lenonet/leno/registry"
	format "github.com/lenonet/leno/registry/flannel"
)

// backendOf returns the configuration's backend in leno's terms. Values that flannel and leno cannot
// share on a host are changed, so that both can run side by side.
func backendOf(c format.Config) (registry.Backend, []string, error) {
	t, err := c.TranslateBackend()
	if err != nil {
		return registry.Backend{}, nil, err
	}
	var notes []string
	if !t.Named {
		notes = append(notes, "the configuration names no backend, with which flannel runs udp")
	}
	for _, d := range t.Dropped {
		notes = append(notes, fmt.Sprintf("Backend.%s is not carried over: %s", d.Name, d.Reason))
	}
	if option, ok := exclusiveOption(t.Type); ok {
		notes = append(notes, otherValue(t, option))
	}
	encoded, err := json.Marshal(t.Options)
	if err != nil {
		return registry.Backend{}, nil, err
	}
	out, err := registry.NewBackend(t.Type, encoded)
	return out, notes, err
}

// exclusiveOption returns the option of which leno and flannel on one host must not use the same number.
func exclusiveOption(kind string) (option string, ok bool) {
	switch kind {
	case "vxlan":
		return "vni", true
	case "udp":
		return "port", true
	}
	return "", false
}

// otherValue gives an option a value next to flannel's, and returns a note about it.
func otherValue(t format.Translation, option string) string {
	was, _ := t.Options[option].(int64)
	if was == 0 {
		was, _ = t.Defaults[option].(int64)
	}
	now := was + 1
	if limit := map[string]int64{"vni": 1<<24 - 1, "port": 1<<16 - 1}[option]; now > limit {
		now = was - 1
	}
	t.Options[option] = now
	why := "a host has a VNI on a port once"
	if option == "port" {
		why = "a host has a port once, so let it pass between hosts"
	}
	return fmt.Sprintf("%s %s is %d, flannel's is %d: %s, and so both can run", t.Type, option, now, was, why)
}
