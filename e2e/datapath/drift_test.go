package datapath

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// repairTime is how long a repair may take on a busy machine. It is less than the interval between two
// full checks, 20 s, so that the kernel's notification is needed.
const repairTime = 15 * time.Second

// toldOf reports whether lines describe a fault with the words in says, or any fault or none if
// says is "". A few lines are allowed, because an agent that checks halfway through a command logs
// twice.
func toldOf(lines []string, says string) bool {
	const most = 4
	has := func(line string) bool { return strings.Contains(line, says) }
	return len(lines) <= most && (says == "" || slices.ContainsFunc(lines, has))
}

// drifting is a network whose state on a host the tests change.
type drifting struct {
	*testWorld
	host    *lab.Host
	name    string // of the network
	backend string
	pool    string // the first two numbers of its IPv4 pool, "10.5"
	peer    string // the peer's IPv4 subnet
	peerMAC string // for vxlan
}

func (d drifting) link() string { return "leno-" + d.name }

// tables returns the network's entire kernel state as sorted lines, without numbers that the kernel
// assigns.
func (d drifting) tables(ctx context.Context) (string, error) {
	script := fmt.Sprintf(`ip -o route show proto 108 root %[2]s.0.0/16
ip -o -6 route show proto 108 root fd00:%[3]s::/48`, d.link(), d.pool, strings.TrimPrefix(d.pool, "10."))
	if d.backend != "host-gw" {
		script += fmt.Sprintf(`
ip -o -d link show dev %[1]s
ip -o addr show dev %[1]s scope global
ip neigh show nud permanent dev %[1]s
ip -6 neigh show nud permanent dev %[1]s
bridge fdb show dev %[1]s 2>/dev/null | grep ' dst ' || true`, d.link())
	}
	out, err := d.host.Exec(ctx, "sh", "-ec", script)
	if err != nil {
		return "", err
	}
	var lines []string
	for line := range strings.Lines(out) {
		line = regexp.MustCompile(`^\d+: |state (UP|UNKNOWN)|valid_lft.*|expires \d+sec|linkdown`).ReplaceAllString(line, "")
		lines = append(lines, strings.TrimSpace(line))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), nil
}

// told returns the lines for operators that the agent logged about the network after the given
// number of bytes. Lines about an unreachable Consul are left out.
func (d drifting) told(from int) (lines []string) {
	for line := range strings.Lines(d.host.Agent().OutputFrom(from)) {
		line = strings.TrimSpace(line) + " "
		forDevelopers := strings.Contains(line, "[DEBUG]") || strings.Contains(line, "[TRACE]")
		aboutConsul := strings.Contains(line, "lease") || strings.Contains(line, "the store")
		if strings.Contains(line, " network="+d.name+" ") && !forDevelopers && !aboutConsul {
			lines = append(lines, line)
		}
	}
	return lines
}

// A fault is one change that another program makes to a host's network. In the script, LINK, POOL
// (10.5), PEER (three numbers of a subnet, 10.5.2), PEER6 and VTEP stand for the network's values.
type fault struct {
	name   string
	script string
	says   string // the words for the fault in the log
	on     string // backends to which it applies

	awayToo bool // also tested while Consul is unreachable
}

