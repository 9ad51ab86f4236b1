package soak

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// disturbNetwork makes a fault of a host's own network, of which its agent and the store know nothing, and undoes it.
func (r *run) disturbNetwork(ctx context.Context, s Step, m *machine) error {
	node, _ := m.now()
	d := Disturbance{Node: node, Why: s.Kind}
	var do, undo func(context.Context) error
	switch s.Kind {
	case AttackPeers:
		return r.attackPeers(ctx, s, m)
	case ForeignRules:
		do, undo = m.script(addForeignRules), m.script(removeForeignRules)
	case ChangeMTU:
		do, undo = r.changeMTU(m, []int{1400, 1600}[s.Pick%2])
	case RoutingRule:
		prefix := ""
		d.Network, d.Peer, prefix = r.routeTaken(s, m)
		do = m.script("ip tuntap add dev soak0 mode tun; ip link set soak0 up; ip route add $1 dev soak0 table 52; "+
			fmt.Sprintf("ip rule add pref %d lookup 52", detourPriority), prefix)
		undo = m.script(fmt.Sprintf("ip rule del pref %d; ip link del soak0", detourPriority))
	case DisableIPv6:
		do, undo = m.ipv6Switch(s.Pick%2 == 1)
	default:
		return fmt.Errorf("%s is not a fault of a host's network", s.Kind)
	}
	end := r.disturbance(d)
	err := between(ctx, s.For, do, undo)
	if err == nil {
		end()
	}
	return err
}

// script returns a function that runs a shell script on the host.
func (m *machine) script(text string, args ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := m.Exec(ctx, append([]string{"sh", "-euc", text, "sh"}, args...)...)
		return err
	}
}

// foreignComment is the comment of the rules that the suite adds as another program.
const foreignComment = "soak"

// foreignCount is their number.
const foreignCount = 2

// iptables cannot show these rules, and says of their tables that they are incompatible. They match nothing that leno
// would not accept, and change nothing.
const addForeignRules = `nft -f - <<'END'
add table ip nat
add chain ip nat POSTROUTING { type nat hook postrouting priority 100; }
add rule ip nat POSTROUTING ip saddr { 192.0.2.0/25, 198.51.100.0/24 } counter masquerade comment "` + foreignComment + `"
add table ip filter
add chain ip filter FORWARD { type filter hook forward priority 0; }
add rule ip filter FORWARD ct state vmap { established : accept, related : accept } comment "` + foreignComment + `"
END`

const removeForeignRules = `for chain in 'nat POSTROUTING' 'filter FORWARD'; do
	for handle in $(nft -a list chain ip $chain | sed -n 's/.*comment "` + foreignComment + `" # handle //p'); do
		nft delete rule ip $chain handle $handle
	done
done`

// detourPriority is the priority of Tailscale's routing rule.
const detourPriority = 5270

// routeTaken chooses the packets that a routing rule takes: those of one of the host's networks, or those to the address
// of another host.
func (r *run) routeTaken(s Step, m *machine) (network, peer, prefix string) {
	if s.Pick%2 == 0 {
		var of []part
		for _, p := range m.takesPart() {
			if p.carries && p.origin != temporary {
				of = append(of, p)
			}
		}
		p := of[s.Pick/2%len(of)]
		return p.name, "", fmt.Sprintf("10.%d.0.0/16", p.number)
	}
	others := slices.DeleteFunc(slices.Clone(r.machines), func(o *machine) bool { return !o.carries || o == m })
	other := others[s.Pick/2%len(others)]
	peer, _ = other.now()
	return "", peer, other.Addrs[0].String() + "/32"
}

// changeAddress gives a host other addresses between hosts, and its own again a while later.
func (r *run) changeAddress(ctx context.Context, s Step, m *machine) error {
	var away []netip.Addr
	for _, addr := range m.Addrs {
		bytes := addr.AsSlice()
		bytes[len(bytes)-1] += 0x80
		other, _ := netip.AddrFromSlice(bytes)
		away = append(away, other)
	}
	move := func(from, to []netip.Addr) error {
		return r.silenced(ctx, s, m, func(ctx context.Context) error { return r.readdress(ctx, m, from, to) })
	}
	return errors.Join(move(m.Addrs, away), sleep(ctx, s.For), move(away, m.Addrs))
}

