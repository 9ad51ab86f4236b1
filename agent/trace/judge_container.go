package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/plural"
)

// where returns the container's namespace for people.
func (c Container) where() string {
	switch {
	case c.Namespace == "":
		return c.Address.String()
	case c.Process != "":
		return fmt.Sprintf("%s (%s)", c.Namespace, c.Process)
	}
	return c.Namespace
}

// command returns a command that runs in the container's namespace.
func (c Container) command(format string, args ...any) string {
	return fmt.Sprintf("`nsenter --net=%s %s`", c.Namespace, fmt.Sprintf(format, args...))
}

// judgeContainer judges the container's interface and its address.
func (j *judgement) judgeContainer(c Container) {
	const stage = "container"
	isAnswering := c.Ping.Answered > 0
	switch {
	case c.Namespace == "" && c.Err != nil && !c.Delivery.Neighbour.isSilent():
		j.add(stage, c.where(), api.HopUnknown, c.Err.Error(), "run `sudo leno trace` on "+j.Node)
		return
	case c.Namespace == "" && isAnswering:
		j.ok(stage, c.where(), "it answers on %s. No network namespace of this host has it: a virtual machine may",
			c.Bridge.Name)
		return
	case c.Namespace == "":
		j.lost(stage, c.where(),
			"start the container, or see which address it has: `leno lease list` shows the subnet of each host",
			"no container of this host has %s, and nothing answers for it", c.Address)
		return
	case len(c.Others) > 0:
		j.lost(stage, c.where(), "restart one of the containers so that it gets an address of its own",
			"%s have the address %s: %s", plural.Count(1+len(c.Others), "container"), c.Address,
			strings.Join(append([]string{c.Namespace}, c.Others...), " and "))
		return
	case !c.Link.Up:
		j.lost(stage, c.where(), c.command("ip link set %s up", c.Link.Name), "the container's interface %s is down",
			c.Link.Name)
		return
	case !c.Link.Carrier && !c.Port.Up:
		j.lost(stage, c.where(), fmt.Sprintf("`ip link set %s up`", c.Port.Name),
			"the container's interface %s has no carrier: its other end, %s, is down", c.Link.Name, c.Port.Name)
		return
	case c.Delivery.Link == c.Bridge.Name && c.Delivery.Neighbour.MAC != "" && c.Link.MAC != "" &&
		c.Delivery.Neighbour.MAC != c.Link.MAC:
		j.lost(stage, c.where(), fmt.Sprintf("find the device with that address (`bridge fdb show | grep %s`) and give it "+
			"another IP address, or restart the container", c.Delivery.Neighbour.MAC),
			"another device answers for %s: this host has %s for it, the container's interface is %s", c.Address,
			c.Delivery.Neighbour.MAC, c.Link.MAC)
		return
	}
	if most := j.Network.Local.MTU; most > 0 && c.Link.MTU > most {
		j.add(stage, c.where(), api.HopWarning, fmt.Sprintf("the MTU of %s is %d, and %d fit through the network",
			c.Link.Name, c.Link.MTU, most), c.command("ip link set %s mtu %d", c.Link.Name, most))
		return
	}
	j.ok(stage, c.where(), "%s on %s, up, MTU %d", c.Address, c.Link.Name, c.Link.MTU)
}

// judgeContainerRoute judges the container's own route to the other end.
func (j *judgement) judgeContainerRoute(c Container) {
	const stage = "container route"
	if c.Namespace == "" || !c.Link.Up || c.isCutOff() {
		return
	}
	to := j.Destination.Address
	if c.Address == to {
		to = j.Source.Address
	}
	i := slices.IndexFunc(c.Gateway, func(a netip.Addr) bool { return a.Is4() == to.Is4() && a.IsGlobalUnicast() })
	gateway, family := "no address", "ip"
	if to.Is6() {
		family = "ip -6"
	}
	add, replace := "give "+c.Bridge.Name+" an address", "give "+c.Bridge.Name+" that address"
	if i >= 0 {
		gateway = c.Gateway[i].String()
		add = c.command("%s route add default via %s dev %s", family, gateway, c.Link.Name)
		replace = c.command("%s route replace default via %s dev %s", family, gateway, c.Link.Name)
	}
	l := c.Route
	hop := l.Neighbour
	isHost := slices.Contains(c.Gateway, l.Via)
	isHostMAC := hop.MAC != "" && (hop.MAC == c.Bridge.MAC || hop.MAC == c.Port.MAC)
	switch {
	case l.Err != nil:
		j.lost(stage, c.where(), add+", and set the default route in the configuration of the container's network",
			"the container has no route to %s: %v", to, l.Err)
	case l.Via.IsValid() && !isHost && !isHostMAC:
		what := "nothing answers for it"
		if hop.MAC != "" && !hop.isSilent() {
			what = hop.MAC + " answers for it"
		}
		j.lost(stage, c.where(), replace,
			"the container's gateway is %s, which is not an address of this host (%s has %s): %s",
			l.Via, c.Bridge.Name, gateway, what)
	case l.Via.IsValid() && hop.MAC != "" && !isHostMAC && c.Bridge.MAC != "":
		j.lost(stage, c.where(),
			fmt.Sprintf("find the container that has %s (`bridge fdb show | grep %s`), and give it another "+
				"address", l.Via, hop.MAC), "another device, %s, answers for the gateway %s", hop.MAC, l.Via)
	case hop.isSilent() && (isHost || j.peer() == nil):
		j.add(stage, c.where(), api.HopWarning,
			fmt.Sprintf("nothing answers for %s, to which the container sends packets for %s: "+
				"a later stage says why", hop.Address, to), "")
	case hop.isSilent():
		j.lost(stage, c.where(), replace, "nothing answers for %s, to which the container sends packets for %s", hop.Address,
			to)
	case l.Via.IsValid():
		j.ok(stage, c.where(), "to %s via %s dev %s", to, l.Via, l.Link)
	default:
		j.ok(stage, c.where(), "to %s dev %s", to, l.Link)
	}
}