var faults = []fault{
	{"device deleted", "ip link del LINK", "device was deleted", "vxlan udp wireguard", true},
	{"device down", "ip link set LINK down", "device was down", "vxlan udp wireguard", false},
	{"device renamed", "ip link set LINK name moved-NET", "device was renamed: to moved-NET", "vxlan udp wireguard", true},
	{"device renamed while down", "ip -batch - <<X\nlink set LINK down\nlink set LINK name moved-NET\nX\nip link set moved-NET up || :", "device was renamed: to moved-NET", "vxlan udp wireguard", false},
	{"MTU changed", "ip link set LINK mtu 1300", "device had another MTU: 1300 instead of 14", "vxlan udp wireguard", false},
	{"MAC changed", "ip link set LINK address 02:00:00:00:00:01", "device had another MAC address: 02:00:00:00:00:01 instead of", "vxlan", false},
	{"alias changed", "ip link set LINK alias mine", "device had another alias", "vxlan udp wireguard", false},
	{"learning switched on", "ip link set LINK type vxlan learning", "device had another underlay: learning was on", "vxlan", false},
	{"TTL changed", "ip link set LINK type vxlan ttl 1", "device had another underlay: TTL was 1", "vxlan", false},
	{"addresses removed", "ip addr flush dev LINK scope global", "addresses were missing", "vxlan udp wireguard", true},
	{"address added", "ip addr add POOL.77.7/32 dev LINK", "foreign addresses were there: POOL.77.7/32", "vxlan udp wireguard", false},
	{"link-scope address added", "ip addr add POOL.77.8/32 dev LINK scope link", "foreign addresses were there: POOL.77.8/32", "vxlan udp wireguard", false},
	{"routes flushed", "ip route flush proto 108 root POOL.0.0/16; ip -6 route flush proto 108 root fd00:NUMBER::/48", "routes were missing", "vxlan host-gw udp wireguard", true},
	{"route removed", "ip route del PEER.0/24 proto 108", "routes were missing: PEER.0/24", "vxlan host-gw udp wireguard", false},
	{"route for the whole network removed", "ip route del unreachable POOL.0.0/16", "routes were missing: POOL.0.0/16", "vxlan host-gw udp wireguard", false},
	{"route replaced", "ip route replace PEER.0/24 via 192.0.2.254", "routes were changed: PEER.0/24 via 192.0.2.254", "vxlan host-gw udp wireguard", false},
	{"IPv6 route replaced", "ip -6 route replace PEER6/64 via fd00:c0:2::fe", "routes were changed: PEER6/64 via fd00:c0:2::fe", "vxlan host-gw udp wireguard", false},
	{"route added", "ip route add POOL.88.0/24 via 192.0.2.254 proto 108", "foreign routes were there: POOL.88.0/24", "vxlan host-gw udp wireguard", false},
	{"neighbours flushed", "ip neigh flush nud permanent dev LINK; ip -6 neigh flush nud permanent dev LINK", "neighbours were missing", "vxlan", true},
	{"neighbour changed", "ip neigh replace PEER.0 lladdr 02:00:00:00:00:02 dev LINK nud permanent", "neighbours were changed: PEER.0 02:00:00:00:00:02", "vxlan", false},
	{"neighbour changed to another kind", "ip neigh replace PEER.0 lladdr 02:00:00:00:00:02 dev LINK nud stale", "neighbours were missing: PEER.0", "vxlan", false},
	{"neighbour added", "ip neigh add POOL.99.0 lladdr 02:00:00:00:00:02 dev LINK nud permanent", "foreign neighbours were there: POOL.99.0", "vxlan", false},
	{"FDB entry removed", "bridge fdb del VTEP dev LINK", "FDB entries were missing: VTEP", "vxlan", true},
	{"FDB entry changed", "bridge fdb replace VTEP dev LINK dst 192.0.2.99", "FDB entries were changed: VTEP dst 192.0.2.99", "vxlan", false},
	{"FDB entry added", "bridge fdb add 02:00:00:00:00:03 dev LINK dst 192.0.2.99", "foreign FDB entries were there: 02:00:00:00:00:03", "vxlan", false},
}

// fill replaces the placeholders in a text with the network's values.
func (d drifting) fill(text string) string {
	number := strings.TrimPrefix(d.pool, "10.")
	slot := d.peer[strings.LastIndex(d.peer, ".")+1:]
	var n int
	fmt.Sscan(slot, &n)
	return strings.NewReplacer("LINK", d.link(), "NET", d.name, "POOL", d.pool, "NUMBER", number, "VTEP", d.peerMAC,
		"PEER6", fmt.Sprintf("fd00:%s:0:%x::", number, n), "PEER", d.peer).Replace(text)
}

// meddle causes a fault and blocks until the network is as before. The agent must log what was
// wrong once and nothing after that.
func (d drifting) meddle(f fault) error {
	before, err := d.tables(d.Ctx)
	if err != nil {
		return err
	}
	from := len(d.host.Agent().Output())
	if _, err := d.host.Exec(d.Ctx, "sh", "-ec", d.fill(f.script)); err != nil {
		return err
	}
	started := time.Now()
	err = lab.WaitFor(d.Ctx, "the network as before", func(ctx context.Context) error {
		if err := logged(d.told(from), d.fill(f.says)); err != nil {
			return err
		}
		now, err := d.tables(ctx)
		if err == nil && now != before {
			err = fmt.Errorf("\n%s\nbefore\n%s", now, before)
		}
		return err
	})
	if err != nil {
		return err
	}
	if took := time.Since(started); took > repairTime {
		return fmt.Errorf("repaired after %s", took)
	}
	lines, err := d.quiet(func() []string { return d.told(from) })
	if err != nil {
		return err
	}
	if !toldOf(lines, d.fill(f.says)) {
		return fmt.Errorf("logged, instead of a line with %q:\n%s", d.fill(f.says), strings.Join(lines, "\n"))
	}
	return nil
}

