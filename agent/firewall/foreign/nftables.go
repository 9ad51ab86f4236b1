package foreign

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// The JSON that nft prints, as in libnftables-json(5): a list of objects with one key each. Expressions are decoded
// where they are interpreted.
type (
	nftListing struct {
		Objects []listedObject `json:"nftables"`
	}
	listedObject struct {
		Chain *listedChain `json:"chain"`
		Rule  *listedRule  `json:"rule"`
		Map   *listedSet   `json:"map"`
		Set   *listedSet   `json:"set"`
	}
	listedChain struct {
		Family, Table, Name, Type, Hook, Policy string
		Prio                                    json.RawMessage
	}
	listedRule struct {
		Family, Table, Chain, Comment string
		Expr                          []map[string]json.RawMessage
	}
	listedSet struct {
		Family, Table, Name string
		Elem                []json.RawMessage
	}
)

// tableName names a table within one listing.
type tableName struct{ family, name string }

// parseListing parses what nft prints.
func parseListing(text []byte) (listing nftListing, err error) {
	if err := json.Unmarshal(text, &listing); err != nil {
		return listing, fmt.Errorf("read what nft lists: %w", err)
	}
	return listing, nil
}

// bases returns the base chains that packets between hosts pass. It leaves out tables for which skip reports that
// another listing has them.
func (listing nftListing) bases(skip func(family, table string) bool) []baseChain {
	sets := map[tableName]map[string][]json.RawMessage{}
	for _, o := range listing.Objects {
		for _, s := range []*listedSet{o.Map, o.Set} {
			if s != nil {
				at := tableName{s.Family, s.Table}
				if sets[at] == nil {
					sets[at] = map[string][]json.RawMessage{}
				}
				sets[at][s.Name] = s.Elem
			}
		}
	}
	lines := map[tableName]map[string][]line{}
	for _, o := range listing.Objects {
		if r := o.Rule; r != nil {
			at := tableName{r.Family, r.Table}
			if lines[at] == nil {
				lines[at] = map[string][]line{}
			}
			lines[at][r.Chain] = append(lines[at][r.Chain], nftLines(*r, sets[at])...)
		}
	}
	var out []baseChain
	for _, o := range listing.Objects {
		if c := o.Chain; c != nil && c.Hook != "" && !skip(c.Family, c.Table) {
			if b, ok := c.base(); ok {
				b.lines = lines[tableName{c.Family, c.Table}]
				out = append(out, b)
			}
		}
	}
	return out
}

// base returns the chain as a base, if it is one that packets between hosts pass.
func (c listedChain) base() (baseChain, bool) {
	b := baseChain{
		where: fmt.Sprintf("nftables table %s %s chain %s", c.Family, c.Table, c.Name),
		chain: c.Name,
		nat:   c.Type == "nat",
		drops: c.Policy == "drop",
		v4:    c.Family != "ip6",
		v6:    c.Family != "ip",
	}
	routed := slices.Contains([]string{"ip", "ip6", "inet"}, c.Family)
	if err := json.Unmarshal(c.Prio, &b.priority); err != nil || !routed {
		return baseChain{}, false
	}
	b.hook = hook(slices.Index(hookNames(), c.Hook))
	return b, b.hook >= 0
}

// nftLines parses one rule. A rule with a verdict map becomes several lines.
func nftLines(r listedRule, sets map[string][]json.RawMessage) []line {
	l := line{}
	var words []string
	for _, expr := range r.Expr {
		for name, body := range expr {
			switch name {
			case "match":
				c, text := nftMatch(body, sets)
				l.conditions, words = append(l.conditions, c), append(words, text)
			case "vmap":
				return nftVerdictMap(l, words, body, sets)
			default:
				l.nftStatement(name, body)
				if l.action != continueChain {
					words = append(words, strings.TrimSpace(name+" "+l.to))
				}
			}
		}
	}
	if r.Comment != "" {
		words = append(words, "comment "+strconv.Quote(r.Comment))
	}
	l.text = strings.Join(words, " ")
	return []line{l}
}

