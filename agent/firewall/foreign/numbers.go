package foreign

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// numbers is a set of protocols, ports or types of ICMP, sorted and without overlaps; nil contains all numbers.
type numbers []numberRange

type numberRange struct{ first, last int }

// maxNumber is the largest port.
const maxNumber = 65535

func oneNumber(n int) numbers { return numbers{{n, n}} }

// ranges returns n with nil written out as a range.
func (n numbers) ranges() numbers {
	if n == nil {
		return numbers{{0, maxNumber}}
	}
	return n
}

// intersect returns the numbers that are in both, an empty set for none.
func (n numbers) intersect(o numbers) numbers {
	out := numbers{}
	for _, a := range n.ranges() {
		for _, b := range o.ranges() {
			if first, last := max(a.first, b.first), min(a.last, b.last); first <= last {
				out = append(out, numberRange{first, last})
			}
		}
	}
	slices.SortFunc(out, func(a, b numberRange) int { return cmp.Compare(a.first, b.first) })
	return out
}

// subtract returns the numbers that are only in n, an empty set for none.
func (n numbers) subtract(o numbers) numbers {
	rest, next := numbers{}, 0
	for _, r := range o.ranges() {
		if next < r.first {
			rest = append(rest, numberRange{next, r.first - 1})
		}
		next = r.last + 1
	}
	if next <= maxNumber {
		rest = append(rest, numberRange{next, maxNumber})
	}
	return n.intersect(rest)
}

func (n numbers) equal(o numbers) bool { return slices.Equal(n.ranges(), o.ranges()) }

// contains reports whether n contains all of o.
func (n numbers) contains(o numbers) bool { return n == nil || len(o.subtract(n)) == 0 }

// text formats the numbers as "80, 443, 8000-9000", with names for numbers that have one.
func (n numbers) text(name func(int) string) string {
	var out []string
	for _, r := range n {
		text := name(r.first)
		if r.last > r.first {
			text += "-" + name(r.last)
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// parseNumbers parses "80", "8000:9000" and "8000-9000"; names are looked up.
func parseNumbers(list []string, number func(name string) (int, bool)) (numbers, bool) {
	var out numbers
	one := func(text string) (int, bool) {
		if n, err := strconv.Atoi(text); err == nil {
			return n, n >= 0 && n <= maxNumber
		}
		return number(text)
	}
	for _, item := range list {
		first, last, isRange := strings.Cut(strings.ReplaceAll(item, "-", ":"), ":")
		if n, ok := number(item); ok { // "ipv6-icmp"
			first, last, isRange = strconv.Itoa(n), "", false
		}
		if !isRange {
			last = first
		}
		low, ok := one(first)
		high, ok2 := one(last)
		if !ok || !ok2 || low > high {
			return nil, false
		}
		out = append(out, numberRange{low, high})
	}
	slices.SortFunc(out, func(a, b numberRange) int { return cmp.Compare(a.first, b.first) })
	merged := numbers{}
	for _, r := range out {
		if i := len(merged) - 1; i >= 0 && r.first <= merged[i].last+1 {
			merged[i].last = max(merged[i].last, r.last)
		} else {
			merged = append(merged, r)
		}
	}
	return merged, len(merged) > 0
}

func noName(string) (int, bool) { return 0, false }

// Protocols that matter here, by their numbers (IANA).
const (
	protocolICMP   = 1
	protocolTCP    = 6
	protocolUDP    = 17
	protocolICMPv6 = 58
)

// protocolNumbers returns the names that iptables and nft print.
func protocolNumbers() map[string]int {
	return map[string]int{
		"icmp": protocolICMP, "igmp": 2, "ipencap": 4, "tcp": protocolTCP, "udp": protocolUDP, "dccp": 33, "ipv6": 41,
		"gre": 47, "esp": 50, "ah": 51, "icmpv6": protocolICMPv6, "ipv6-icmp": protocolICMPv6, "ospf": 89, "ipip": 94,
		"pim": 103, "comp": 108, "vrrp": 112, "sctp": 132, "udplite": 136,
	}
}

func protocolNumber(name string) (int, bool) {
	n, ok := protocolNumbers()[strings.ToLower(name)]
	return n, ok
}

func protocolName(n int) string {
	switch n {
	case protocolICMP:
		return "ICMP"
	case protocolTCP:
		return "TCP"
	case protocolUDP:
		return "UDP"
	case protocolICMPv6:
		return "ICMPv6"
	}
	return fmt.Sprintf("protocol %d", n)
}
