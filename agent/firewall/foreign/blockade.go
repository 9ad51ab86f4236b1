package foreign

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Blockade is a rule of this host that drops the datagrams of a path between hosts, or the answers to its echo
// requests.
type Blockade struct {
	Path    UnderlayPath
	Inbound bool   // drops received datagrams; else sent ones
	Where   string // "iptables table filter chain INPUT"
	Rule    string // as its program prints it, or "policy DROP"
	Command string // that lets the datagrams pass, if a program that has commands for that wrote the rule
	Removal string // the command that removes the rule, "" if none is known
	Echoes  bool   // it drops echo replies of the peer
	// ExceptAnswers means that datagrams pass which answer others, for as long as the kernel remembers those.
	ExceptAnswers bool
}

func (b Blockade) String() string { return fmt.Sprintf("%s: %q", b.Where, b.Rule) }

// hostTraffic marks a flow as one of the host itself.
type hostTraffic struct {
	answers bool // the packets may be answers to earlier ones
}

// findBlockades returns what the rules do to the paths, at most one blockade for each direction of a path. It is pure.
func findBlockades(bases []baseChain, paths []UnderlayPath) []Blockade {
	var out []Blockade
	for _, p := range paths {
		for _, inbound := range []bool{true, false} {
			found, ok := p.firstDrop(bases, inbound, p.SamePort)
			exceptAnswers := !ok && p.SamePort
			if exceptAnswers {
				found, ok = p.firstDrop(bases, inbound, false)
			}
			if !ok {
				continue
			}
			b := p.newBlockade(found, inbound)
			b.Command, b.ExceptAnswers = p.command(found), exceptAnswers
			out = append(out, b)
		}
		if found, ok := firstDrop(bases, p.echoReplies()); ok {
			b := p.newBlockade(found, true)
			b.Echoes = true
			out = append(out, b)
		}
	}
	return out
}

func (p UnderlayPath) newBlockade(f finding, inbound bool) Blockade {
	where, rule := f.location()
	return Blockade{Path: p, Inbound: inbound, Where: where, Rule: rule, Removal: f.removalCommand()}
}

// firstDrop returns the first rule that drops the datagrams of one direction, from whichever port they come. answers
// says that they may be answers to earlier ones.
func (p UnderlayPath) firstDrop(bases []baseChain, inbound, answers bool) (first finding, ok bool) {
	f := p.flow(inbound)
	f.host = &hostTraffic{answers}
	first, ok = firstDrop(bases, f)
	if ok && inbound && p.SamePort && p.PeerPort != p.Port { // the NAT of the other host may keep the port
		f.sourcePorts = oneNumber(p.Port)
		_, ok = firstDrop(bases, f)
	}
	return first, ok
}

// firstDrop returns the first rule that drops the whole flow.
func firstDrop(bases []baseChain, f flow) (finding, bool) {
	met := trace(bases, f)
	i := slices.IndexFunc(met, func(f finding) bool { return f.action == dropPacket && f.wholeFlow })
	if i < 0 {
		return finding{}, false
	}
	return met[i], true
}

// command returns the command of ufw or firewalld that lets the datagrams past their rule, "" for rules of others.
func (p UnderlayPath) command(f finding) string {
	switch {
	case f.isUFW() && f.flow.inbound:
		return fmt.Sprintf("ufw allow proto udp from %s to any port %d", p.Peer, p.Port)
	case f.isUFW():
		return fmt.Sprintf("ufw allow out proto udp from any to %s port %d", p.Peer, p.PeerPort)
	}
	// The last rule of a zone's own chain is its target. Rules before it, in chains such as filter_IN_public_deny,
	// take precedence over open ports.
	zone, ok := strings.CutPrefix(f.chain, "filter_IN_")
	if ok && f.isFirewalld() && f.base.hasJump(f.chain, f.chain+"_allow") {
		return fmt.Sprintf("firewall-cmd --permanent --zone=%s --add-port=%d/udp && firewall-cmd --reload", zone, p.Port)
	}
	return ""
}

// flow returns the datagrams of one direction, which are not answers.
func (p UnderlayPath) flow(inbound bool) flow {
	f := flow{
		src:       hostPrefix(p.Own),
		dst:       hostPrefix(p.Peer),
		out:       p.Link,
		host:      &hostTraffic{},
		inbound:   inbound,
		protocols: oneNumber(protocolUDP),
	}
	from, to := p.Port, p.PeerPort
	if inbound {
		f.src, f.dst, f.in, f.out = f.dst, f.src, p.Link, ""
		from, to = to, from
	}
	if f.ports = oneNumber(to); p.SamePort {
		f.sourcePorts = oneNumber(from)
	}
	return f
}

// echoReplies returns the answers of the peer to echo requests of this host.
func (p UnderlayPath) echoReplies() flow {
	f := p.flow(true)
	f.host, f.sourcePorts, f.ports = &hostTraffic{answers: true}, nil, nil
	f.protocols, f.icmpTypes = oneNumber(protocolICMP), oneNumber(0)
	if f.is6() {
		f.protocols, f.icmpTypes = oneNumber(protocolICMPv6), oneNumber(129)
	}
	return f
}

// hostPrefix returns the prefix that contains only this address.
func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
