//go:build vm

package vm

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/lenonet/leno/e2e/lab"
)

// An underlayPair is a pair whose hosts reach each other over underlays that namespaces of one
// kernel cannot show, and reach Consul over eth0. Each host is in a network of vxlan and in one of
// udp.
type underlayPair struct {
	*pair
	overlay []netip.Addr // addresses of the second machine: in the network of vxlan, and in that of udp
}

// TestUnderlays puts two hosts on one kind of underlay after the other, and changes it while they
// use it.
func TestUnderlays(t *testing.T) {
	t.Parallel()
	u := &underlayPair{pair: newPair(t, Options{Kernel: defaultKernel, Cards: 2})}
	u.onBoth("ip link set eth1 up; ip addr add 198.18.0.%d/24 dev eth1; ip link set eth2 up")
	u.selectUnderlay("eth1")
	for _, m := range u.both() {
		u.must(m, "systemctl", "start", "leno")
		u.must(m, "leno", "status", "-wait=2m")
	}
	for _, network := range []string{"default", "second"} {
		gateway := strings.TrimSpace(u.must(u.b, "sed", "-n", "s/^LENO_SUBNET=//p", "/run/leno/"+network+".env"))
		u.overlay = append(u.overlay, netip.MustParsePrefix(gateway).Masked().Addr())
	}
	for _, kind := range []struct {
		name string
		test func(*underlayPair)
	}{
		{"VRF", (*underlayPair).vrf},
		{"replaced card", (*underlayPair).replacedCard},
		{"netem", (*underlayPair).netem},
		{"path MTU", (*underlayPair).pathMTU},
		{"bond and VLAN", (*underlayPair).bond},
		{"DHCP", (*underlayPair).dhcp},
	} {
		t.Run(kind.name, func(t *testing.T) {
			own := *u.pair
			own.t = t
			t.Cleanup(own.logIfFailed)
			kind.test(&underlayPair{&own, u.overlay})
		})
	}
}

// onBoth runs a script on both machines, with 11 and 12 in the place of %d.
func (u *underlayPair) onBoth(script string) {
	u.t.Helper()
	for i, m := range u.both() {
		u.must(m, "sh", "-euc", strings.ReplaceAll(script, "%d", fmt.Sprint(11+i)))
	}
}

// selectUnderlay writes configurations that name an interface as the underlay, and reloads agents that run.
func (u *underlayPair) selectUnderlay(link string) {
	u.t.Helper()
	for _, m := range u.both() {
		u.selectOn(m, link)
	}
}

func (u *underlayPair) selectOn(m *Machine, link string) {
	u.t.Helper()
	u.write(m, "/etc/leno.d/leno.hcl", fmt.Sprintf(`consul {
  address = %q
}
underlay {
  interfaces = [%q]
}
network "default" {
  ipv4 {
    prefix = "10.5.0.0/16"
  }
  backend "vxlan" {}
}
network "second" {
  ipv4 {
    prefix = "10.6.0.0/16"
  }
  backend "udp" {}
}
`, u.lab.Consul.Address(), link))
	u.must(m, "sh", "-euc", "! systemctl is-active --quiet leno || leno reload")
}

// crosses waits until packets cross in both networks and the status of both hosts is passing.
func (u *underlayPair) crosses() {
	u.t.Helper()
	for _, m := range u.both() {
		u.wait(m, "leno to be healthy", "leno status | grep '^Status *passing, ready$'")
	}
	for _, to := range u.overlay {
		u.wait(u.a, "an answer from "+to.String(), "ping -n -c 1 -W 2 "+to.String())
	}
}

// says waits until a command of leno prints some words, whatever its exit code.
func (u *underlayPair) says(m *Machine, command string, words ...string) {
	u.t.Helper()
	err := lab.WaitFor(u.ctx, fmt.Sprintf("%s on %s to say %q", command, m.Name, words), func(ctx context.Context) error {
		out, _ := m.Run(ctx, "sh", "-c", command+" 2>&1")
		text := strings.Join(strings.Fields(out), " ")
		for _, w := range words {
			if !strings.Contains(text, w) {
				return fmt.Errorf("%q is missing in\n%s", w, out)
			}
		}
		return nil
	})
	if err != nil {
		u.t.Fatal(err)
	}
}

// noFault waits until `leno doctor` finds no fault. A warning about a single packet is allowed: an
// emulated machine may be slow.
func (u *underlayPair) noFault(m *Machine) {
	u.t.Helper()
	u.wait(m, "leno doctor to find no fault", "leno doctor -no-color >/run/doctor || { cat /run/doctor; exit 1; }; ! grep WARNING /run/doctor | grep -v ' peers,'")
}