// readdress replaces a host's addresses between hosts. Its Consul agent leaves with the old ones and comes back with the new ones.
func (r *run) readdress(ctx context.Context, m *machine, from, to []netip.Addr) error {
	if r.hasConsul() {
		if err := m.Host.Consul.Stop(ctx); err != nil {
			return err
		}
	}
	r.say("%s: from %v to %v", m.Name, from, to)
	// Without promote_secondaries, the kernel removes the new address with the old one.
	err := m.script("echo 1 >/proc/sys/net/ipv4/conf/eth0/promote_secondaries; ip addr add $3/24 dev eth0; ip addr del $1/24 dev eth0; "+
		"ip addr add $4/64 dev eth0 nodad; ip addr del $2/64 dev eth0",
		from[0].String(), from[1].String(), to[0].String(), to[1].String())(ctx)
	return errors.Join(err, r.startClient(ctx, m))
}

// changeMTU returns functions that change the MTU of the host's underlay and restore it. The servers know the path to the
// host, so that the store answers it with packets that arrive.
func (r *run) changeMTU(m *machine, mtu int) (do, undo func(context.Context) error) {
	const before = 1500
	onServers := func(ctx context.Context, route string) error {
		for _, server := range r.StoreServers {
			if _, err := server.About().Namespace.Exec(ctx, "sh", "-euc", "ip route "+route); err != nil {
				return err
			}
		}
		return nil
	}
	do = func(ctx context.Context) error {
		path := fmt.Sprintf("replace %s dev eth0 mtu %d", m.Addrs[0], min(mtu, before))
		return errors.Join(onServers(ctx, path), m.script(fmt.Sprint("ip link set eth0 mtu ", mtu))(ctx))
	}
	undo = func(ctx context.Context) error {
		return errors.Join(m.script(fmt.Sprint("ip link set eth0 mtu ", before))(ctx), onServers(ctx, "delete "+m.Addrs[0].String()))
	}
	return do, undo
}

// ipv6Switch returns functions that switch IPv6 off and on: for the devices of leno that the host has, if one is
// enough, or for all. The kernel forgets all addresses, so those of other programs are restored.
func (m *machine) ipv6Switch(own bool) (off, on func(context.Context) error) {
	var restore []string
	off = func(ctx context.Context) error {
		addrs, err := m.Exec(ctx, "ip", "-6", "-oneline", "address", "show", "scope", "global")
		if err != nil {
			return err
		}
		for line := range strings.Lines(addrs) {
			if f := strings.Fields(line); len(f) > 3 && !strings.HasPrefix(f[1], devicePrefix) {
				restore = append(restore, fmt.Sprintf("ip link show dev %s && ip -6 address replace %s dev %[1]s nodad", f[1], f[3]))
			}
		}
		routes, err := m.Exec(ctx, "ip", "-6", "route", "show", "default")
		if err != nil {
			return err
		}
		for line := range strings.Lines(routes) {
			restore = append(restore, "ip -6 route replace "+strings.TrimSpace(line))
		}
		pattern := "*"
		if links, err := m.Exec(ctx, "ip", "-oneline", "link", "show"); own && err == nil && strings.Contains(links, devicePrefix) {
			pattern = devicePrefix + "*"
		}
		return m.script("for f in /proc/sys/net/ipv6/conf/" + pattern + "/disable_ipv6; do echo 1 >$f; done")(ctx)
	}
	on = func(ctx context.Context) error {
		errs := []error{m.script("for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 0 >$f; done")(ctx)}
		for _, line := range restore {
			errs = append(errs, m.script(line+" || true")(ctx))
		}
		return errors.Join(errs...)
	}
	return off, on
}

// disturbance records the beginning of a disturbance; the returned function ends it.
func (r *recorder) disturbance(d Disturbance) (end func()) {
	i := 0
	r.record(func(h *History) {
		i = len(h.Disturbances)
		d.Span = Span{r.now(), forever}
		h.Disturbances = append(h.Disturbances, d)
	})
	return func() { r.record(func(h *History) { h.Disturbances[i].To = r.now() }) }
}