// logged returns an error unless one of the lines contains the words.
func logged(lines []string, words string) error {
	if slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, words) }) {
		return nil
	}
	return fmt.Errorf("no line with %q is logged in:\n%s", words, strings.Join(lines, "\n"))
}

// quiet returns what was logged, once nothing has been added for longer than the agent waits to
// check its own writes.
func (w *testWorld) quiet(told func() []string) ([]string, error) {
	lines, since := told(), time.Now()
	err := lab.WaitFor(w.Ctx, "the log to be quiet", func(context.Context) error {
		if now := told(); len(now) != len(lines) {
			lines, since = now, time.Now()
		}
		if time.Since(since) < 400*time.Millisecond {
			return errors.New("not quiet")
		}
		return nil
	})
	return lines, err
}

// newDrift runs a network of each backend on two hosts.
func newDrift(t *testing.T) (*testWorld, drifts) {
	w := newWorld(t, lab.Options{Hosts: 2})
	nets := drifts{
		{name: "vx", backend: "vxlan", pool: "10.5"}, {name: "gw", backend: "host-gw", pool: "10.6"}, {name: "ud", backend: "udp", pool: "10.7"},
		{name: "wg", backend: "wireguard", pool: "10.8"},
	}
	w.Start(func(h *lab.Host) []string {
		// The interface is named, not found by the default route, which is lost when eth0 goes
		// down.
		blocks := []string{world.ShortLease, "underlay {\n  interfaces = [\"eth0\"]\n}"}
		for _, n := range nets {
			blocks = append(blocks, h.Network(n.name, fmt.Sprintf(`
  ipv4 {
    prefix = "%[1]s.0.0/16"
    max    = "%[1]s.70.0" # no host has the subnets in the faults
  }
  ipv6 { prefix = "fd00:%[2]s::/48" }
  backend %[3]q {}`, n.pool, strings.TrimPrefix(n.pool, "10."), n.backend)))
		}
		return blocks
	})
	for i := range nets {
		n := &nets[i]
		n.testWorld, n.host = w, w.Hosts[0]
		for _, h := range w.Hosts {
			w.Container(h, n.name)
		}
		w.Settle(n.name)
		n.peer = strings.TrimSuffix(w.Subnet(w.Hosts[1], n.name).String(), ".0/24")
		if n.backend == "vxlan" {
			out, err := w.Hosts[1].Exec(w.Ctx, "ip", "-o", "link", "show", "dev", n.link())
			w.Must(err)
			_, rest, _ := strings.Cut(out, "link/ether ")
			n.peerMAC, _, _ = strings.Cut(rest, " ")
		}
		_, err := n.quiet(func() []string { return n.told(0) })
		w.Must(err)
	}
	w.Linked(w.Containers)
	return w, nets
}

// TestDrift changes each backend's state as other programs and people do, and checks that the agent
// repairs it, logs it once and then leaves it alone.
func TestDrift(t *testing.T) {
	w, nets := newDrift(t)
	nets.suffer("", func(fault) bool { return true })
	w.Matrix()
	for _, f := range hostFaults {
		if err := nets.meddle(f); err != nil {
			t.Errorf("%s: %v", f.name, err)
		}
	}
	w.Matrix()
	w.WaitHealth(w.Hosts[0], 200)
	nets.idle()

	// The bridge of containers is another program's: its switch is named and not changed.
	_, err := w.Hosts[0].Exec(w.Ctx, "sysctl", "-qw", "net.ipv4.conf.br0.forwarding=0")
	w.Must(err)
	w.WaitHealth(w.Hosts[0], 429, "net.ipv4.conf.br0.forwarding is 0: containers cannot reach other hosts")
	_, err = w.Hosts[0].Exec(w.Ctx, "sysctl", "-qw", "net.ipv4.conf.br0.forwarding=1")
	w.Must(err)
	w.WaitHealth(w.Hosts[0], 200)
	w.Matrix()
}

// A hostFault is one change to the host that affects all its networks.
type hostFault struct {
	name   string
	batch  string            // commands for ip(8)
	sysctl string            // or a sysctl
	right  string            // a command that fails on the host until the fault is repaired
	peer   string            // the same on its peer
	once   string            // what is logged, for one network only
	each   map[string]string // or what is logged for each network, by backend
}

