package foreign

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// never and always give the same answer for every flow.
func never(f flow) (extent, flow)  { return nothing, f }
func always(f flow) (extent, flow) { return wholeFlow, f }
func cannotTell(f flow) (extent, flow) {
	return indeterminate, f
}

// not returns the opposite of a condition, where the rest of a part can be determined.
func not(c condition) condition {
	return func(f flow) (extent, flow) {
		a, part := c(f)
		switch a {
		case wholeFlow:
			return nothing, f
		case nothing:
			return wholeFlow, f
		case partOfFlow:
			if rest, ok := f.without(part); ok {
				return partOfFlow, rest
			}
		}
		return indeterminate, f
	}
}

// and matches what two conditions match.
func and(a, b condition) condition {
	return func(f flow) (extent, flow) {
		first, part := a(f)
		if first == nothing || first == indeterminate {
			return first, f
		}
		second, part := b(part)
		if second == nothing {
			return nothing, f
		}
		return lessCertain(first, second), part
	}
}

// source matches packets whose source is in one of the prefixes, destination those whose destination is.
func source(prefixes ...netip.Prefix) condition      { return addressIn(false, prefixes) }
func destination(prefixes ...netip.Prefix) condition { return addressIn(true, prefixes) }

func addressIn(dst bool, prefixes []netip.Prefix) condition {
	return func(f flow) (extent, flow) {
		have := f.src
		if dst {
			have = f.dst
		}
		result, narrower := nothing, f
		var parts []string
		for _, p := range prefixes {
			switch {
			case p.Addr().Is6() != f.is6() || !p.Overlaps(have):
				continue
			case covers(p, have):
				return wholeFlow, f
			// The other end's pool contains this host's subnet, but the other end is never in that subnet.
			case dst != f.inbound && covers(f.local, p):
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
			narrower.narrowed = append(slices.Clone(f.narrowed), direction+strings.Join(parts, ", "))
		}
		return result, narrower
	}
}

// arrivesOn matches by the device a packet arrives on, leavesOn by the one it leaves by; "eth+" and "eth*" match all
// names with that beginning.
func arrivesOn(names ...string) condition {
	return func(f flow) (extent, flow) { return device(f.in, names), f }
}

func leavesOn(names ...string) condition {
	return func(f flow) (extent, flow) { return device(f.out, names), f }
}

func device(have string, names []string) extent {
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
	return nothing
}

// narrowTo matches some of every flow; what describes them in words.
func narrowTo(what string) condition {
	return func(f flow) (extent, flow) {
		if slices.Contains(f.narrowed, what) {
			return wholeFlow, f
		}
		f.narrowed = append(slices.Clone(f.narrowed), what)
		return partOfFlow, f
	}
}

// numberIn matches packets that have one of the numbers.
func numberIn(field func(*flow) *numbers, set numbers) condition {
	return func(f flow) (extent, flow) {
		have := field(&f)
		shared := have.with(set)
		switch {
		case len(shared) == 0:
			return nothing, f
		case shared.equal(*have):
			return wholeFlow, f
		}
		narrower := f
		*field(&narrower) = shared
		return partOfFlow, narrower
	}
}

// connState matches by the packet's connection tracking state. The packets of a flow are the first of their
// connections.
func connState(names ...string) condition {
	for _, name := range names {
		switch strings.ToLower(name) {
		case "new":
			return always
		case "established":
			// A host's packets may be answers if it sends from the port it receives at.
			return func(f flow) (extent, flow) {
				if f.host != nil && f.host.answers {
					return indeterminate, f
				}
				return nothing, f
			}
		case "related", "invalid", "dnat", "snat":
		default: // for example untracked, which a rule in raw may have made them
			return cannotTell
		}
	}
	return never
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
		return nothing, f
	}
}

func containerTypeIn(names []string) condition {
	result := condition(never)
	for _, name := range names {
		switch strings.ToLower(name) {
		case "unicast":
			return always
		case "local", "broadcast", "multicast", "anycast", "blackhole", "unreachable", "prohibit", "throw", "nat",
			"xresolve", "unspec":
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
	return numberIn(func(f *flow) *numbers { return &f.protocols }, set)
}

// portIs matches by the destination port: "8472", "8000:9000", "8000-9000".
func portIs(list []string) condition {
	set, ok := parsedNumbers(list, noName)
	if !ok {
		return cannotTell
	}
	return numberIn(func(f *flow) *numbers { return &f.ports }, set)
}

// sourcePortIs matches by the source port.
func sourcePortIs(list []string) condition {
	set, ok := parsedNumbers(list, noName)
	if !ok {
		return cannotTell
	}
	return numberIn(func(f *flow) *numbers { return &f.sourcePorts }, set)
}

// icmpTypes returns the types of ICMP that containers depend on, by the names that nft prints: echo requests, and
// errors. Hosts drop many of the other types by habit.
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
	c := numberIn(func(f *flow) *numbers { return &f.icmpTypes }, set)
	if len(codes) > 0 {
		c = and(c, narrowTo("code "+strings.Join(codes, ", ")))
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
