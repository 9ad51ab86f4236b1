package command

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
)

// backendType returns the "type" of a backend object.
func backendType(object json.RawMessage) string {
	var head struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(object, &head) != nil || head.Type == "" {
		return "?"
	}
	return head.Type
}

// backendOptions returns a backend object without its type: values as compact JSON, strings
// without quotes.
func backendOptions(object json.RawMessage) map[string]string {
	var members map[string]json.RawMessage
	if json.Unmarshal(object, &members) != nil {
		return nil
	}
	options := map[string]string{}
	for name, value := range members {
		var text string
		switch {
		case name == "type":
		case json.Unmarshal(value, &text) == nil && string(value) != "null":
			options[name] = text
		default:
			options[name] = string(value)
		}
	}
	return options
}

func backendPairs(object json.RawMessage) []cli.Pair {
	list := []cli.Pair{{"Backend", backendType(object)}}
	options := backendOptions(object)
	for _, name := range slices.Sorted(maps.Keys(options)) {
		list = append(list, cli.Pair{"  " + name, options[name]})
	}
	return list
}

func family(p netip.Prefix) string {
	if p.Addr().Is6() {
		return "ipv6"
	}
	return "ipv4"
}

// describePool returns a text such as "10.5.0.0/16, a /24 each, from 10.5.1.0 to 10.5.255.0".
func describePool(p api.Pool) string {
	text := p.Prefix.String()
	if p.SubnetLen > 0 {
		text += fmt.Sprintf(", a /%d each", p.SubnetLen)
	}
	if p.Min.IsValid() && p.Max.IsValid() {
		text += fmt.Sprintf(", from %s to %s", p.Min, p.Max)
	}
	return text
}

func poolPairs(pools []api.Pool) []cli.Pair {
	var list []cli.Pair
	for _, p := range pools {
		name := strings.Replace(family(p.Prefix), "ip", "IP", 1)
		list = append(list, cli.Pair{name, describePool(p)})
	}
	return list
}

func poolPrefixes(pools []api.Pool) string {
	var list []netip.Prefix
	for _, p := range pools {
		list = append(list, p.Prefix)
	}
	return cli.Join(list, ", ")
}

func firstAddr(list []netip.Addr) string {
	if len(list) == 0 {
		return "-"
	}
	return list[0].String()
}

func firstSubnet(list []netip.Prefix) string {
	if len(list) == 0 {
		return "-"
	}
	return list[0].String()
}
