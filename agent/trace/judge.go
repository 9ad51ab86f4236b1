package trace

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/internal/plural"
)

// Judge turns facts into the stages of a path, in the order in which packets pass them. If packets were answered, no
// stage loses them, whatever it looks like, unless it loses large ones.
func Judge(f Facts) api.Trace {
	j := &judgement{Facts: f}
	j.isAnswered = f.Sent.Answered > 0
	if f.Source.IsHere {
		j.judgeSource()
	} else {
		j.judgeArrival()
	}
	out := api.Trace{
		Node:        f.Node,
		Network:     f.Network.Name,
		Source:      f.Source.TraceEnd,
		Destination: f.Destination.TraceEnd,
		Protocol:    f.Protocol,
		Port:        f.Port,
		Arrived:     api.ArrivedUnknown,
		Stages:      j.stages,
	}
	switch {
	case f.Sent.Sent == 0:
		out.Why = "no packets were sent from " + f.Source.Address.String()
		if f.Sent.Reason != "" {
			out.Why += ": " + f.Sent.Reason
		}
	case j.isAnswered:
		out.Arrived = api.ArrivedYes
	case f.Sent.IsRefused && !j.hasLost():
	case f.Protocol != "udp": // most programs do not answer a datagram that they do not understand
		out.Arrived = api.ArrivedNo
	}
	if f.Sent.Sent > 0 {
		out.Why = f.Sent.text()
		j.addAnswer(out)
		out.Stages = j.stages
	}
	return out
}

// text says what was sent and what came back.
func (s Sending) text() string {
	out := s.What
	switch {
	case s.Answered > 0 && s.Sent > 1:
		out += fmt.Sprintf(": %d answered", s.Answered)
	case s.Answered > 0:
		out += ": answered"
	case s.IsRefused:
		out += ": refused"
	default:
		out += ": no answer"
	}
	if s.Reason != "" {
		out += " (" + s.Reason + ")"
	}
	if s.Full > 0 && !s.FullAnswered {
		out += fmt.Sprintf("; those of %d bytes are lost", s.Full)
	}
	return out
}

// judgement collects stages.
type judgement struct {
	Facts
	isAnswered bool
	stages     []api.TraceHop
}

func (j *judgement) add(stage, where, status, saw, do string) {
	if status == api.HopLost && j.isAnswered {
		status, saw = api.HopWarning, saw+"; packets are answered nevertheless"
	}
	j.stages = append(j.stages, api.TraceHop{Stage: stage, Node: j.Node, Where: where, Saw: saw, Status: status, Do: do})
}

func (j *judgement) ok(stage, where, format string, args ...any) {
	j.add(stage, where, api.HopOK, fmt.Sprintf(format, args...), "")
}

func (j *judgement) lost(stage, where, do, format string, args ...any) {
	j.add(stage, where, api.HopLost, fmt.Sprintf(format, args...), do)
}

// hasLost reports whether a stage loses the packets.
func (j *judgement) hasLost() bool {
	return slices.ContainsFunc(j.stages, func(h api.TraceHop) bool { return h.Status == api.HopLost })
}

// judgeSource judges the way of packets that this host or one of its containers sends.
func (j *judgement) judgeSource() {
	if j.From != nil {
		j.judgeContainer(*j.From)
		j.judgeContainerRoute(*j.From)
		j.judgePort(*j.From)
	} else {
		j.ok("host", j.Node, "%s is an address of this host", j.Source.Address)
	}
	j.judgeRules()
	if j.peer() == nil {
		if j.To != nil {
			j.judgeTarget(*j.To)
		}
		if j.From != nil {
			j.judgeDelivery(*j.From)
		}
		return
	}
	j.judgeForwarding()
	if j.Route != nil {
		j.judgeRoute("route", *j.Route, j.Destination)
	}
	j.judgeOuter()
	j.judgeTunnel()
	if j.From != nil {
		j.judgeDelivery(*j.From) // for the answers
	}
}

// judgeTarget judges the way to a container, and of its answers.
func (j *judgement) judgeTarget(c Container) {
	j.judgeDelivery(c)
	j.judgePort(c)
	j.judgeContainer(c)
	j.judgeContainerRoute(c)
}

// judgeArrival judges the way of packets that come from another host, and of their answers.
func (j *judgement) judgeArrival() {
	j.judgeOuter()
	j.judgeTunnel()
	j.judgeForwarding()
	j.judgeRules()
	if j.To != nil {
		j.judgeTarget(*j.To)
	} else {
		j.ok("host", j.Node, "%s is an address of this host", j.Destination.Address)
	}
	if j.Back != nil {
		j.judgeRoute("route back", *j.Back, j.Source)
	}
}

