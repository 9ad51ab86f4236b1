package netfilter

import (
	"regexp"
	"strconv"
	"strings"
)

// countedLine matches a line of iptables-save -c: "[12:840] -A FORWARD -j DROP" or ":FORWARD DROP [12:840]".
var countedLine = regexp.MustCompile(`^(?:\[(\d+):\d+\] (-A .*)|(:(\S+) \S+) \[(\d+):\d+\])$`)

// parseCounted parses the output of iptables-save -c. It is ParseSave for the rules.
func parseCounted(text string) (map[string]Table, error) {
	var plain []string
	rules, policies := map[string][]uint64{}, map[string]map[string]uint64{}
	table := ""
	for line := range strings.SplitSeq(text, "\n") {
		m := countedLine.FindStringSubmatch(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
			policies[table] = map[string]uint64{}
		case m == nil:
		case m[2] != "":
			n, _ := strconv.ParseUint(m[1], 10, 64) // 0 for a number that is too large
			rules[table], line = append(rules[table], n), m[2]
		case policies[table] != nil:
			policies[table][m[4]], _ = strconv.ParseUint(m[5], 10, 64)
		}
		plain = append(plain, line)
	}
	out, err := ParseSave(strings.Join(plain, "\n"))
	for name, t := range out {
		if len(t.Rules) == len(rules[name]) {
			t.Packets, t.PolicyPackets = rules[name], policies[name]
			out[name] = t
		}
	}
	return out, err
}