// vrf moves the interface into a VRF and out of it, on both hosts.
func (u *underlayPair) vrf() {
	u.onBoth("ip link add red type vrf table 10; ip link set red up")
	for range 2 {
		u.onBoth("ip link set eth1 master red")
		for _, m := range u.both() {
			u.says(m, "leno status", "default: underlay eth1, ", ": first of underlay.interfaces that exists: eth1, in VRF red")
		}
		u.crosses()
		u.says(u.a, "leno peers default -probe", "vm-b underlay 198.18.0.12 0 of 3 0 of 3")
		u.noFault(u.a)
		u.onBoth("ip link set eth1 nomaster")
		u.crosses()
	}
	// A restarted agent finds the device's socket in the VRF.
	u.onBoth("ip link set eth1 master red")
	u.crosses()
	u.must(u.a, "systemctl", "stop", "leno")
	u.must(u.a, "ip", "link", "set", "eth1", "nomaster")
	u.must(u.b, "ip", "link", "set", "eth1", "nomaster")
	u.must(u.a, "systemctl", "start", "leno")
	u.crosses()
	u.onBoth("ip link del red")
	u.crosses()
}

// replacedCard removes the network card and plugs in another one of the same name.
func (u *underlayPair) replacedCard() {
	u.must(u.a, "sh", "-euc", "echo 1 >$(readlink -f /sys/class/net/eth1/device/..)/remove")
	u.says(u.a, "leno status", "no such device")
	u.says(u.a, "leno doctor -passive", "underlay.interfaces", "leno reload")
	u.must(u.a, "sh", "-euc", "echo 1 >/sys/bus/pci/rescan")
	u.wait(u.a, "the card", "ip link show dev eth1")
	u.must(u.a, "sh", "-euc", "ip addr add 198.18.0.11/24 dev eth1; ip link set eth1 up")
	u.crosses()
}

// netem makes the link slow and lossy: the hosts stay in order, and the loss is reported as such.
func (u *underlayPair) netem() {
	const kept = "cat /run/leno/default.env /run/leno/second.env; ip route show proto 108"
	before := u.must(u.a, "sh", "-euc", kept)
	u.onBoth("for link in eth0 eth1; do tc qdisc add dev $link root netem delay 50ms 10ms loss 5% rate 10mbit; done")
	for range 5 {
		out := u.must(u.a, "sh", "-c", "leno doctor -no-color || true")
		for _, check := range []string{"path_mtu", "port", "rp_filter", "checksum", "lease", "consul"} {
			if strings.Contains(out, "FAULT "+check) {
				u.t.Errorf("a fault %s on a slow and lossy link:\n%s", check, out)
			}
		}
	}
	err := lab.WaitFor(u.ctx, "the loss to be reported", func(ctx context.Context) error {
		out, err := u.a.Run(ctx, "sh", "-c", "leno peers default -probe -count=100 || [ $? = 1 ]") // 1: packets were lost
		if err == nil && !regexp.MustCompile(`overlay +10\S+ +[1-9]\d* of 100 `).MatchString(out) {
			err = fmt.Errorf("no loss in\n%s", out)
		}
		return err
	})
	if err != nil {
		u.t.Error(err)
	}
	u.onBoth("for link in eth0 eth1; do tc qdisc del dev $link root; done")
	u.crosses()
	if after := u.must(u.a, "sh", "-euc", kept); after != before {
		u.t.Errorf("subnets and routes before:\n%s\nafter:\n%s", before, after)
	}
}

// pathMTU lowers the MTU of a router between the hosts while they use the path.
func (u *underlayPair) pathMTU() {
	router := func(script string) {
		u.t.Helper()
		if out, err := u.lab.Switch.Exec(u.ctx, "sh", "-euc", script); err != nil {
			u.t.Fatal(err, out)
		}
	}
	router(`sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.br0.send_redirects=0
		ip addr add 198.18.11.254/24 dev br0; ip addr add 198.18.12.254/24 dev br0`)
	u.onBoth("ip addr flush dev eth1; ip addr add 198.18.%d.1/24 dev eth1; ip route add 198.18.0.0/16 via 198.18.%d.254")
	u.crosses()
	u.noFault(u.a)
	router("ip route replace 198.18.12.0/24 dev br0 mtu 1400; ip route replace 198.18.11.0/24 dev br0 mtu 1400")
	u.says(u.a, "leno doctor -no-color", "path_mtu", "ip link set dev eth1 mtu 1400")
	u.crosses()
	// Longer packets vanish, without ICMP errors. Hosts fragment for the MTU that they have learned from
	// earlier errors until they forget it, after ten minutes.
	router("iptables -A OUTPUT -p icmp -j DROP; iptables -t mangle -A FORWARD -d 198.18.0.0/16 -m length --length 1401: -j DROP")
	u.onBoth("ip route flush cache")
	u.says(u.a, "leno doctor -no-color", "FAULT path_mtu", "those of 1450, its MTU, do not", "ip link set dev eth1 mtu 1400")
	u.onBoth("ip link set dev eth1 mtu 1400")
	for _, m := range u.both() {
		u.says(m, "leno status", "MTU 1350 = 1400 of eth1 - 50 for VXLAN over IPv4")
	}
	u.noFault(u.a)
	router(`iptables -F OUTPUT; iptables -t mangle -F FORWARD
		ip addr del 198.18.11.254/24 dev br0; ip addr del 198.18.12.254/24 dev br0`)
	u.onBoth("ip addr flush dev eth1; ip addr add 198.18.0.%d/24 dev eth1; ip link set dev eth1 mtu 1500")
	u.crosses()
}