// judgeRules judges the host's rules by what they say, and by their counters. A rule that may drop other packets than
// these is blamed only if it dropped as many as were sent.
func (j *judgement) judgeRules() {
	const stage = "rules"
	add := func(o foreign.Obstacle, saw string) {
		j.lost(stage, o.Where, adviceOn(o), "%q %s", o.Rule, saw)
	}
	// find returns the first rule that dropped enough packets to have dropped all of these.
	find := func(is func(foreign.Count) bool) *foreign.Count {
		for _, c := range j.Rules.Counts {
			if j.Sent.Sent > 0 && !j.isAnswered && c.Packets >= uint64(j.Sent.Sent) && is(c) {
				return &c
			}
		}
		return nil
	}
	saw := func(c *foreign.Count) string {
		return fmt.Sprintf("dropped %s while %s left", plural.Count(int(c.Packets), "packet"), j.Sent.What)
	}
	certain := find(func(c foreign.Count) bool { return c.IsCertain })
	exact := find(func(c foreign.Count) bool { return c.Packets == uint64(j.Sent.Sent) && c.Packets > 1 })
	possible := find(func(foreign.Count) bool { return true })
	switch {
	case certain != nil:
		add(certain.Obstacle, saw(certain))
	case len(j.Rules.Drops) > 0:
		add(j.Rules.Drops[0], "drops packets from "+j.Source.Address.String()+" to "+j.Destination.Address.String())
	case exact != nil:
		add(exact.Obstacle, saw(exact))
	case possible != nil:
		j.add(stage, possible.Where, api.HopWarning, fmt.Sprintf("%q %s: it may have dropped these, or others", possible.Rule,
			saw(possible)), "if no other stage loses them, "+adviceOn(possible.Obstacle))
	case j.Rules.Err != nil:
		j.add(stage, "iptables and nftables", api.HopUnknown, "not all rules could be read: "+j.Rules.Err.Error(),
			"run the command as root")
	case j.Sent.Sent > 0:
		j.ok(stage, "iptables and nftables", "no rule drops these packets, and no counter of a rule shows that it did")
	default:
		j.ok(stage, "iptables and nftables", "no rule certainly drops these packets")
	}
}

// adviceOn returns what to do about a rule.
func adviceOn(o foreign.Obstacle) string {
	if command := o.Removal; command != "" {
		return "remove it (`" + command + "`), or " + o.Advice
	}
	return o.Advice
}

// judgeForwarding judges the table of connections, the switches and the reverse path filter.
func (j *judgement) judgeForwarding() {
	c := j.Conntrack
	switch saw, do := c.Problem(); {
	case saw != "":
		j.lost("conntrack", "nf_conntrack", do, "%s", saw)
	case c.Max > 0:
		j.ok("conntrack", "nf_conntrack", "%d of %d connections", c.Count, c.Max)
	}
	if j.Switches != "" {
		var commands []string
		for _, name := range strings.Split(j.Switches, ", ") {
			commands = append(commands, "`sysctl -w "+name+"=1`")
		}
		j.lost("forwarding", "sysctl", strings.Join(commands, ", "), "%s is 0: this host does not forward", j.Switches)
	}
	for _, r := range j.Refused {
		back := "there is no route back"
		if r.ReturnLink != "" {
			back = "the route back is over " + r.ReturnLink
		}
		own := kernel.SysctlName("ipv4", "conf", r.Link, "rp_filter")
		do := fmt.Sprintf("`sysctl -w %s=2`", own)
		if r.Mode == "2" {
			do = fmt.Sprintf("give the host a route to %s, or `sysctl -w %s=0 net.ipv4.conf.all.rp_filter=0`", r.Source, own)
		}
		j.lost("rp_filter", r.Link, do,
			"packets from %s that arrive on %s are dropped: rp_filter is %s, and %s", r.Source, r.Link, r.Mode, back)
	}
}

const seeRoutes = "see the check `routes` of `leno status`"

