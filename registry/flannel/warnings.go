package flannel

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Warnings returns a text for each member and option in a value of ConfigKey that ParseNetwork leaves out because leno
// does not have it, and for a type of the backend that is missing, sorted. It returns none for a value that
// ParseNetwork refuses.
func Warnings(value []byte) (out []string) {
	var all map[string]json.RawMessage
	c, err := ParseConfig(value)
	if err != nil || json.Unmarshal(value, &all) != nil {
		return nil
	}
	for name := range all {
		if reason := omissionOf(name); reason != "" {
			out = append(out, fmt.Sprintf("%s is left out: %s", name, reason))
		}
	}
	kind, named, _ := c.backendType()
	if !named {
		out = append(out, fmt.Sprintf("Backend.Type is missing: leno takes flannel's default, %s", kind))
	}
	known, _ := settings(kind)
	for name := range c.Backend {
		s := find(known, name)
		if s.option != "" || strings.EqualFold(name, "Type") {
			continue
		}
		if s.reason == "" {
			s.reason = fmt.Sprintf("leno's %s has no such option", kind)
		}
		out = append(out, fmt.Sprintf("Backend.%s is left out: %s", name, s.reason))
	}
	slices.Sort(out)
	return out
}

// omissionOf returns why leno's networks have no equivalent of a member of a configuration, "" if they have one.
func omissionOf(member string) string {
	same := func(name string) bool { return strings.EqualFold(name, member) }
	switch {
	case same("EnableNFTables"):
		return "each host chooses between iptables and nftables, see the block firewall of its configuration"
	case slices.ContainsFunc([]string{"EnableIPv4", "EnableIPv6", "Network", "IPv6Network", "SubnetLen", "SubnetMin",
		"SubnetMax", "IPv6SubnetLen", "IPv6SubnetMin", "IPv6SubnetMax", "Backend", lenoMember}, same):
		return ""
	}
	return "leno's networks have no such member"
}