// each returns the same line for every network.
func each(says string) map[string]string {
	return map[string]string{"vxlan": says, "host-gw": says, "udp": says, "wireguard": says}
}

// linkScope adds an address of link scope to the device of a network. Whatever ends the first of two such faults, the
// second one begins right after the datapath was checked: longer than repairTime before the next full check.
func linkScope(addr string) hostFault {
	return hostFault{name: "address " + addr + " of link scope added", batch: "addr add " + addr + "/32 dev leno-vx scope link",
		right: "! ip addr show dev leno-vx | grep " + addr, once: "foreign addresses were there: " + addr + "/32"}
}

// eth0Up does what a network daemon does after eth0 came up.
const eth0Up = `link set eth0 up
addr add fd00:c0:2::11/64 dev eth0 nodad
route add default via 192.0.2.254`

var hostFaults = []hostFault{
	{name: "forwarding switched off", sysctl: "net.ipv4.ip_forward=0",
		right: "[ $(sysctl -n net.ipv4.ip_forward) = 1 ]", once: "forwarding was off: net.ipv4.ip_forward"},
	{name: "forwarding of a device switched off", sysctl: "net.ipv4.conf.leno-ud.forwarding=0",
		right: "[ $(sysctl -n net.ipv4.conf.leno-ud.forwarding) = 1 ]", once: "forwarding was off: net.ipv4.conf.leno-ud.forwarding"},
	{name: "IPv6 forwarding switched off", sysctl: "net.ipv6.conf.all.forwarding=0",
		right: "[ $(sysctl -n net.ipv6.conf.all.forwarding) = 1 ]", once: "forwarding was off: net.ipv6.conf.all.forwarding"},
	linkScope("10.5.77.8"), linkScope("10.5.77.9"),
	{name: "MTU of the underlay lowered", batch: "link set eth0 mtu 1400",
		right: "ip link show leno-vx | grep 'mtu 1350'; ip link show leno-ud | grep 'mtu 1372'; ip link show leno-wg | grep 'mtu 1340'", each: each("underlay changed")},
	{name: "MTU of the underlay raised", batch: "link set eth0 mtu 1500",
		right: "ip link show leno-vx | grep 'mtu 1450'; ip link show leno-ud | grep 'mtu 1472'; ip link show leno-wg | grep 'mtu 1440'", each: each("underlay changed")},
	{name: "underlay down and up", batch: "link set eth0 down\n" + eth0Up,
		right: "[ $(ip route show proto 108 | grep -c 'via 192.0.2.12') = 1 ]", each: map[string]string{"host-gw": "routes were missing"}},
	{name: "underlay down", batch: "link set eth0 down",
		right: "true", each: each("underlay cannot be used at the moment, keeping it")},
	{name: "underlay up", batch: eth0Up,
		right: "[ $(ip route show proto 108 | grep -c 'via 192.0.2.12') = 1 ]", each: each("underlay can be used again")},
	{name: "address of the underlay changed", batch: `addr del 192.0.2.11/24 dev eth0
addr add 192.0.2.31/24 dev eth0
route add default via 192.0.2.254`,
		right: "ip -d link show leno-vx | grep 'local 192.0.2.31'; ip route show proto 108 | grep 'via 192.0.2.12'",
		peer:  "bridge fdb show dev leno-vx | grep 'dst 192.0.2.31'; ip route show proto 108 | grep 'via 192.0.2.31'", each: each("underlay changed")},
}

// drifts are all networks of the host.
type drifts []drifting

// suffer causes the chosen faults in all networks at the same time, in each one after the other.
func (all drifts) suffer(when string, chosen func(fault) bool) {
	var networks sync.WaitGroup
	for _, d := range all {
		networks.Go(func() {
			for _, f := range faults {
				if chosen(f) && slices.Contains(strings.Fields(f.on), d.backend) {
					if err := d.meddle(f); err != nil {
						d.T.Errorf("%s%s, %s: %v", when, d.backend, f.name, err)
					}
				}
			}
		})
	}
	networks.Wait()
}

// told returns what was logged about any of them.
func (all drifts) told(from int) (lines []string) {
	for _, d := range all {
		lines = append(lines, d.told(from)...)
	}
	return lines
}

// logged returns an error until every network has logged a fault of the host, or one has that is logged once.
func (all drifts) logged(f hostFault, from int) error {
	if f.once != "" {
		return logged(all.told(from), f.once)
	}
	for _, d := range all {
		if says := f.each[d.backend]; says != "" {
			if err := logged(d.told(from), says); err != nil {
				return fmt.Errorf("%s: %w", d.backend, err)
			}
		}
	}
	return nil
}

