//go:build vm

package vm

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

const vxlanNetwork = `  ipv4 {
    prefix = "10.5.0.0/16"
  }
  ipv6 {
    prefix = "fd00:5::/48"
  }
  backend "vxlan" {}
`

// TestSystemd follows a host with a real systemd through installation with apt, reload, restart,
// upgrade, downgrade, shutdown and boot. Packets flow all the time while the host is up, and the
// journal has what happened, with priorities.
func TestSystemd(t *testing.T) {
	next := map[string]string{"next.deb": deb(t, "next")}
	p := newPair(t, Options{Kernel: defaultKernel, Files: next})
	p.must(p.b, "dpkg", "--purge", "leno")
	p.must(p.b, "apt-get", "install", "--yes", "/mnt/leno.deb")
	if got, err := p.b.Run(p.ctx, "systemctl", "is-enabled", "leno"); err == nil || got != "disabled\n" {
		t.Errorf("after the installation, the unit is %s, %v", got, err)
	}
	p.configure(vxlanNetwork)
	for _, m := range p.both() {
		p.must(m, "sysctl", "-q", "-w", "net.ipv6.conf.all.forwarding=1")
		p.must(m, "systemctl", "enable", "--quiet", "--now", "leno")
	}
	p.must(p.b, "leno", "status", "-wait=2m")
	a, b := p.bridge(p.a), p.bridge(p.b)
	p.confined(p.b)
	p.wait(p.a, "a first answer", "ping -n -c 1 -W 1 "+b.gateways[0].Addr().String())
	p.startPings(p.a, b.gateways[0].Addr())

	t.Log("reload")
	const file = "/etc/leno.d/leno.hcl"
	config, err := p.b.ReadFile(p.ctx, file)
	if err != nil {
		t.Fatal(err)
	}
	p.write(p.b, file, config+"\nnetwork \"other\" {\n  ipv4 {\n    prefix = \"10.6.0.0/16\"\n  }\n  backend \"alloc\" {}\n}\n")
	p.must(p.b, "systemctl", "reload", "leno")
	p.wait(p.b, "the new network", "test -s /run/leno/other.env")
	p.write(p.b, file, config+"\nnetwork \"other\" {\n  ipv4 {\n    prefix = \"10.6.0.0/33\"\n")
	p.must(p.b, "systemctl", "reload", "leno")
	p.wait(p.b, "the error about the broken configuration", `journalctl --quiet --unit leno --priority=err --output=cat | grep -F 'leno.hcl:'`)
	if got := p.must(p.b, "systemctl", "show", "--property=ActiveState,SubState,NRestarts", "leno"); !slices.Equal(slices.Sorted(strings.Lines(got)), []string{"ActiveState=active\n", "NRestarts=0\n", "SubState=running\n"}) {
		t.Errorf("after a broken configuration:\n%s", got)
	}
	if got := p.must(p.b, "cat", "/run/leno/default.env"); got != b.file {
		t.Errorf("after a broken configuration, the subnet file is\n%s", got)
	}
	p.write(p.b, file, config)
	p.must(p.b, "systemctl", "reload", "leno")
	p.wait(p.b, "the network to be left", "test ! -e /run/leno/other.env")

	t.Log("restart, upgrade and downgrade")
	p.must(p.b, "systemctl", "restart", "leno")
	p.runs(p.b, "1.0.0")
	p.must(p.b, "apt-get", "install", "--yes", "/mnt/next.deb")
	p.runs(p.b, "1.1.0")
	p.must(p.b, "apt-get", "install", "--yes", "--allow-downgrades", "/mnt/leno.deb")
	p.runs(p.b, "1.0.0")
	if got := p.must(p.b, "cat", file); got != config {
		t.Errorf("the configuration after an upgrade and a downgrade:\n%s", got)
	}
	if missing, answered := p.stopPings(p.a); len(missing) != 0 || answered < 50 {
		t.Errorf("%d packets answered during reload, restart, upgrade and downgrade, lost: %v", answered, missing)
	} else {
		t.Logf("%d packets, none lost", answered)
	}
	p.priorities(p.b)

	t.Log("shutdown and boot")
	leases := func() string {
		return p.must(p.a, "sh", "-c", "leno lease list -format=json | tr -d ' \n' | grep -o '\"node\":\"vm-b\"[^}]*'")
	}
	if err := p.b.PowerOff(p.ctx); err != nil {
		t.Fatal(err)
	}
	if got := leases(); !strings.Contains(got, "vm-b") {
		t.Errorf("after the shutdown, the lease is gone: %s", got)
	}
	if err := p.b.Boot(p.ctx); err != nil {
		t.Fatal(err)
	}
	p.wait(p.b, "the unit", "systemctl is-active --quiet leno")
	if got := p.must(p.b, "cat", "/run/leno/default.env"); got != b.file {
		t.Errorf("subnet file after a boot:\n%s\nbefore:\n%s", got, b.file)
	}
	p.bridge(p.b)
	p.wait(p.b, "an answer after the boot", "ping -n -c 1 -W 1 "+a.gateways[0].Addr().String())
	stopped := p.must(p.b, "journalctl", "--quiet", "--boot=-1", "--unit", "leno", "--output=cat")
	for _, want := range []string{"stopping, packets keep flowing: signal=terminated\n", "Stopped leno.service", "leno.service: Deactivated successfully"} {
		if !strings.Contains(stopped, want) {
			t.Errorf("the journal of the shutdown lacks %q:\n%s", want, stopped)
		}
	}
	for _, unwanted := range []string{"timed out", "Killing", "mode is different"} {
		if strings.Contains(stopped, unwanted) {
			t.Errorf("the journal has %q:\n%s", unwanted, stopped)
		}
	}
}

