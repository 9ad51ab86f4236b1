package foreign

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// matchNone and matchAll give the same answer for every flow.
func matchNone(f flow) (extent, flow) { return noPart, f }
func matchAll(f flow) (extent, flow)  { return wholeFlow, f }
func matchUnknown(f flow) (extent, flow) {
	return indeterminate, f
}

// negate returns the opposite of a condition, where the rest of a part can be determined.
func negate(c condition) condition {
	return func(f flow) (extent, flow) {
		a, part := c(f)
		switch a {
		case wholeFlow:
			return noPart, f
		case noPart:
			return wholeFlow, f
		case partOfFlow:
			if rest, ok := f.subtract(part); ok {
				return partOfFlow, rest
			}
		}
		return indeterminate, f
	}
}

// matchBoth matches what two conditions match.
func matchBoth(a, b condition) condition {
	return func(f flow) (extent, flow) {
		first, part := a(f)
		if first == noPart || first == indeterminate {
			return first, f
		}
		second, part := b(part)
		if second == noPart {
			return noPart, f
		}
		return lessCertain(first, second), part
	}
}

// addressIn matches packets whose source, or with dst whose destination, is in one of the prefixes.
func addressIn(dst bool, prefixes ...netip.Prefix) condition {
	return func(f flow) (extent, flow) {
		have := f.src
		if dst {
			have = f.dst
		}
		result, narrower := noPart, f
		var parts []string
		for _, p := range prefixes {
			switch {
			case p.Addr().Is6() != f.is6() || !p.Overlaps(have):
				continue
			case isCovering(p, have):
				return wholeFlow, f
			// The other end's pool contains this host's subnet, but the other end is never in that subnet.
			case dst != f.inbound && isCovering(f.local, p):
				continue
			}
			result = partOfFlow
			parts = append(parts, p.String())
			if dst {
				narrower.dst = p
			} else {
				narrower.src = p
			}
		}
		if len(parts) > 1 { // which together form no single prefix
			narrower = f
			direction := map[bool]string{true: "to ", false: "from "}[dst]
			narrower.restrictions = append(slices.Clone(f.restrictions), direction+strings.Join(parts, ", "))
		}
		return result, narrower
	}
}

// inDevice matches by the device a packet arrives on, leavesOn by the one it leaves by; "eth+" and "eth*" match all
// names with that beginning.
func inDevice(names ...string) condition {
	return func(f flow) (extent, flow) { return matchDevice(f.in, names), f }
}

func outDevice(names ...string) condition {
	return func(f flow) (extent, flow) { return matchDevice(f.out, names), f }
}

func matchDevice(have string, names []string) extent {
	for _, name := range names {
		prefix, open := strings.CutSuffix(name, "+")
		if !open {
			prefix, open = strings.CutSuffix(name, "*")
		}
		switch {
		case open && prefix == "":
			return wholeFlow
		case have == "":
			return indeterminate
		case have == name, open && strings.HasPrefix(have, prefix):
			return wholeFlow
		}
	}
	return noPart
}

// narrowTo matches some of every flow; what describes them in words.
func narrowTo(what string) condition {
	return func(f flow) (extent, flow) {
		if slices.Contains(f.restrictions, what) {
			return wholeFlow, f
		}
		f.restrictions = append(slices.Clone(f.restrictions), what)
		return partOfFlow, f
	}
}

// numberIn matches packets that have one of the numbers.
func numberIn(field func(*flow) *numbers, set numbers) condition {
	return func(f flow) (extent, flow) {
		have := field(&f)
		shared := have.intersect(set)
		switch {
		case len(shared) == 0:
			return noPart, f
		case shared.equal(*have):
			return wholeFlow, f
		}
		narrower := f
		*field(&narrower) = shared
		return partOfFlow, narrower
	}
}

// connState matches by the packet's connection tracking state. The packets of a flow are the first of their
// connections, or answers to those.
func connState(names ...string) condition {
	first, answers := firstState(names), answerState(names)
	return func(f flow) (extent, flow) {
		if f.isAnswer {
			return answers, f
		}
		return first(f)
	}
}

// answerState returns for which answers one of the states holds. They are established, unless they come another way
// than the kernel expects, or a rule keeps it from tracking them.
func answerState(names []string) extent {
	out := noPart
	for _, name := range names {
		switch strings.ToLower(name) {
		case "established":
			return wholeFlow
		case "new", "related", "dnat", "snat":
		default: // invalid, untracked
			out = indeterminate
		}
	}
	return out
}