// nftStatement adds a statement other than a match to the line.
func (l *line) nftStatement(name string, body json.RawMessage) {
	var target struct{ Target string }
	switch name {
	case "accept":
		l.action = acceptPacket
	case "drop", "reject":
		l.action = dropPacket
	case "return":
		l.action = returnToCaller
	case "masquerade", "snat":
		l.action = translateSource
	case "jump", "goto":
		if json.Unmarshal(body, &target) != nil {
			l.action = unknownAction
			return
		}
		l.action, l.to = map[string]action{"jump": jumpToChain, "goto": gotoChain}[name], target.Target
	case "counter":
		var counter struct{ Packets *uint64 }
		if json.Unmarshal(body, &counter) == nil { // a named one is a string
			l.packets = counter.Packets
		}
	case "log", "mangle", "notrack", "flow", "ct helper", "continue": // these decide nothing
	case "queue", "dnat", "redirect", "tproxy", "fwd", "dup", "synproxy":
		l.action = unknownAction
	case "xt": // an extension of iptables
		var extension struct{ Type, Name string }
		if json.Unmarshal(body, &extension) != nil || extension.Type != "match" || extension.Name != "comment" {
			l.conditions = append(l.conditions, matchUnknown)
		}
	default: // a limit, a quota, a set or a map whose elements may have one
		l.conditions = append(l.conditions, matchUnknown)
	}
}

// nftVerdictMap returns one line for each element of the map.
func nftVerdictMap(l line, words []string, body json.RawMessage, sets map[string][]json.RawMessage) []line {
	var v struct{ Key, Data json.RawMessage }
	unknown := []line{{
		conditions: append(l.conditions, matchUnknown),
		action:     unknownAction,
		text:       strings.Join(words, " ") + " vmap",
	}}
	if json.Unmarshal(body, &v) != nil {
		return unknown
	}
	elements, ok := nftElements(v.Data, sets)
	if !ok {
		return unknown
	}
	var out []line
	for _, e := range elements {
		var pair []json.RawMessage
		var verdict map[string]json.RawMessage
		if json.Unmarshal(e, &pair) != nil || len(pair) != 2 || json.Unmarshal(pair[1], &verdict) != nil {
			return unknown
		}
		one := line{conditions: slices.Clone(l.conditions)} // the counter of the rule is of all elements
		c, text := nftCondition("==", v.Key, pair[0], sets)
		one.conditions = append(one.conditions, c)
		for name, body := range verdict {
			one.nftStatement(name, body)
			one.text = strings.TrimSpace(strings.Join(append(slices.Clone(words), text, name, one.to), " "))
		}
		out = append(out, one)
	}
	return out
}

// nftElements returns the elements of an anonymous set, or of the named set that a string stands for.
func nftElements(body json.RawMessage, sets map[string][]json.RawMessage) ([]json.RawMessage, bool) {
	var name string
	if json.Unmarshal(body, &name) == nil {
		named, isName := strings.CutPrefix(name, "@")
		if !isName {
			return []json.RawMessage{body}, true
		}
		elements, ok := sets[named]
		return elements, ok
	}
	var set struct{ Set []json.RawMessage }
	if json.Unmarshal(body, &set) == nil && set.Set != nil {
		return set.Set, true
	}
	var list []json.RawMessage
	if json.Unmarshal(body, &list) == nil {
		return list, true
	}
	return []json.RawMessage{body}, true
}

func nftMatch(body json.RawMessage, sets map[string][]json.RawMessage) (condition, string) {
	var m struct {
		Op          string
		Left, Right json.RawMessage
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return matchUnknown, "…"
	}
	return nftCondition(m.Op, m.Left, m.Right, sets)
}

// nftCondition parses one comparison, and formats it as nft does.
func nftCondition(op string, left, right json.RawMessage, sets map[string][]json.RawMessage) (condition, string) {
	var l struct {
		Meta    struct{ Key string }
		Payload struct{ Protocol, Field string }
		CT      struct{ Key string }
		Fib     struct {
			Result string
			Flags  []string
		}
	}
	elements, ok := nftElements(right, sets)
	if json.Unmarshal(left, &l) != nil || !ok {
		return matchUnknown, "…"
	}
	values := make([]string, len(elements))
	for i, e := range elements {
		values[i] = nftValue(e)
	}
	key, c := nftKey(l.Meta.Key, l.Payload.Protocol, l.Payload.Field, l.CT.Key, l.Fib.Result, l.Fib.Flags, values)
	text := key + " " + nftValues(l.Meta.Key, values)
	of := matchAll // a field of one protocol is compared only for packets of that protocol
	number, isTransport := protocolNumber(l.Payload.Protocol)
	switch {
	case l.Meta.Key != "":
	case isTransport:
		of = numberIn(func(f *flow) *numbers { return &f.protocols }, oneNumber(number))
	case l.Payload.Protocol == "ip" || l.Payload.Protocol == "ip6":
		of = nftProtocol("nfproto", []string{l.Payload.Protocol})
	}
	switch op {
	case "==", "in":
		return matchBoth(of, c), text
	case "!=":
		return matchBoth(of, negate(c)), key + " != " + nftValues(l.Meta.Key, values)
	}
	return matchUnknown, key + " " + op + " …"
}

