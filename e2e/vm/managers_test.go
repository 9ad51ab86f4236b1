//go:build vm

package vm

import (
	"strings"
	"testing"
)

// The files of the package that keep other programs away (examples/systemd/leno.network,
// leno-networkd.conf and examples/networkmanager/leno.conf).
const (
	devicesFile = "/usr/lib/systemd/network/00-leno.network"
	routesFile  = "/usr/lib/systemd/networkd.conf.d/leno.conf"
	managerFile = "/usr/lib/NetworkManager/conf.d/leno.conf"
)

// everything is a file for systemd-networkd that fits leno's devices and all that tests do not use.
const everything = "[Match]\nName=!lo eth0 enp* br* port* peer*\n\n[Network]\nDHCP=yes\n"

// TestNetworkManagers lets systemd-networkd, NetworkManager and systemd-resolved do to leno's
// devices and routes what they like. The first machine has the files of the package that keep them
// away, and nothing happens. The second one does not have them: the agent repairs what is removed
// and says so.
func TestNetworkManagers(t *testing.T) {
	p := newPair(t, Options{Kernel: defaultKernel})
	p.configureAll()
	for _, m := range p.both() {
		p.must(m, "systemctl", "start", "leno")
	}
	p.must(p.b, "rm", devicesFile, routesFile, managerFile)
	p.must(p.b, "systemctl", "restart", "systemd-networkd")
	for _, m := range p.both() {
		p.must(m, "leno", "status", "-wait=2m")
	}
	t.Run("networkd", func(t *testing.T) { p.of(t).networkd() })
	t.Run("MACAddressPolicy", func(t *testing.T) { p.of(t).macAddressPolicy() })
	t.Run("NetworkManager", func(t *testing.T) { p.of(t).networkManager() })
	t.Run("resolved", func(t *testing.T) {
		p := p.of(t)
		p.unharmed(p.a, "systemctl start systemd-resolved; resolvectl status >/dev/null; resolvectl flush-caches")
		p.must(p.a, "systemctl", "stop", "systemd-resolved")
	})
	p.cross()
	for _, m := range p.both() {
		p.doctor(m)
	}
}

// of returns the pair for a subtest.
func (p *pair) of(t *testing.T) *pair {
	on := *p
	on.t = t
	return &on
}

// unharmed checks that a script removes nothing from leno's devices and none of its routes, even
// for a moment.
func (p *pair) unharmed(m *Machine, script string) {
	p.t.Helper()
	before := p.must(m, "sh", "-c", state)
	p.must(m, "systemd-run", "--quiet", "--unit=monitor", "--property=StandardOutput=truncate:/run/monitor", "ip", "monitor", "route", "address", "link")
	defer m.Run(p.ctx, "systemctl", "stop", "monitor") // after a failure
	p.must(m, "sh", "-euc", script)
	p.must(m, "leno", "status", "-wait=2m")
	if err := p.settle(m, before); err != nil {
		p.t.Errorf("%s: %v", script, err)
	}
	p.must(m, "systemctl", "stop", "monitor")
	for line := range strings.Lines(p.must(m, "cat", "/run/monitor")) {
		if strings.HasPrefix(line, "Deleted") && (strings.Contains(line, "leno-") || strings.Contains(line, "proto 108")) && !strings.Contains(line, "dev eth0") {
			p.t.Errorf("%s: %s", script, line)
		}
	}
}

// harmed runs a script until the agent reports that it repaired what the script removed.
func (p *pair) harmed(m *Machine, script string, says ...string) {
	p.t.Helper()
	p.must(m, "sh", "-euc", since+script)
	for _, words := range says {
		if err := p.reported(m, words); err != nil {
			p.t.Errorf("%s: %v", script, err)
		}
	}
	p.must(m, "leno", "status", "-wait=2m")
}

