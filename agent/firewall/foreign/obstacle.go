package foreign

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// Obstacle is a rule of another program that harms packets between containers of two hosts: it drops them, or
// replaces their source with the host's address; or it drops the packets of containers for this host itself.
type Obstacle struct {
	Network string
	Where   string // "iptables table raw chain PREROUTING"
	Rule    string // as its program prints it, or "policy DROP"
	Partial bool   // it drops only some of the packets, which may be intended
	Own     bool   // it drops the packets of other hosts and their containers for this host itself
	More    int    // number of similar rules in the same place
	Effect  string // what happens to which packets
	Advice  string // what the operator should do
	Removal string // the command that removes the rule, "" if none is known
}

func (o Obstacle) String() string {
	more := ""
	if o.More > 0 {
		more = fmt.Sprintf(" (and %d like it)", o.More)
	}
	return fmt.Sprintf("%s: %q%s: %s; %s", o.Where, o.Rule, more, o.Effect, o.Advice)
}

// findObstacles returns what the host's rules do to each network's packets. bridges holds the device of each subnet's
// containers, where it is known. It is pure.
func findObstacles(bases []baseChain, paths []OverlayPath, bridges map[netip.Prefix]string) []Obstacle {
	var out []Obstacle
	for _, p := range paths {
		before := len(out)
		type rule struct {
			where, text string
			partial     bool
		}
		reported := map[rule]bool{} // packets of both directions meet most rules
		for _, subnet := range p.Network.Subnets {
			for _, f := range p.flows(subnet, bridges[subnet]) {
				findings := trace(bases, f)
				if f.inbound {
					findings = append(findings, inputDrops(bases, f)...)
				}
				for _, found := range findings {
					o := p.newObstacle(found)
					if key := (rule{o.Where, o.Rule, o.Partial}); found.isReportable() && !reported[key] {
						reported[key] = true
						out = addObstacle(out, before, o)
					}
				}
			}
		}
	}
	return out
}

// maxPartial limits how many rules of one place that drop only some packets are reported one by one for a network.
const maxPartial = 20

// addObstacle adds o to list, whose entries before from are of other networks. Rules of one place with the same advice
// become one entry, which counts them. Rules that drop only some packets stay separate, up to mostPartial, since it
// matters what each drops.
func addObstacle(list []Obstacle, from int, o Obstacle) []Obstacle {
	partial := 0
	for i := from; i < len(list); i++ {
		have := &list[i]
		if have.Partial != o.Partial || have.Where != o.Where || !o.Partial && have.Advice != o.Advice {
			continue
		}
		if partial++; !o.Partial || partial == maxPartial {
			have.More++
			return list
		}
	}
	return append(list, o)
}

// flows returns the packets between containers of the subnet and other hosts.
func (p OverlayPath) flows(subnet netip.Prefix, bridge string) []flow {
	var out []flow
	for _, pool := range p.Network.Pools {
		if pool.Addr().Is6() != subnet.Addr().Is6() {
			continue
		}
		for _, link := range p.Links {
			out = append(out,
				flow{src: pool, dst: subnet, local: subnet, in: link, out: bridge, inbound: true},
				flow{src: subnet, dst: pool, local: subnet, in: bridge, out: link})
		}
	}
	return out
}

// inputDrops returns the rules that drop an inbound flow's packets for this host itself because of their source. A rule
// that also drops those of a public address, such as the policy DROP, is a general one, which operators intend.
func inputDrops(bases []baseChain, f flow) []finding {
	f.host, f.out = &hostTraffic{}, ""
	public := f
	public.src = netip.MustParsePrefix("1.1.1.1/32")
	if f.is6() {
		public.src = netip.MustParsePrefix("2000::1/128")
	}
	general := trace(bases, public)
	return slices.DeleteFunc(trace(bases, f), func(found finding) bool {
		return found.base.hook != hookInput || found.isPartial() || slices.ContainsFunc(general, found.isSameRule)
	})
}

// dockerTable is where Docker keeps its rules with nftables.
const dockerTable = " docker-bridges"

