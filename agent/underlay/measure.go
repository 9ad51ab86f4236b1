package underlay

import (
	"fmt"
	"slices"
)

// leastPath is the narrowest path to a single host that counts: IPv6's minimum MTU (1280, RFC 8200) and the 70 bytes
// of VXLAN over IPv6. With a lower limit one host, or one wrong record, would make the network unusable for all. The
// kernel's path MTU discovery handles narrower paths, for that host alone.
const leastPath = 1350

// defaultMTU applies where no device has an MTU: it is Ethernet's.
const defaultMTU = 1500

// maxDepth bounds how many devices may be stacked.
const maxDepth = 8

// width is the longest packet that fits somewhere, and where that is.
type width struct {
	mtu  int
	from string
}

// measure sets the choice's MTU. It is the least of the MTUs of the chosen interface, of the default routes that
// leave through it, and of the paths to other hosts. For each route, its own MTU counts and those of the devices it
// leaves through, down to the lowest device. An interface that carries nothing itself does not count, only the routes
// do. It is pure.
func measure(host Host, c Choice, paths []Path) Choice {
	m := measurement{host: host}
	chosen, _ := host.link(c.Index)
	m.use(chosen.Name)
	if !chosen.Ends {
		m.least(m.span(chosen))
	}
	for _, r := range usedDefaults(host, c, chosen) {
		m.route(r.Route, "the "+r.String(), chosen)
	}
	for _, p := range paths {
		before := m.best
		m.route(p.Route, "the route to "+p.To.String(), chosen)
		if m.best.mtu < leastPath {
			m.best = before
		}
	}
	if m.best.from == "" {
		m.best = width{defaultMTU, "Ethernet, since no route says more"}
	}
	c.MTU, c.MTUFrom = m.best.mtu, m.best.from
	slices.Sort(m.devices)
	c.Devices = slices.Compact(m.devices)
	return c
}

// usedDefaults returns the default routes that packets from the choice take. For an interface that carries nothing,
// they are those of the main table with the lowest metric.
func usedDefaults(host Host, c Choice, chosen Link) (out []DefaultRoute) {
	v6 := c.Addrs[0].Is6()
	for _, r := range host.Defaults {
		switch {
		case r.IPv6 != v6:
		case !chosen.Ends && slices.Contains(r.Hops, c.Index):
			out = append(out, r)
		case chosen.Ends && r.Table == 0:
			if len(out) > 0 && r.Metric < out[0].Metric {
				out = out[:0]
			}
			if len(out) == 0 || r.Metric == out[0].Metric {
				out = append(out, r)
			}
		}
	}
	return out
}

type measurement struct {
	host    Host
	best    width
	devices []string
}

func (m *measurement) use(device string) { m.devices = append(m.devices, device) }

func (m *measurement) least(w width) {
	if m.best.from == "" || w.mtu < m.best.mtu {
		m.best = w
	}
}

// route measures one route: every device it leaves through, and its own MTU.
func (m *measurement) route(r Route, name string, chosen Link) {
	by := ""
	for _, hop := range r.Hops {
		l, ok := m.host.link(hop)
		if !ok || l.Ends || nested(l, chosen) {
			continue
		}
		w := m.span(l)
		by = " by " + l.Name
		if l.Index != chosen.Index {
			w.from += ", by which " + name + " leaves,"
		}
		m.least(w)
	}
	if r.MTU > 0 {
		m.least(width{r.MTU, name + by})
	}
}

// nested reports whether packets to another host go through a network of leno without being configured to. Such a
// network's MTU follows from that of the underlay: when two networks each have a host whose address is in the other
// one, they would narrow each other forever, on all hosts.
func nested(l, chosen Link) bool { return l.ours() && l.Index != chosen.Index }

// span returns how long a packet may be on a device and on all devices below it.
func (m *measurement) span(l Link) width {
	w := width{l.MTU, l.Name}
	under, taken := l, 0
	for range maxDepth {
		m.use(under.Name)
		taken += under.Overhead
		parent, ok := m.host.link(under.Parent)
		if !ok {
			break
		}
		if fits := parent.MTU - taken; fits < w.mtu {
			w = width{fits, fmt.Sprintf("%s on %s", l.Name, parent.Name)}
			if taken > 0 {
				w.from = fmt.Sprintf("%s (%d of %s - %d)", l.Name, parent.MTU, parent.Name, taken)
			}
		}
		under = parent
	}
	return w
}