// runs waits until the agent of a version is ready.
func (p *pair) runs(m *Machine, version string) {
	p.t.Helper()
	p.wait(m, "the agent of leno "+version, "systemctl is-active --quiet leno; leno status | grep -F 'leno "+version+",'")
}

// confined checks that the agent runs as the user leno with two capabilities and no way to others.
func (p *pair) confined(m *Machine) {
	p.t.Helper()
	const adminAndRaw = 1<<12 | 1<<13 // CAP_NET_ADMIN, CAP_NET_RAW
	status := p.must(m, "sh", "-euc", `pid=$(systemctl show --value --property=MainPID leno); stat --format=%U /proc/$pid; cat /proc/$pid/status`)
	for _, want := range []string{"leno\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n",
		fmt.Sprintf("CapEff:\t%016x\n", adminAndRaw), fmt.Sprintf("CapPrm:\t%016x\n", adminAndRaw), fmt.Sprintf("CapBnd:\t%016x\n", adminAndRaw)} {
		if !strings.Contains(status, want) {
			p.t.Errorf("the process lacks %q:\n%s", want, status)
		}
	}
}

// priorities checks that each line of the agent has the priority of its level in the journal.
func (p *pair) priorities(m *Machine) {
	p.t.Helper()
	levels := map[string]string{"[ERROR]": "3", "[WARN]": "4", "[INFO]": "6", "[DEBUG]": "7"}
	seen := map[string]int{}
	for line := range strings.Lines(p.must(m, "journalctl", "--quiet", "--unit=leno", "--output=json", "_COMM=leno")) {
		var entry struct {
			Message  string `json:"MESSAGE"`
			Priority string `json:"PRIORITY"`
		}
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			p.t.Fatalf("%v in %s", err, line)
		}
		fields := strings.Fields(entry.Message)
		if len(fields) < 2 {
			continue
		}
		want, ok := levels[fields[1]]
		if !ok {
			continue // a further line of a value
		}
		seen[want]++
		if entry.Priority != want || strings.Contains(entry.Message, "<") && entry.Message[0] == '<' {
			p.t.Errorf("priority %s, want %s: %s", entry.Priority, want, entry.Message)
		}
	}
	for _, priority := range []string{"3", "6"} {
		if seen[priority] == 0 {
			p.t.Errorf("no line with priority %s, but %v", priority, seen)
		}
	}
	lines := slices.Collect(strings.Lines(p.must(m, "journalctl", "--quiet", "--unit=leno", "--priority=warning", "--output=cat", "_COMM=leno")))
	if len(lines) < seen["3"]+seen["4"] || slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "[INFO]") }) {
		p.t.Errorf("journalctl -u leno -p warning: %q", lines)
	}
}