func firstState(names []string) condition {
	if slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, "new") }) {
		return matchAll
	}
	for _, name := range names {
		switch strings.ToLower(name) {
		case "established":
			// A host's packets may be answers if it sends from the port it receives at.
			return func(f flow) (extent, flow) {
				if f.host != nil && f.host.answers {
					return indeterminate, f
				}
				return noPart, f
			}
		case "related", "invalid", "dnat", "snat":
		default: // for example untracked, which a rule in raw may have made them
			return matchUnknown
		}
	}
	return matchNone
}

// addressTypeIn matches by the type that the kernel's routing gives an address, of the destination or of the source.
// This host's own address is local and that of another host is unicast. Addresses of containers are of other types than
// those that rules ask for.
func addressTypeIn(dst bool, names ...string) condition {
	ofContainer := containerTypeIn(names)
	return func(f flow) (extent, flow) {
		if f.host == nil {
			return ofContainer(f)
		}
		kind := "unicast"
		if dst == f.inbound {
			kind = "local"
		}
		if slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, kind) }) {
			return wholeFlow, f
		}
		return noPart, f
	}
}

func containerTypeIn(names []string) condition {
	result := condition(matchNone)
	for _, name := range names {
		switch strings.ToLower(name) {
		case "unicast":
			return matchAll
		case "local", "broadcast", "multicast", "anycast", "blackhole", "unreachable", "prohibit", "throw", "nat",
			"xresolve", "unspec":
		default:
			result = matchUnknown
		}
	}
	return result
}

// protocolIs matches packets of one of the protocols.
func protocolIs(names ...string) condition {
	set, ok := parseNumbers(names, protocolNumber)
	if !ok {
		return matchUnknown
	}
	return numberIn(func(f *flow) *numbers { return &f.protocols }, set)
}

// portIs matches by the destination port: "8472", "8000:9000", "8000-9000".
func portIs(list []string) condition {
	set, ok := parseNumbers(list, noName)
	if !ok {
		return matchUnknown
	}
	return numberIn(func(f *flow) *numbers { return &f.ports }, set)
}

// sourcePortIs matches by the source port.
func sourcePortIs(list []string) condition {
	set, ok := parseNumbers(list, noName)
	if !ok {
		return matchUnknown
	}
	return numberIn(func(f *flow) *numbers { return &f.sourcePorts }, set)
}

// icmpTypes returns the types of ICMP that containers depend on, by the names that nft prints: echo requests, and
// errors. Hosts drop many of the other types by habit. Echo replies matter to this host alone.
func icmpTypes(v6 bool) map[string]int {
	if v6 {
		return map[string]int{
			"destination-unreachable": 1,
			"packet-too-big":          2,
			"time-exceeded":           3,
			"parameter-problem":       4,
			"echo-request":            128,
		}
	}
	return map[string]int{"destination-unreachable": 3, "echo-request": 8, "time-exceeded": 11, "parameter-problem": 12}
}

// icmpTypeIs matches by the type of ICMP: "8", "3/4", "echo-request".
func icmpTypeIs(v6 bool, list []string) condition {
	known := icmpTypes(v6)
	reply := 0
	if v6 {
		reply = 129
	}
	isReply := false
	var wanted, codes []string
	for _, item := range list {
		if item == "any" || item == "255" {
			return matchAll
		}
		kind, _, hasCode := strings.Cut(item, "/")
		n, err := strconv.Atoi(kind)
		isReply = isReply || kind == "echo-reply" || err == nil && n == reply
		for name, number := range known {
			if name == kind || err == nil && n == number {
				wanted = append(wanted, strconv.Itoa(number))
				if hasCode {
					codes = append(codes, item)
				}
			}
		}
	}
	c := condition(matchNone)
	if set, ok := parseNumbers(wanted, noName); ok {
		c = numberIn(func(f *flow) *numbers { return &f.icmpTypes }, set)
	}
	if len(codes) > 0 {
		c = matchBoth(c, narrowTo("code "+strings.Join(codes, ", ")))
	}
	return func(f flow) (extent, flow) {
		if f.icmpTypes.equal(oneNumber(reply)) {
			if isReply {
				return wholeFlow, f
			}
			return noPart, f
		}
		return c(f)
	}
}

// tcpFlags matches the first packet of a connection, which has only the flag SYN: mask and set are as iptables lists
// them, "FIN,SYN,RST,ACK" and "SYN".
func tcpFlags(mask, set string) condition {
	asked := strings.Contains(mask, "SYN") || mask == "ALL"
	result := noPart
	if set == "SYN" && asked || set == "NONE" && !asked {
		result = wholeFlow
	}
	return func(f flow) (extent, flow) {
		if f.isAnswer {
			return indeterminate, f
		}
		return result, f
	}
}