// judgeRoute judges this host's route to an end on another host.
func (j *judgement) judgeRoute(stage string, l Lookup, to End) {
	table, dst, remedy := tableName(l.Table), to.subnet(), j.Network.missingRemedy(to)
	isMadeByLeno := to.Container && j.Network.Carries()
	// A wider route refuses the packets only if leno's route is missing, and may be there for a reason.
	isNarrow := l.Rejecting != nil && l.Rejecting.Dst.Bits() >= dst.Bits()
	const orMove = ", or keep leno out of these addresses with another pool"
	switch {
	case to.Container && to.Peer.Skipped != "":
		j.lost(stage, j.Network.Backend, seeRoutes, "%s is not in the datapath: %s", to.Node, to.Peer.Skipped)
	case l.Err != nil && l.Rule != nil:
		j.lost(stage, table, ruleRemedy(l, to, j.Network), "the routing rule %d (%s) refuses packets to %s: %v",
			l.Rule.Priority, l.Rule.Text, to.Address, l.Err)
	case l.Err != nil && l.Rejecting != nil && (isNarrow || !isMadeByLeno):
		if isNarrow {
			remedy = fmt.Sprintf("`ip route del %s`", l.Rejecting)
		}
		if isNarrow && to.Container {
			remedy += orMove
		}
		j.lost(stage, table, remedy, "the route %s of another program refuses packets to %s: %v", l.Rejecting, to.Address,
			l.Err)
	case l.Err != nil:
		j.lost(stage, "the routing tables", remedy, "the kernel has no route to %s: %v", to.Address, l.Err)
	case !isMadeByLeno, l.Own, slices.Contains(j.Network.Links, l.Link) && strings.HasPrefix(l.Link, backend.LinkPrefix),
		l.Via.IsValid() && slices.Contains(to.PublicIPs, l.Via):
		j.judgeDevice(stage, table, l, to)
	case l.Rule != nil:
		j.lost(stage, table, ruleRemedy(l, to, j.Network),
			"packets to %s leave by %s: the routing rule %d (%s) leads to the route to %s there", to.Address, l.Link,
			l.Rule.Priority, l.Rule.Text, l.Dst)
	case l.Dst.Bits() < dst.Bits():
		j.lost(stage, table, remedy, "packets to %s leave by %s (route to %s): leno's route to %s is missing", to.Address,
			l.Link, l.Dst, dst)
	default:
		j.lost(stage, table, fmt.Sprintf("`ip route del %s dev %s`", l.Dst, l.Link)+orMove,
			"packets to %s leave by %s: the route to %s of another program takes precedence over leno's", to.Address,
			l.Link, l.Dst)
	}
}

// missingRemedy returns what to do if this host has no route to an end on another host.
func (n Network) missingRemedy(to End) string {
	if to.Container && n.Carries() {
		return seeRoutes + ": leno makes this route"
	}
	return fmt.Sprintf("give this host a route to %s: leno makes none", to.subnet())
}

// judgeDevice judges the device of a route that is right.
func (j *judgement) judgeDevice(stage, table string, l Lookup, to End) {
	if !l.Device.Up {
		j.lost(stage, l.Link, fmt.Sprintf("`ip link set %s up`", l.Link), "%s is down", l.Link)
		return
	}
	via := ""
	if l.Via.IsValid() {
		via = " via " + l.Via.String()
	}
	j.ok(stage, table, "%s is reached by %s%s (route to %s)", to.Address, l.Link, via, l.Dst)
}

// ruleRemedy returns the command that makes the kernel use the main table before a rule.
func ruleRemedy(l Lookup, to End, n Network) string {
	target, option := to.Address.String(), ""
	priority := max(l.Rule.Priority-1, 0)
	for _, pool := range n.Pools {
		if pool.Contains(to.Address) {
			target = pool.String()
			option = fmt.Sprintf(", or routing_rule_priority = %d in the network's block", priority)
		}
	}
	command := "ip rule"
	if to.Address.Is6() {
		command = "ip -6 rule"
	}
	return fmt.Sprintf("`%s add to %s lookup main priority %d`%s", command, target, priority, option)
}

// tableName returns a table as `ip route` names it.
func tableName(table int) string {
	switch table {
	case 254:
		return "table main"
	case 255:
		return "table local"
	case 0:
		return "the routing rules"
	}
	return fmt.Sprintf("table %d", table)
}

// addAnswer adds what became of the packets that were sent.
func (j *judgement) addAnswer(t api.Trace) {
	where := j.Destination.Address.String()
	status, saw, do := api.HopOK, t.Why, ""
	switch {
	case j.isAnswered && j.Sent.Full > 0 && !j.Sent.FullAnswered:
		status, do = api.HopWarning, "lower the MTU: see the stage before"
	case j.isAnswered:
	case j.Sent.IsRefused && !j.hasLost():
		status, saw = api.HopUnknown, saw+": no program there has the port, or a rule refuses such packets"
	case t.Arrived == api.ArrivedUnknown:
		status, saw = api.HopUnknown, saw+": the program there may ignore such packets"
	case j.hasLost():
		return
	case j.peer() != nil:
		status = api.HopLost
		do = fmt.Sprintf("run `sudo leno trace %s` on %s: nothing on this host drops the packets", t.Arguments(),
			j.Destination.Node)
	default:
		status, do = api.HopLost, "see whether a firewall in the container drops the packets"
	}
	j.stages = append(j.stages, api.TraceHop{Stage: "answer", Node: j.Destination.Node, Where: where, Saw: saw,
		Status: status, Do: do})
}
