package soak

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// An origin says where a network's definition comes from.
type origin int

const (
	fromFiles    origin = iota // blocks in agents' configurations
	onlyInConsul               // an operator, with network apply
	temporary                  // an operator, who defines and deletes it again and again
)

// A network is one of the run's networks. Its name has at most eight characters, so that its
// devices can be named leno-NAME and leno-NAME~b.
type network struct {
	name    string
	number  int // its pool is 10.NUMBER.0.0/16
	carries bool
	origin  origin
}

// full is a network that has as many subnets as hosts, or one fewer.
const full = "full"

// aside is a network without hosts. It is defined in a store that has lost everything, and deleted
// a while later.
const aside = "aside"

// allNetworks returns the networks of every run: packets between the carriers, and leases only
// between the others.
func allNetworks() []network {
	return []network{
		{"carry", 5, true, fromFiles},
		{"carry-kv", 7, true, onlyInConsul},
		{"carry-t", 9, true, temporary},
		{"lease", 6, false, fromFiles},
		{"lease-kv", 8, false, onlyInConsul},
		{"lease-t", 10, false, temporary},
		{full, 12, false, onlyInConsul},
	}
}

func findNetwork(name string) network {
	for _, n := range allNetworks() {
		if n.name == name {
			return n
		}
	}
	return network{aside, 11, false, temporary}
}

// variants is the number of definitions of a network between which hosts can change while they run.
const variants = 4

// slots returns the number of subnets of a network without packets. Unless it is the full one, the pool is small enough
// that a host that wants a subnet meets those that were given up, and large enough for the dead hosts that a restored
// snapshot revives.
func (n network) slots(o Options, variant int) int {
	if n.name != full {
		return o.Agents - o.Carriers + 8 + 4*(variant%2)
	}
	hosts := 0
	for i := range o.Agents {
		if slices.ContainsFunc(o.partsOf(i, ""), func(p *part) bool { return p.name == full }) {
			hosts++
		}
	}
	return hosts - variant%2
}

// last returns the last subnet of a network without packets.
func (n network) last(o Options, variant int) string {
	return fmt.Sprintf("10.%d.%d.0", n.number, n.slots(o, variant))
}

// datapaths are the backends between which networks with packets are switched. They begin with the first one.
var datapaths = []string{"vxlan", "host-gw", "udp", "wireguard"}

// definition returns the part of a network block that all hosts share. backend is one of datapaths, and has no meaning
// for a network without packets.
func (n network) definition(o Options, variant int, backend string) string {
	if !n.carries {
		return fmt.Sprintf("  ipv4 {\n    prefix = \"10.%d.0.0/16\"\n    min    = \"10.%[1]d.1.0\"\n    max    = %q\n  }\n  backend \"alloc\" {}\n",
			n.number, n.last(o, variant))
	}
	pools := fmt.Sprintf("  ipv4 {\n    prefix = \"10.%d.0.0/16\"\n  }\n", n.number)
	if n.origin == fromFiles {
		pools += fmt.Sprintf("  ipv6 {\n    prefix = \"fd00:%d::/48\"\n  }\n", n.number)
	}
	return pools + fmt.Sprintf("  backend %q {\n%s  }\n", backend, n.options(variant, backend))
}

// options returns the options of a backend. Each network has UDP ports of its own.
func (n network) options(variant int, backend string) string {
	switch backend {
	case "udp":
		return fmt.Sprintf("    port = %d\n", 8267+n.number)
	case "wireguard":
		return fmt.Sprintf("    listen_port = %d\n    persistent_keepalive = %d\n", 51800+2*n.number, 25*(variant%2))
	case "vxlan":
		offload := "auto"
		if variant/2%2 == 1 {
			offload = "off"
		}
		return fmt.Sprintf("    vni = %d\n    port = %d\n    direct_routing = %t\n    checksum_offload = %q\n",
			n.number, 8467+n.number, variant%2 == 1, offload)
	}
	return ""
}

// flannel returns the definition without variants, as flannel stores it in etcd.
func (n network) flannel(o Options) string {
	if n.carries {
		return fmt.Sprintf(`{"Network":"10.%d.0.0/16","Backend":{"Type":"vxlan","VNI":%[1]d,"Port":%d}}`, n.number, 8467+n.number)
	}
	return fmt.Sprintf(`{"Network":"10.%d.0.0/16","SubnetMin":"10.%[1]d.1.0","SubnetMax":%q,"Backend":{"Type":"alloc"}}`, n.number, n.last(o, 0))
}

// A part is a machine's part in one network.
type part struct {
	network
	joins joining

	file   string // subnet_file
	former string // the previous subnet_file
	masq   bool   // ip_masq
}

// joining says how a host takes part in a network.
type joining int

const (
	byDefinition joining = iota // a block with pools
	byBlock                     // a block without pools
	byWatching                  // watch_networks
)

// partsOf returns the parts of the machine with the given index. All machines take part in the
// network of their kind that is defined in files, two of three in the one that exists only in
// Consul, and those that use watch_networks in the temporary one as well. One more host defines the
// temporary network in its file. Hosts without packets that do not use watch_networks take part in the full one.
func (o Options) partsOf(index int, dir string) []*part {
	carries := o.carries(index)
	order := index
	if !carries {
		order = index - o.Carriers + 2 // 2, 0, 1, 2, ...: the first one watches
	}
	var out []*part
	for _, n := range allNetworks() {
		if n.carries != carries {
			continue
		}
		p := &part{network: n, file: filepath.Join(dir, n.name+".env")}
		p.former = p.file
		switch watches := order%3 != 0 && (carries || order%3 == 2); {
		case n.origin == fromFiles:
			p.joins = byDefinition
		case n.name == full && watches:
			continue
		case watches:
			p.joins = byWatching
		case n.name == full:
			p.joins = byBlock
		case n.origin == onlyInConsul && (carries || order%3 == 0):
			p.joins = byBlock
		case n.origin == temporary && !carries && order == 3:
			p.joins = byDefinition
		default:
			continue
		}
		out = append(out, p)
	}
	return out
}

// blocks returns the configuration blocks for a machine's parts.
func (o Options) blocks(parts []*part) string {
	var out strings.Builder
	for _, p := range parts {
		if p.joins == byWatching {
			pattern, _, _ := strings.Cut(p.name, "-")
			fmt.Fprintf(&out, "watch_networks   = true\nallowed_networks = [%q]\n\n", pattern+"-*")
			break
		}
	}
	for _, p := range parts {
		if p.joins == byWatching {
			continue
		}
		fmt.Fprintf(&out, "network %q {\n", p.name)
		if p.joins == byDefinition {
			out.WriteString(p.definition(o, 0, datapaths[0]))
		}
		fmt.Fprintf(&out, "  forward     = true\n  ip_masq     = %t\n  subnet_file = %q\n}\n\n", p.masq, p.file)
	}
	return out.String()
}
