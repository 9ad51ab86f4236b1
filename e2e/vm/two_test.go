//go:build vm

package vm

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestTwoMachines installs leno's package on two machines and starts it with systemd. It follows
// the life of a host: an agent that waits for Consul, a first lease, traffic, a crash of the agent,
// and a reboot.
func TestTwoMachines(t *testing.T) {
	t.Parallel()
	began := time.Now()
	step := func(format string, args ...any) {
		t.Logf("%3.0f s: %s", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	p := newPair(t, Options{Kernel: defaultKernel})
	step("both machines run, with the package")
	p.configure(`  ipv4 {
    prefix = "10.5.0.0/16"
  }
  ipv6 {
    prefix = "fd00:5::/48"
  }
  backend "vxlan" {}
`)
	// A unit that needs containers' addresses, such as Docker.
	p.write(p.b, "/etc/systemd/system/dependent.service", `[Unit]
Requires=leno.service
After=leno.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/cp /run/leno/default.env /run/dependent.env

[Install]
WantedBy=multi-user.target
`)
	if err := p.lab.Consul.Stop(p.ctx); err != nil {
		t.Fatal(err)
	}
	p.must(p.b, "systemctl", "enable", "--quiet", "leno", "dependent")
	p.must(p.b, "systemctl", "start", "--no-block", "dependent")
	p.wait(p.b, "the agent to wait for Consul", `[ "$(systemctl show --value --property=ActiveState leno)" = activating ]
		journalctl --quiet --unit leno | grep -i consul`)
	if got := p.must(p.b, "systemctl", "show", "--value", "--property=ActiveState", "dependent"); got != "inactive\n" {
		t.Errorf("a unit that needs the agent, before the agent is ready: %s", got)
	}

	step("the agent waits for Consul, and a unit for the agent")
	if err := p.lab.Consul.Start(p.ctx); err != nil {
		t.Fatal(err)
	}
	p.must(p.a, "systemctl", "enable", "--quiet", "--now", "leno")
	p.wait(p.b, "the dependent unit", "systemctl is-active --quiet dependent")
	step("both agents are ready")
	a, b := p.bridge(p.a), p.bridge(p.b)
	if got := p.must(p.b, "cat", "/run/dependent.env"); got != b.file {
		t.Errorf("the subnet file when the dependent unit started:\n%s\nnow:\n%s", got, b.file)
	}
	if a.gateways[0].Masked() == b.gateways[0].Masked() || a.mtu != 1450 || b.mtu != 1450 || len(a.gateways) != 2 {
		t.Errorf("subnet files:\n%s\n%s", a.file, b.file)
	}
	status := p.must(p.b, "systemctl", "show", "--property=ActiveState,SubState,User,NRestarts,StatusText", "leno")
	for _, want := range []string{"ActiveState=active\n", "SubState=running\n", "User=leno\n", "NRestarts=0\n"} {
		if !strings.Contains(status, want) {
			t.Errorf("the unit of the agent is not %q:\n%s", want, status)
		}
	}
	for _, m := range p.both() {
		p.must(m, "leno", "status", "-wait=1m")
	}
	step("both hosts are in order")

	for i := range a.gateways {
		p.checkMTU(p.a, a, b.gateways[i].Addr())
		p.checkMTU(p.b, b, a.gateways[i].Addr())
	}
	step("packets of exactly the MTU cross")
	for _, m := range p.both() {
		p.doctor(m)
	}
	step("leno doctor finds no fault")

	p.startPings(p.a, b.gateways[0].Addr())
	for _, m := range p.both() {
		p.must(m, "systemctl", "kill", "--signal=KILL", "leno")
	}
	for _, m := range p.both() {
		p.wait(m, "the agent to be ready again", `[ "$(systemctl show --value --property=NRestarts leno)" = 1 ]; systemctl is-active --quiet leno`)
		p.must(m, "leno", "status", "-wait=1m")
	}
	missing, answered := p.stopPings(p.a)
	if len(missing) != 0 || answered < 20 {
		t.Errorf("%d packets answered while both agents were killed, lost: %v", answered, missing)
	}
	step("both agents were killed and came back; %d packets, none lost", answered)
	journal := p.must(p.b, "journalctl", "--quiet", "--unit", "leno", "--output=cat")
	for _, want := range []string{"agent", "Main process exited, code=killed, status=9/KILL", "Started leno.service"} {
		if !strings.Contains(journal, want) {
			t.Errorf("the journal lacks %q:\n%s", want, journal)
		}
	}

	if err := p.b.Reboot(p.ctx); err != nil {
		t.Fatal(err)
	}
	step("the second machine has rebooted")
	p.wait(p.b, "the dependent unit", "systemctl is-active --quiet dependent")
	if got := p.bridge(p.b); got.file != b.file {
		t.Errorf("subnet file after a reboot:\n%s\nbefore:\n%s", got.file, b.file)
	}
	p.wait(p.a, "an answer from the machine that rebooted", "ping -n -c 1 -W 1 "+b.gateways[0].Addr().String())
	step("it has its subnet again, and answers")
	p.must(p.b, "leno", "status", "-wait=1m")
	p.doctor(p.b)
	step("leno doctor finds no fault")
}
