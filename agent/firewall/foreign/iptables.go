package foreign

import (
	"net/netip"
	"strings"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// iptablesBases returns the base chains of one listing that packets between hosts pass.
func iptablesBases(command string, v6 bool, tables map[string]netfilter.Table) []baseChain {
	lines := map[string]map[string][]line{}
	for name, t := range tables {
		lines[name] = iptablesLines(t)
	}
	var out []baseChain
	for _, at := range []struct {
		table, chain string
		hook         hook
		priority     int // of the kernel's tables: include/uapi/linux/netfilter_ipv4.h
	}{
		{"raw", "PREROUTING", hookPrerouting, -300},
		{"mangle", "PREROUTING", hookPrerouting, -150},
		{"mangle", "INPUT", hookInput, -150},
		{"filter", "INPUT", hookInput, 0},
		{"security", "INPUT", hookInput, 50},
		{"mangle", "FORWARD", hookForward, -150},
		{"filter", "FORWARD", hookForward, 0},
		{"security", "FORWARD", hookForward, 50},
		{"raw", "OUTPUT", hookOutput, -300},
		{"mangle", "OUTPUT", hookOutput, -150},
		{"filter", "OUTPUT", hookOutput, 0},
		{"security", "OUTPUT", hookOutput, 50},
		{"mangle", "POSTROUTING", hookPostrouting, -150},
		{"nat", "POSTROUTING", hookPostrouting, 100},
	} {
		t, ok := tables[at.table]
		if !ok {
			continue
		}
		b := baseChain{
			where:    command + " table " + at.table + " chain " + at.chain,
			chain:    at.chain,
			hook:     at.hook,
			priority: at.priority,
			nat:      at.table == "nat",
			drops:    t.Policies[at.chain] == "DROP",
			v4:       !v6,
			v6:       v6,
			lines:    lines[at.table],
		}
		if n, counted := t.PolicyPackets[at.chain]; counted {
			b.packets = &n
		}
		out = append(out, b)
	}
	return out
}

func iptablesLines(t netfilter.Table) map[string][]line {
	out, chains := map[string][]line{}, map[string]bool{}
	for _, chain := range t.Chains {
		chains[chain] = true
	}
	for i, r := range t.Rules {
		l := iptablesLine(r, chains)
		if t.Packets != nil {
			l.packets = &t.Packets[i]
		}
		out[r[1]] = append(out[r[1]], l)
	}
	return out
}

// iptablesLine parses one rule. A part it does not understand makes the match indeterminate.
func iptablesLine(r netfilter.Rule, chains map[string]bool) line {
	l := line{text: r[2:].String()}
	add := func(c condition) { l.conditions = append(l.conditions, c) }
	negated := false
	words := r[2:]
	for len(words) > 0 {
		word, value := words[0], ""
		if len(words) > 1 {
			value = words[1]
		}
		took := 2
		var c condition
		switch word {
		case "!":
			negated, took = true, 1
		case "-j", "-g":
			l.action, l.to = iptablesAction(word, value, chains)
			// The words after the target are its own options.
			if l.action != jumpToChain && l.action != gotoChain {
				words = nil
				continue
			}
		case "-m":
			c = moduleMatch(value)
		case "--tcp-flags":
			if len(words) > 2 {
				c, took = tcpFlags(value, words[2]), 3
			}
		default:
			if c = iptablesCondition(word, value); strings.HasPrefix(value, "-") || value == "!" {
				took = 1 // an option that takes no value
			}
		}
		if c != nil {
			if negated {
				c = negate(c)
			}
			add(c)
		}
		negated = negated && took == 1
		words = words[min(took, len(words)):]
	}
	return l
}

// moduleMatch returns what naming a match's module means by itself: the options of an unknown module are unknown too.
func moduleMatch(name string) condition {
	switch name {
	case "comment", "tcp", "udp", "udplite", "sctp", "icmp", "icmp6", "multiport", "conntrack", "state", "addrtype":
		return nil
	}
	return matchUnknown
}

func iptablesCondition(word, value string) condition {
	list := strings.Split(value, ",")
	switch word {
	case "-s", "-d":
		p, err := prefixOf(value)
		if err != nil {
			return matchUnknown
		}
		return addressIn(word == "-d", p)
	case "-i":
		return inDevice(value)
	case "-o":
		return outDevice(value)
	case "-p":
		if value == "all" {
			return matchAll
		}
		return protocolIs(value)
	case "--dport", "--dports":
		return portIs(list)
	case "--sport", "--sports":
		return sourcePortIs(list)
	case "--ports":
		return narrowTo("from or to port " + value)
	case "--icmp-type", "--icmpv6-type":
		return icmpTypeIs(word == "--icmpv6-type", list)
	case "--ctstate", "--state":
		return connState(list...)
	case "--dst-type", "--src-type":
		return addressTypeIn(word == "--dst-type", list...)
	case "--comment":
		return matchAll
	}
	return matchUnknown
}

// prefixOf parses an address as iptables-save prints it: "10.5.34.2/32", or with a mask where that is no prefix.
func prefixOf(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		a, err := netip.ParseAddr(text)
		return netip.PrefixFrom(a, a.BitLen()), err
	}
	p, err := netip.ParsePrefix(text)
	return p.Masked(), err
}

func iptablesAction(word, target string, chains map[string]bool) (action, string) {
	switch target {
	case "ACCEPT":
		return acceptPacket, ""
	case "DROP", "REJECT":
		return dropPacket, ""
	case "RETURN":
		return returnToCaller, ""
	case "MASQUERADE", "SNAT":
		return translateSource, ""
	case "LOG", "NFLOG", "ULOG", "AUDIT", "MARK", "CONNMARK", "CLASSIFY", "TOS", "DSCP", "TTL", "HL", "TCPMSS", "TRACE",
		"CHECKSUM", "SET", "SECMARK", "CONNSECMARK":
		return continueChain, ""
	}
	switch {
	case !chains[target]:
		return unknownAction, ""
	case word == "-g":
		return gotoChain, target
	}
	return jumpToChain, target
}