func (p *pair) networkd() {
	const restart = "systemctl restart systemd-networkd; /lib/systemd/systemd-networkd-wait-online --interface=eth0"
	// The host's address goes for a moment, and with it what depends on it. leno keeps its underlay.
	index := p.must(p.a, "cat", "/sys/class/net/leno-default/ifindex")
	p.unharmed(p.a, restart)
	p.harmed(p.b, restart, "routes were missing.*metric 16777216")
	for _, m := range p.both() {
		if journal := p.must(m, "journalctl", "--quiet", "--unit=leno", "--output=cat"); strings.Contains(journal, "underlay changed") {
			p.t.Errorf("%s: a restart of systemd-networkd moved the host:\n%s", m.Name, journal)
		}
	}
	if got := p.must(p.a, "cat", "/sys/class/net/leno-default/ifindex"); got != index {
		p.t.Errorf("leno-default is another device: %s, before %s", got, index)
	}

	// With an address that stays, no packet is lost.
	p.write(p.a, "/etc/systemd/network/link.network.d/keep.conf", "[Network]\nKeepConfiguration=static\n")
	p.unharmed(p.a, restart)
	p.startPings(p.b, p.bridgeOf(p.a, "default", 0).gateways[0].Addr())
	p.unharmed(p.a, restart)
	if missing, answered := p.stopPings(p.b); len(missing) != 0 || answered < 10 {
		p.t.Errorf("%d packets answered while systemd-networkd restarted, lost: %v", answered, missing)
	}

	const path = "/etc/systemd/network/all.network"
	for _, m := range p.both() {
		p.write(m, path, everything)
	}
	p.unharmed(p.a, "networkctl reload")
	p.harmed(p.b, "networkctl reload", "addresses were missing.*10.1.", "addresses were missing.*10.3.")
	for m, want := range map[*Machine]string{p.a: "unmanaged", p.b: "configur"} {
		if got := p.must(m, "networkctl", "--no-pager", "--no-legend", "list", "leno-default"); !strings.Contains(got, want) {
			p.t.Errorf("leno-default on %s is not %s: %s", m.Name, want, got)
		}
		p.must(m, "rm", path)
		p.must(m, "networkctl", "reload")
	}
}

// macAddressPolicy checks that udev, whose default is MACAddressPolicy=persistent, does not change
// the address of leno's device.
func (p *pair) macAddressPolicy() {
	if got := p.must(p.b, "cat", "/usr/lib/systemd/network/99-default.link"); !strings.Contains(got, "MACAddressPolicy=persistent") {
		p.t.Errorf("99-default.link: %s", got)
	}
	before := p.must(p.b, "cat", "/sys/class/net/leno-default/address")
	p.must(p.b, "ip", "link", "del", "leno-default")
	p.wait(p.b, "the device", "test -e /sys/class/net/leno-default/address")
	p.must(p.b, "udevadm", "settle")
	p.must(p.b, "udevadm", "trigger", "--action=add", "--settle", "/sys/class/net/leno-default")
	if got := p.must(p.b, "udevadm", "info", "--query=property", "--property=ID_NET_LINK_FILE", "/sys/class/net/leno-default"); !strings.Contains(got, "99-default.link") {
		p.t.Errorf("udev configured leno-default with %s", got)
	}
	if got := p.must(p.b, "cat", "/sys/class/net/leno-default/address"); got != before {
		p.t.Errorf("MAC address %s, before %s", got, before)
	}
	p.must(p.b, "leno", "status", "-wait=2m")
}

func (p *pair) networkManager() {
	for _, m := range p.both() {
		p.write(m, "/etc/NetworkManager/conf.d/eth0.conf", "[keyfile]\nunmanaged-devices+=interface-name:eth0;interface-name:br*;type:veth;interface-name:lo\n")
		p.must(m, "systemctl", "start", "NetworkManager")
		p.wait(m, "NetworkManager", "nmcli --terse general status; nmcli --terse device | grep leno-slow")
	}
	for m, want := range map[*Machine]string{p.a: "unmanaged", p.b: "connected (externally)"} {
		p.wait(m, "leno's devices in NetworkManager", `for link in leno-default leno-slow; do nmcli --terse --fields DEVICE,STATE device | grep -x "$link:`+want+`"; done`)
	}
	const offAndOn = "nmcli networking off; nmcli networking on"
	p.unharmed(p.a, offAndOn)
	p.harmed(p.b, offAndOn, "addresses were missing.*10.1.", "addresses were missing.*10.3.")
	for _, m := range p.both() {
		p.must(m, "systemctl", "stop", "NetworkManager")
	}
}