// meddle causes a fault on the host, and blocks until it is repaired and logged and until the log
// is quiet again.
func (all drifts) meddle(f hostFault) error {
	w, h := all[0].testWorld, all[0].host
	from := len(h.Agent().Output())
	command := []string{"sysctl", "-qw", f.sysctl}
	if f.batch != "" {
		command = []string{"sh", "-ec", "ip -batch - <<'END'\n" + f.batch + "\nEND"}
	}
	// The agent is stopped, so that it sees the end of a batch only, however busy the machine is.
	w.Must(h.Agent().Signal(syscall.SIGSTOP))
	_, err := h.Exec(w.Ctx, command...)
	w.Must(h.Agent().Signal(syscall.SIGCONT))
	if err != nil {
		return err
	}
	started := time.Now()
	err = lab.WaitFor(w.Ctx, "it to be right again", func(ctx context.Context) error {
		if err := all.logged(f, from); err != nil {
			return err
		}
		_, err := h.Exec(ctx, "sh", "-ec", f.right)
		if err == nil && f.peer != "" {
			_, err = w.Hosts[1].Exec(ctx, "sh", "-ec", f.peer)
		}
		return err
	})
	if err != nil {
		return err
	}
	if took := time.Since(started); took > repairTime {
		return fmt.Errorf("repaired after %s", took)
	}
	lines, err := w.quiet(func() []string { return all.told(from) })
	if err != nil {
		return err
	}
	if f.once != "" {
		if !toldOf(lines, f.once) {
			return fmt.Errorf("logged, instead of a line with %q:\n%s", f.once, strings.Join(lines, "\n"))
		}
		return nil
	}
	for _, d := range all {
		lines, says := d.told(from), f.each[d.backend]
		if !toldOf(lines, says) {
			return fmt.Errorf("logged of %s, instead of a line with %q:\n%s", d.backend, says, strings.Join(lines, "\n"))
		}
	}
	return nil
}

// idle checks that the agent writes nothing to the kernel or the log while nothing happens.
func (all drifts) idle() {
	w, h := all[0].testWorld, all[0].host
	w.T.Helper()
	from := len(h.Agent().Output())
	deleted := w.RouteEvents(h)
	monitor, err := h.Start("ip", "monitor", "link", "address", "route", "neigh")
	w.Must(err)
	_, err = w.quiet(func() []string { return append(all.told(from), strings.Split(monitor.Output(), "\n")...) })
	w.Must(err)
	w.Must(monitor.Stop(w.Ctx))
	for line := range strings.Lines(monitor.Output()) {
		if strings.Contains(line, "leno-") || strings.Contains(line, "proto 108") {
			w.T.Errorf("written while nothing happens: %s", line)
		}
	}
	if gone := deleted(); len(gone) != 0 {
		w.T.Errorf("deleted while nothing happens: %q", gone)
	}
	if lines := all.told(from); len(lines) != 0 {
		w.T.Errorf("logged while nothing happens: %q", lines)
	}
}

// TestDriftWithoutConsul checks that the agent restores what was removed while Consul is
// unreachable, also after the agent was killed and restarted in that time.
func TestDriftWithoutConsul(t *testing.T) {
	w, nets := newDrift(t)
	h := nets[0].host
	awayToo := func(f fault) bool { return f.awayToo }
	w.Must(w.Consul.Stop(w.Ctx))
	w.WaitHealth(h, 429, "renew")
	nets.suffer("Consul away, ", awayToo)
	w.Must(h.KillAgent())
	w.Must(h.RestartAgent())
	for _, d := range nets {
		w.WaitHealth(h, 429, "has not been read yet", "peers in place")
		w.Eventually(d.name+" to be looked after", func(ctx context.Context) error {
			var got api.Network
			if err := world.GetJSON(ctx, h, "/v1/network/"+d.name, &got); err != nil {
				return err
			}
			if got.Local == nil || got.Local.Peers != 1 {
				return fmt.Errorf("%+v", got.Local)
			}
			return nil
		})
		_, err := d.quiet(func() []string { return d.told(0) })
		w.Must(err)
	}
	nets.suffer("after a restart, ", awayToo)
	w.Must(w.Consul.Start(w.Ctx))
	w.Must(h.WaitReady(w.Ctx))
	for _, d := range nets {
		w.Settle(d.name)
	}
	w.WaitHealth(h, 200)
	w.Matrix()
}