// isAgainstDirectAccess reports whether the rule is Docker's against packets for containers' own addresses, whichever
// version wrote it:
//
//	28.0 to 28.1  -t raw -A PREROUTING -p tcp -d 10.5.34.2 --dport 80 ! -i docker0 -j DROP
//	from 28.2 on  -t raw -A PREROUTING -d 10.5.34.2 ! -i docker0 -j DROP
//	nftables      ip daddr 10.5.34.2 iifname != "docker0" counter drop comment "DROP DIRECT ACCESS"
//
// (moby: libnetwork/drivers/bridge/port_mapping_linux.go at 28.0 and 28.1, later internal/iptabler/endpoint.go and
// internal/nftabler/endpoint.go).
func (f finding) isAgainstDirectAccess() bool {
	if f.action != dropPacket || f.base.hook != hookPrerouting || !f.flow.inbound || !f.flow.dst.IsSingleIP() {
		return false
	}
	return strings.Contains(f.base.where, " table raw ") && strings.Contains(f.rule, "! -i ") ||
		strings.HasSuffix(f.base.table(), dockerTable)
}

// isPartial reports whether the rule drops only some of the packets between two hosts' containers. Docker's rules
// against packets for containers' own addresses do not count: each drops the packets of one container, and together
// they drop those of all.
func (f finding) isPartial() bool {
	return f.action == dropPacket && !f.wholeFlow && !f.isAgainstDirectAccess() && !f.isSeparation()
}

// isSeparation reports whether the rule is for all packets between this host's subnet and a subnet as large as a
// host's, for example "-s 10.5.77.0/24 -j DROP".
func (f finding) isSeparation() bool {
	own, other := f.flow.src, f.flow.dst
	if f.flow.inbound {
		own, other = other, own
	}
	return f.flow.partText() == "" && isCovering(own, f.flow.local) && other.Bits() <= f.flow.local.Bits()
}

// isReportable reports whether to report the rule: a change of source for only a part of the packets is left out.
func (f finding) isReportable() bool {
	return f.action == dropPacket || f.flow.partText() == ""
}

// isUFW reports whether ufw's default is at work: the rule is in one of ufw's chains, or it is the policy that ufw sets
// on a chain that calls them. A rule that the administrator added takes precedence over a later one that allows the
// packets, so it does not count.
func (f finding) isUFW() bool {
	const chains = "ufw-"
	if f.rule == policyDrop {
		return f.base.hasJump(f.chain, chains)
	}
	return strings.HasPrefix(f.chain, chains) && !strings.HasPrefix(f.chain, chains+"user-")
}

// isFirewalld reports whether the rule is in firewalld's own table of nftables.
func (f finding) isFirewalld() bool { return strings.HasSuffix(f.base.table(), " firewalld") }

// isSameRule reports whether both findings are of the same rule.
func (f finding) isSameRule(o finding) bool {
	return f.base.where == o.base.where && f.chain == o.chain && f.rule == o.rule
}

// location returns where a rule is and its text.
func (f finding) location() (where, rule string) {
	where, rule = f.base.table()+" chain "+f.chain, f.rule
	if rule == policyDrop && strings.HasPrefix(f.base.where, "ip") {
		rule = "policy DROP"
	}
	return where, rule
}

// newObstacle describes one finding on the path.
func (p OverlayPath) newObstacle(f finding) Obstacle {
	where, rule := f.location()
	o := Obstacle{
		Network: p.Network.Name,
		Where:   where,
		Rule:    rule,
		Partial: f.isPartial(),
		Own:     f.base.hook == hookInput,
		Effect:  f.effectText(),
		Advice:  p.adviceText(f),
		Removal: f.removalCommand(),
	}
	if o.Partial {
		command := o.Removal
		if command != "" {
			command = " (`" + command + "`)"
		}
		o.Advice = "it may be intended; if not, remove it" + command + ", or: " + o.Advice
	}
	return o
}

// removalCommand returns the command that removes a rule of iptables; "" for other rules, which are identified by
// numbers that change.
func (f finding) removalCommand() string {
	program, table, ok := strings.Cut(f.base.table(), " table ")
	if !ok || !strings.HasPrefix(program, "ip") || f.rule == policyDrop {
		return ""
	}
	return fmt.Sprintf("%s -t %s -D %s %s", program, table, f.chain, netfilter.ShellText(f.rule))
}