// nftValues formats values as nft does, names of devices in quotes.
func nftValues(meta string, values []string) string {
	shown := slices.Clone(values)
	if strings.HasSuffix(meta, "ifname") {
		for i := range shown {
			shown[i] = strconv.Quote(shown[i])
		}
	}
	if len(shown) == 1 {
		return shown[0]
	}
	return "{ " + strings.Join(shown, ", ") + " }"
}

// nftKey returns the name of the compared field, and the condition that it is one of the values.
func nftKey(meta, protocol, field, ct, fib string, flags, values []string) (string, condition) {
	switch {
	case meta == "iifname" || meta == "iif":
		return meta, inDevice(values...)
	case meta == "oifname" || meta == "oif":
		return meta, outDevice(values...)
	case meta == "l4proto" || meta == "protocol" || meta == "nfproto":
		return "meta " + meta, nftProtocol(meta, values)
	case meta != "":
		return "meta " + meta, matchUnknown
	case ct == "state":
		return "ct state", connState(values...)
	case ct == "status": // of the connection's first packet before anything was done to it
		if slices.Equal(values, []string{"dnat"}) || slices.Equal(values, []string{"snat"}) {
			return "ct status", matchNone
		}
		return "ct status", matchUnknown
	case fib == "type" && (slices.Equal(flags, []string{"daddr"}) || slices.Equal(flags, []string{"saddr"})):
		return "fib " + flags[0] + " type", addressTypeIn(flags[0] == "daddr", values...)
	case (protocol == "ip" || protocol == "ip6") && (field == "saddr" || field == "daddr"):
		return protocol + " " + field, nftAddresses(field == "daddr", values)
	case field == "protocol" || field == "nexthdr":
		return protocol + " " + field, protocolIs(values...)
	case field == "dport":
		return protocol + " " + field, portIs(values)
	case field == "sport":
		return protocol + " " + field, sourcePortIs(values)
	case (protocol == "icmp" || protocol == "icmpv6") && field == "type":
		return protocol + " " + field, icmpTypeIs(protocol == "icmpv6", values)
	case protocol == "tcp" && field == "flags" && slices.Contains(values, "syn"):
		return protocol + " " + field, matchAll // of the first packet of a connection
	}
	return strings.TrimSpace(protocol + " " + field), matchUnknown
}

func nftProtocol(meta string, values []string) condition {
	if meta == "l4proto" {
		return protocolIs(values...)
	}
	return func(f flow) (extent, flow) {
		family := []string{"ip", "ipv4"}
		if f.is6() {
			family = []string{"ip6", "ipv6"}
		}
		if slices.ContainsFunc(values, func(v string) bool { return slices.Contains(family, v) }) {
			return wholeFlow, f
		}
		return noPart, f
	}
}

func nftAddresses(dst bool, values []string) condition {
	var prefixes []netip.Prefix
	for _, v := range values {
		p, err := prefixOf(v)
		if err != nil {
			return matchUnknown
		}
		prefixes = append(prefixes, p)
	}
	return addressIn(dst, prefixes...)
}

// nftValue returns a value as text: a string, a number, a prefix. Any other value cannot be an address or a name.
func nftValue(body json.RawMessage) string {
	var v struct {
		Prefix struct {
			Addr string
			Len  int
		}
		Elem  struct{ Val json.RawMessage }
		Range []json.RawMessage
	}
	var s string
	switch {
	case json.Unmarshal(body, &s) == nil:
		return s
	case json.Unmarshal(body, &v) == nil && v.Prefix.Addr != "":
		return fmt.Sprintf("%s/%d", v.Prefix.Addr, v.Prefix.Len)
	case v.Elem.Val != nil: // with a counter or a timeout of its own
		return nftValue(v.Elem.Val)
	case len(v.Range) == 2:
		return nftValue(v.Range[0]) + "-" + nftValue(v.Range[1])
	}
	return string(body)
}