// bond puts the hosts on a VLAN of a bond. Its ports fail, and the devices are renamed and replaced.
func (u *underlayPair) bond() {
	vlan := "ip link add link bond0 name bond0.100 type vlan id 100; ip addr add 198.18.100.%d/24 dev bond0.100; ip link set bond0.100 up\n"
	bond := `ip link set eth1 down; ip link set eth2 down; ip addr flush dev eth1
		ip link add bond0 type bond mode active-backup miimon 100
		ip link set eth1 master bond0; ip link set eth2 master bond0; ip link set bond0 up
		` + vlan
	u.onBoth(bond)
	u.selectOn(u.a, "eth1")
	u.says(u.a, "leno status", "it is a port of bond0: name bond0 instead")
	u.selectUnderlay("bond0.100")
	for i, m := range u.both() {
		u.says(m, "leno status", fmt.Sprintf("underlay bond0.100, 198.18.100.%d, MTU 1500", 11+i))
	}
	u.crosses()
	u.noFault(u.a)
	for _, port := range []string{"eth1", "eth2"} {
		u.must(u.a, "ip", "link", "set", port, "down")
		u.crosses()
		u.must(u.a, "ip", "link", "set", port, "up")
		u.crosses()
	}
	u.onBoth("ip link set bond0 mtu 1420")
	u.says(u.a, "leno status", "MTU 1370 = 1420 of bond0.100 - 50 for VXLAN over IPv4")
	u.onBoth("ip link set bond0 mtu 1500; ip link set bond0.100 mtu 1500; ip link set bond0 address 02:00:00:00:01:%d")
	u.says(u.a, "leno status", "MTU 1450 = 1500 of bond0.100")
	u.crosses()

	u.startPings(u.a, u.overlay[0])
	u.must(u.a, "ip", "link", "set", "bond0.100", "name", "lan0")
	u.says(u.a, "leno status", "keeping bond0.100: no interface fits underlay.interfaces", "lan0 (198.18.100.11")
	u.says(u.a, "leno doctor -passive", "underlay block of the configuration")
	u.must(u.a, "ip", "link", "set", "lan0", "name", "bond0.100")
	u.crosses()
	if missing, answered := u.stopPings(u.a); len(missing) != 0 || answered < 20 {
		u.t.Errorf("%d packets answered while the interface was renamed, lost: %v", answered, missing)
	}

	u.must(u.a, "ip", "link", "del", "bond0.100")
	u.says(u.a, "leno status", "no such device")
	u.must(u.a, "sh", "-euc", strings.ReplaceAll(vlan, "%d", "11"))
	u.crosses()
	u.must(u.a, "ip", "link", "del", "bond0")
	u.must(u.a, "sh", "-euc", strings.ReplaceAll(bond, "%d", "11"))
	u.crosses()
	u.onBoth("ip link del bond0; ip link set eth1 up; ip link set eth2 up")
}

// dhcp gives a host another address when it renews its DHCP lease.
func (u *underlayPair) dhcp() {
	mac := strings.TrimSpace(u.must(u.a, "cat", "/sys/class/net/eth2/address"))
	serve := func(last string) {
		u.t.Helper()
		u.must(u.b, "sh", "-euc", fmt.Sprintf(`systemctl stop dhcp 2>/dev/null || true
			systemd-run --quiet --unit=dhcp dnsmasq --keep-in-foreground --conf-file=/dev/null --user=root --port=0 --interface=eth2 \
				--bind-interfaces --dhcp-range=198.18.7.50,198.18.7.99,255.255.255.0,120 --dhcp-host=%s,198.18.7.%s --dhcp-authoritative --leasefile-ro`, mac, last))
	}
	u.must(u.b, "ip", "addr", "add", "198.18.7.12/24", "dev", "eth2")
	serve("50")
	u.write(u.a, "/etc/systemd/network/dhcp.network", "[Match]\nName=eth2\n\n[Network]\nDHCP=ipv4\nIPv6AcceptRA=no\n\n[DHCPv4]\nUseGateway=no\nUseRoutes=no\nUseHostname=no\nClientIdentifier=mac\n")
	u.must(u.a, "sh", "-euc", "networkctl reload; networkctl reconfigure eth2")
	u.selectUnderlay("eth2")
	u.says(u.a, "leno status", "underlay eth2, 198.18.7.50,")
	u.says(u.b, "leno status", "underlay eth2, 198.18.7.12,")
	u.crosses()
	serve("60")
	u.must(u.a, "networkctl", "renew", "eth2")
	u.says(u.a, "leno status", "underlay eth2, 198.18.7.60,")
	u.says(u.b, "leno peers default", "198.18.7.60")
	u.crosses()
	for what, command := range map[*Machine]string{
		u.a: "ip -details link show leno-default; ss -uln; ip addr",
		u.b: "bridge fdb show dev leno-default; leno peers default; leno peers second",
	} {
		if out := u.must(what, "sh", "-c", command); strings.Contains(out, "198.18.7.50") {
			u.t.Errorf("the old address is left on %s:\n%s", what.Name, out)
		}
	}
	u.noFault(u.a)
}