// effectText returns in words what the rule does to which packets.
func (f finding) effectText() string {
	switch {
	case f.action == translateSource:
		return "containers on other hosts see this host's address instead of the container's"
	case f.isPartial():
		what := f.flow.partText()
		if what != "" {
			what = ": " + what
		}
		return fmt.Sprintf("drops some packets between containers, those from %s to %s%s", f.flow.src, f.flow.dst, what)
	case f.base.hook == hookInput:
		return fmt.Sprintf("drops packets from %s for this host itself", f.flow.src)
	case f.flow.inbound && f.flow.dst.IsSingleIP():
		return fmt.Sprintf("drops packets of other hosts for the container %s", f.flow.dst.Addr())
	case !f.wholeFlow && f.flow.inbound:
		return fmt.Sprintf("drops packets from %s for containers in %s", f.flow.src, f.flow.dst)
	case !f.wholeFlow:
		return fmt.Sprintf("drops packets of containers in %s for %s", f.flow.src, f.flow.dst)
	case f.flow.inbound:
		return fmt.Sprintf("drops packets of other hosts for containers in %s", f.flow.dst)
	}
	return fmt.Sprintf("drops packets of containers in %s for other hosts", f.flow.src)
}

// adviceText returns what the operator should do to let packets past the rule.
func (p OverlayPath) adviceText(f finding) string {
	table, trusted := f.base.table(), strings.Join(p.Links, ":")
	var pools []string // of the families that the chain is called for
	for _, pool := range p.Network.Pools {
		if pool.Addr().Is6() && f.base.v6 || pool.Addr().Is4() && f.base.v4 {
			pools = append(pools, pool.String())
		}
	}
	pool := strings.Join(pools, " and ")
	docker := strings.HasSuffix(table, dockerTable)
	switch {
	case f.action == translateSource && (docker || strings.Contains(f.rule, "! -o ")):
		advice := "start dockerd with --ip-masq=false, or make the Docker network with " +
			"--opt com.docker.network.bridge.enable_ip_masquerade=false (`leno docker-opts` prints both)"
		if !p.Network.IPMasq {
			advice += ", and set ip_masq = true in this network's block"
		}
		return advice
	case f.action == translateSource:
		return fmt.Sprintf("exclude packets from %s to %s from that rule, or set ip_masq = true in this network's block",
			f.flow.src, pool)
	case f.isAgainstDirectAccess():
		return fmt.Sprintf("start dockerd with --allow-direct-routing (Docker 28.2 and later), or make the Docker network "+
			"with --opt com.docker.network.bridge.trusted_host_interfaces=%s; before 28.2 start dockerd with "+
			"DOCKER_INSECURE_NO_IPTABLES_RAW=1 in its environment (`leno docker-opts` prints what the installed version "+
			"needs)", trusted)
	case docker:
		return "only published ports can be reached: make the Docker network with " +
			"--opt com.docker.network.bridge.gateway_mode_ipv4=nat-unprotected " +
			"(`leno docker-opts -create` prints the command), or start dockerd with --firewall-backend=iptables"
	case f.base.hook == hookInput && strings.HasPrefix(f.chain, "ts-"):
		return fmt.Sprintf("use a pool outside 100.64.0.0/10, or run `tailscale set --netfilter-mode=nodivert`: then "+
			"Tailscale's chains are not used, and %s is not filtered", pool)
	case f.isFirewalld():
		return fmt.Sprintf("`firewall-cmd --permanent --zone=trusted --add-source=%s && firewall-cmd --reload`",
			strings.Join(pools, " --add-source="))
	case f.base.hook == hookInput:
		return fmt.Sprintf("accept packets from %s there, before that rule", pool)
	case f.isUFW():
		return fmt.Sprintf("`ufw route allow from %s to %s`", pool, pool)
	case f.base.hook == hookForward && strings.HasPrefix(table, "ip") && !p.Network.Forward:
		return fmt.Sprintf("set forward = true in this network's block, or accept packets from and to %s there", pool)
	}
	return fmt.Sprintf("accept packets from and to %s there, before that rule", pool)
}
