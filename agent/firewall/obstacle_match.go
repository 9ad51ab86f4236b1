package firewall

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// never and always give the same answer for every flow.
func never(f flow) (answer, flow)  { return none, f }
func always(f flow) (answer, flow) { return all, f }
func cannotTell(f flow) (answer, flow) {
	return unsure, f
}

// not returns the opposite of a condition, where the rest of a part can be determined.
func not(c condition) condition {
	return func(f flow) (answer, flow) {
		a, part := c(f)
		switch a {
		case all:
			return none, f
		case none:
			return all, f
		case some:
			if rest, ok := f.without(part); ok {
				return some, rest
			}
		}
		return unsure, f
	}
}

// both matches what two conditions match.
func both(a, b condition) condition {
	return func(f flow) (answer, flow) {
		first, part := a(f)
		if first == none || first == unsure {
			return first, f
		}
		second, part := b(part)
		if second == none {
			return none, f
		}
		return max2(first, second), part
	}
}

// source matches packets whose source is in one of the prefixes, destination those whose destination is.
func source(prefixes ...netip.Prefix) condition      { return within(false, prefixes) }
func destination(prefixes ...netip.Prefix) condition { return within(true, prefixes) }

func within(dst bool, prefixes []netip.Prefix) condition {
	return func(f flow) (answer, flow) {
		have := f.src
		if dst {
			have = f.dst
		}
		result, narrower := none, f
		var parts []string
		for _, p := range prefixes {
			switch {
			case p.Addr().Is6() != f.is6() || !p.Overlaps(have):
				continue
			case covers(p, have):
				return all, f
			// The other end's pool contains this host's subnet, but the other end is never in that subnet.
			case dst != f.inbound && covers(f.local, p):
				continue
			}
			result = some
			parts = append(parts, p.String())
			if dst {
				narrower.dst = p
			} else {
				narrower.src = p
			}
		}
		if len(parts) > 1 { // which together form no single prefix
			narrower = f
			narrower.narrowed = append(slices.Clone(f.narrowed), map[bool]string{true: "to ", false: "from "}[dst]+strings.Join(parts, ", "))
		}
		return result, narrower
	}
}

// comesBy matches by the device a packet arrives on, leavesBy by the one it leaves by; "eth+" and "eth*" match all
// names with that beginning.
func comesBy(names ...string) condition {
	return func(f flow) (answer, flow) { return device(f.in, names), f }
}

func leavesBy(names ...string) condition {
	return func(f flow) (answer, flow) { return device(f.out, names), f }
}

func device(have string, names []string) answer {
	for _, name := range names {
		prefix, open := strings.CutSuffix(name, "+")
		if !open {
			prefix, open = strings.CutSuffix(name, "*")
		}
		switch {
		case open && prefix == "":
			return all
		case have == "":
			return unsure
		case have == name, open && strings.HasPrefix(have, prefix):
			return all
		}
	}
	return none
}

// narrowing matches some of every flow; what describes them in words.
func narrowing(what string) condition {
	return func(f flow) (answer, flow) {
		if slices.Contains(f.narrowed, what) {
			return all, f
		}
		f.narrowed = append(slices.Clone(f.narrowed), what)
		return some, f
	}
}

// among matches packets that have one of the numbers.
func among(field func(*flow) *numbers, set numbers) condition {
	return func(f flow) (answer, flow) {
		have := field(&f)
		shared := have.with(set)
		switch {
		case len(shared) == 0:
			return none, f
		case shared.equal(*have):
			return all, f
		}
		narrower := f
		*field(&narrower) = shared
		return some, narrower
	}
}

// states matches by the packet's connection tracking state. The packets of a flow are the first of their connections.
func states(names ...string) condition {
	for _, name := range names {
		switch strings.ToLower(name) {
		case "new":
			return always
		case "established":
			// A host's packets may be answers if it sends from the port it receives at.
			return func(f flow) (answer, flow) {
				if f.host != nil && f.host.answers {
					return unsure, f
				}
				return none, f
			}
		case "related", "invalid", "dnat", "snat":
		default: // for example untracked, which a rule in raw may have made them
			return cannotTell
		}
	}
	return never
}

// addressType matches by the type that the kernel's routing gives an address. Addresses of containers are of other
// types.
func addressType(names ...string) condition {
	of := containersType(names)
	return func(f flow) (answer, flow) {
		if f.host != nil {
			return unsure, f
		}
		return of(f)
	}
}

func containersType(names []string) condition {
	result := condition(never)
	for _, name := range names {
		switch strings.ToLower(name) {
		case "unicast":
			return always
		case "local", "broadcast", "multicast", "anycast", "blackhole", "unreachable", "prohibit", "throw", "nat", "xresolve", "unspec":
		default:
			result = cannotTell
		}
	}
	return result
}

// protocolIs matches packets of one of the protocols.
func protocolIs(names ...string) condition {
	set, ok := parsedNumbers(names, protocolNumber)
	if !ok {
		return cannotTell
	}
	return among(func(f *flow) *numbers { return &f.protocols }, set)
}

// portIs matches by the destination port: "8472", "8000:9000", "8000-9000".
func portIs(list []string) condition {
	set, ok := parsedNumbers(list, noName)
	if !ok {
		return cannotTell
	}
	return among(func(f *flow) *numbers { return &f.ports }, set)
}

// sourcePortIs matches by the source port.
func sourcePortIs(list []string) condition {
	set, ok := parsedNumbers(list, noName)
	if !ok {
		return cannotTell
	}
	return among(func(f *flow) *numbers { return &f.sourcePorts }, set)
}

// icmpTypes returns the types of ICMP that containers depend on, by the names that nft prints: echo requests, and
// errors. Hosts drop many of the other types by habit.
func icmpTypes(v6 bool) map[string]int {
	if v6 {
		return map[string]int{"destination-unreachable": 1, "packet-too-big": 2, "time-exceeded": 3, "parameter-problem": 4, "echo-request": 128}
	}
	return map[string]int{"destination-unreachable": 3, "echo-request": 8, "time-exceeded": 11, "parameter-problem": 12}
}

// icmpTypeIs matches by the type of ICMP: "8", "3/4", "echo-request".
func icmpTypeIs(v6 bool, list []string) condition {
	known := icmpTypes(v6)
	var wanted, codes []string
	for _, item := range list {
		if item == "any" || item == "255" {
			return always
		}
		kind, _, hasCode := strings.Cut(item, "/")
		n, err := strconv.Atoi(kind)
		for name, number := range known {
			if name == kind || err == nil && n == number {
				wanted = append(wanted, strconv.Itoa(number))
				if hasCode {
					codes = append(codes, item)
				}
			}
		}
	}
	set, ok := parsedNumbers(wanted, noName)
	if !ok {
		return never
	}
	c := among(func(f *flow) *numbers { return &f.icmpTypes }, set)
	if len(codes) > 0 {
		c = both(c, narrowing("code "+strings.Join(codes, ", ")))
	}
	return c
}

// tcpFlags matches the first packet of a connection, which has only the flag SYN: mask and set are as iptables lists
// them, "FIN,SYN,RST,ACK" and "SYN".
func tcpFlags(mask, set string) condition {
	asked := strings.Contains(mask, "SYN") || mask == "ALL"
	if set == "SYN" && asked || set == "NONE" && !asked {
		return always
	}
	return never
}
