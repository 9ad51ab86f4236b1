package firewall

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// never and always are the answers that hold for every flow.
func never(f flow) (answer, flow)  { return none, f }
func always(f flow) (answer, flow) { return all, f }
func cannotTell(f flow) (answer, flow) {
	return unsure, f
}

// not is the opposite of a condition. Of a part of the flow the rest is no prefix,
// so nothing can be told of it.
func not(c condition) condition {
	return func(f flow) (answer, flow) {
		a, _ := c(f)
		switch a {
		case all:
			return none, f
		case none:
			return all, f
		}
		return unsure, f
	}
}

// source matches packets whose source is in one of the prefixes, destination
// those whose destination is.
func source(prefixes ...netip.Prefix) condition      { return within(false, prefixes) }
func destination(prefixes ...netip.Prefix) condition { return within(true, prefixes) }

func within(dst bool, prefixes []netip.Prefix) condition {
	return func(f flow) (answer, flow) {
		have := f.src
		if dst {
			have = f.dst
		}
		result, narrower := none, f
		for _, p := range prefixes {
			switch {
			case p.Addr().Is6() != f.is6() || !p.Overlaps(have):
				continue
			case covers(p, have):
				return all, f
			// The other end's pool contains this host's subnet, where it is not.
			case dst != f.inbound && covers(f.local, p):
				continue
			case result == some: // two parts are no prefix
				return unsure, f
			}
			result = some
			if dst {
				narrower.dst = p
			} else {
				narrower.src = p
			}
		}
		return result, narrower
	}
}

// comesBy matches by the device a packet came by, leavesBy by the one it leaves by;
// "eth+" and "eth*" are all that begin so.
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

// narrowing matches some of every flow: those of a protocol or a port. Two that
// say different things of the same do not contradict each other here, which only
// makes fewer rules sure.
func narrowing(what string) condition {
	return func(f flow) (answer, flow) {
		f.narrowed = append(slices.Clone(f.narrowed), what)
		return some, f
	}
}

// states matches by what connection tracking says of the packet. The flow's are
// the first of their connections.
func states(names ...string) condition {
	for _, name := range names {
		switch strings.ToLower(name) {
		case "new":
			return always
		case "established":
			// Of a host that sends from the port it receives at, packets may be answers.
			return func(f flow) (answer, flow) {
				if f.host != nil && f.host.answers {
					return unsure, f
				}
				return none, f
			}
		case "related", "invalid", "dnat", "snat":
		default: // untracked, say, which a rule in raw may have made them
			return cannotTell
		}
	}
	return never
}

// addressType matches by what the kernel's routing says of an address. Those of
// containers are of others.
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
	return func(f flow) (answer, flow) {
		switch {
		case f.host == nil:
			return narrowing("protocol " + strings.Join(names, ","))(f)
		case slices.Contains(names, "udp") || slices.Contains(names, "17"):
			return all, f
		}
		return none, f
	}
}

// ofProtocol is a condition about what only packets of a protocol have.
func ofProtocol(name string, c condition) condition {
	return func(f flow) (answer, flow) {
		if f.host == nil {
			return c(f)
		}
		if name != "udp" && name != "th" {
			return none, f
		}
		return unsure, f
	}
}

// portIs matches by the destination's port: "8472", "8000:9000", "8000-9000".
func portIs(word string, list []string) condition {
	return func(f flow) (answer, flow) {
		if f.host == nil {
			return narrowing(word + " " + strings.Join(list, ","))(f)
		}
		result := none
		for _, item := range list {
			first, last, isRange := strings.Cut(strings.ReplaceAll(item, "-", ":"), ":")
			if !isRange {
				last = first
			}
			low, err := strconv.Atoi(first)
			high, err2 := strconv.Atoi(last)
			switch {
			case err != nil || err2 != nil:
				result = unsure
			case low <= f.host.port && f.host.port <= high:
				return all, f
			}
		}
		return result, f
	}
}