// isCutOff reports whether the bridge has no address of the container's family, and this host no other route to the
// container by it.
func (c Container) isCutOff() bool {
	isRouted := c.Delivery.Err == nil && (c.Delivery.Link == c.Bridge.Name || c.Delivery.Link == c.Port.Name)
	return c.Namespace != "" && c.Bridge.Name != "" && !isRouted && !slices.ContainsFunc(c.Gateway,
		func(a netip.Addr) bool { return a.Is4() == c.Address.Is4() && a.IsGlobalUnicast() })
}

// judgeAddress judges the bridge's address, which is the containers' gateway and makes this host's route to them.
func (j *judgement) judgeAddress(c Container) {
	saw, do := c.Bridge.Name+" has no address", "restart the program that made "+c.Bridge.Name
	for _, subnet := range j.Network.Local.Subnets {
		if !subnet.Contains(c.Address) {
			continue
		}
		saw += " in " + subnet.String()
		if via := c.Route.Via; subnet.Contains(via) {
			do = fmt.Sprintf("`ip addr add %s/%d dev %s`, or ", via, subnet.Bits(), c.Bridge.Name) + do
		}
	}
	j.lost("bridge", c.Bridge.Name, do, "%s: this host has no route to its containers, and they have no gateway", saw)
}

// judgeDelivery judges this host's route to its own container.
func (j *judgement) judgeDelivery(c Container) {
	const stage = "route to container"
	l := c.Delivery
	end := End{TraceEnd: api.TraceEnd{Address: c.Address}}
	findGateway := "see with `ip -brief address` which device has the host's address in " + joinPrefixes(j.Network) +
		", and restart the program that makes it"
	switch {
	case l.Err == nil && (l.Link == c.Bridge.Name || l.Link == c.Port.Name), c.isCutOff():
	case l.Rule != nil && l.Err != nil:
		j.lost(stage, tableName(l.Table), ruleRemedy(l, end, j.Network), "the routing rule %d (%s) refuses packets to %s: %v",
			l.Rule.Priority, l.Rule.Text, c.Address, l.Err)
	case l.Err != nil && c.Namespace == "" && c.Err == nil: // judgeContainer says that there is no container
	case l.Err != nil:
		j.lost(stage, j.Node, findGateway, "this host has no route to its own container %s: %v", c.Address, l.Err)
	case l.Rule == nil && l.Dst.Bits() < subnetWith(j.Network.Local.Subnets, c.Address).Bits():
		j.lost(stage, j.Node, findGateway, "this host has no route to its own container %s but that to %s, by %s", c.Address,
			l.Dst, l.Link)
	case l.Rule != nil:
		j.lost(stage, tableName(l.Table), ruleRemedy(l, end, j.Network),
			"packets to %s leave by %s instead of %s: the routing rule %d (%s)", c.Address, l.Link, c.Bridge.Name,
			l.Rule.Priority, l.Rule.Text)
	default:
		j.lost(stage, tableName(l.Table), fmt.Sprintf("`ip route del %s dev %s`", l.Dst, l.Link),
			"packets to %s leave by %s instead of %s: the route to %s", c.Address, l.Link, c.Bridge.Name, l.Dst)
	}
}

// judgePort judges the host's end of the container's link, and the bridge.
func (j *judgement) judgePort(c Container) {
	const stage = "bridge"
	switch {
	case c.Bridge.Name == "":
		return // this host has no route to it either, which judgeDelivery says
	case c.isCutOff():
		j.judgeAddress(c)
	case !c.Bridge.Up:
		j.lost(stage, c.Bridge.Name, fmt.Sprintf("`ip link set %s up`", c.Bridge.Name), "%s is down", c.Bridge.Name)
	case c.Port.Name != "" && !c.Port.Up:
		j.lost(stage, c.Port.Name, fmt.Sprintf("`ip link set %s up`", c.Port.Name),
			"%s, which leads to the container, is down", c.Port.Name)
	case c.Port.Name != "" && c.Port.Name != c.Bridge.Name && c.Port.Master != c.Bridge.Name:
		j.lost(stage, c.Port.Name, fmt.Sprintf("`ip link set %s master %s`", c.Port.Name, c.Bridge.Name),
			"%s, which leads to the container, is not a port of %s", c.Port.Name, c.Bridge.Name)
	case c.Port.Name != "" && c.Port.Name != c.Bridge.Name:
		j.ok(stage, c.Bridge.Name, "%s is a port of %s, both up", c.Port.Name, c.Bridge.Name)
	default:
		j.ok(stage, c.Bridge.Name, "%s is up", c.Bridge.Name)
	}
}

func joinPrefixes(n Network) string {
	var out []string
	for _, s := range n.Local.Subnets {
		out = append(out, s.String())
	}
	return strings.Join(out, ", ")
}
