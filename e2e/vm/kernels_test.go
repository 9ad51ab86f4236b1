//go:build vm

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/e2e/lab"
)

// TestKernels runs vxlan, host-gw, udp and wireguard on two machines with each kernel: packets of exactly the
// MTU cross in both address families, leno uses what the kernel offers and says what it lacks, what
// other programs change is repaired, and without the right to load BPF programs the udp backend has
// one queue.
func TestKernels(t *testing.T) {
	if len(Kernels()) == 0 {
		t.Fatal("no kernels in LENO_TEST_VM_KERNELS: run make vm-test")
	}
	for _, kernel := range Kernels() {
		t.Run(kernel, func(t *testing.T) {
			// Two processors: the udp backend has a queue for each.
			p := newPair(t, Options{Kernel: kernel, Processors: 2})
			p.configureAll()
			p.dropIn(true)
			for _, m := range p.both() {
				p.must(m, "systemctl", "start", "leno")
				p.must(m, "leno", "status", "-wait=2m")
			}
			p.cross()
			p.offloads(p.a)
			for _, m := range p.both() {
				p.doctor(m)
			}
			p.drift(p.a)
			p.dropIn(false)
			p.must(p.b, "systemctl", "restart", "leno")
			p.steers(p.b, false)
			p.cross()
		})
	}
}

// dropIn adds the documented drop-in that lets the udp backend use a queue for each processor, or
// removes it.
func (p *pair) dropIn(queues bool) {
	p.t.Helper()
	const path = "/etc/systemd/system/leno.service.d/queues.conf"
	text, err := os.ReadFile("../../examples/systemd/leno-queues.conf")
	if err != nil {
		p.t.Fatal(err)
	}
	for _, m := range p.both() {
		if queues {
			p.write(m, path, string(text))
		} else {
			p.must(m, "rm", path)
		}
		p.must(m, "systemctl", "daemon-reload")
	}
}

// steers checks that the agent steers flows to two queues of the TUN device, or that it has one and
// says why.
func (p *pair) steers(m *Machine, want bool) {
	p.t.Helper()
	const note = "one queue instead of 2: the agent may not load BPF programs, for which it needs CAP_BPF and the system call bpf"
	p.must(m, "leno", "status", "-wait=2m")
	status := strings.Join(strings.Fields(p.must(m, "leno", "network", "show", "slow")), " ")
	queues := strings.Fields(p.must(m, "sh", "-c", "ls -d /sys/class/net/leno-slow/queues/rx-* | wc -l"))[0]
	if want && (strings.Contains(status, "one queue") || queues != "2") || !want && !strings.Contains(status, note) {
		p.t.Errorf("steering on %s, which should be %t: %s queues; leno network show:\n%s", m.Name, want, queues, status)
	}
}

// offloads checks that the udp backend uses what the kernel offers, and says what it lacks.
func (p *pair) offloads(m *Machine) {
	p.t.Helper()
	const lacks = "no segmentation offload for UDP on TUN devices, which Linux 6.2 and later have"
	release := p.must(m, "uname", "-r")
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		p.t.Fatalf("uname -r: %q, %v", release, err)
	}
	uso := major > 6 || major == 6 && minor >= 2
	p.t.Logf("kernel %s: UDP segmentation offload on TUN devices: %t", strings.TrimSpace(release), uso)
	journal := p.must(m, "journalctl", "--quiet", "--unit", "leno", "--output=cat")
	for _, want := range []string{
		"queues=2 tcp_offload=true udp_offload=" + strconv.FormatBool(uso) + "\n",
		"sockets=2 segmentation=true receive_offload=true\n",
	} {
		if !strings.Contains(journal, want) {
			p.t.Errorf("the journal of %s lacks %q:\n%s", m.Name, want, journal)
		}
	}
	// What the kernel says of its device.
	for feature, want := range map[string]bool{"tx-tcp-segmentation": true, "tx-tcp6-segmentation": true, "tx-udp-segmentation": uso} {
		found := regexp.MustCompile(`(?m)^\s*` + feature + `: (on|off)`).FindStringSubmatch(p.must(m, "ethtool", "-k", "leno-slow"))
		if found == nil || (found[1] == "on") != want {
			p.t.Errorf("%s of leno-slow on %s: %q, want %t", feature, m.Name, found, want)
		}
	}
	for _, command := range []string{"network show slow", "doctor -format=json"} {
		said := strings.Join(strings.Fields(p.must(m, append([]string{"leno"}, strings.Fields(command)...)...)), " ")
		if strings.Contains(said, lacks) == uso {
			p.t.Errorf("leno %s on %s: %s", command, m.Name, said)
		}
	}
	p.steers(m, true)
}

// state prints all that leno has in the kernel, in the order of the text.
const state = `for link in leno-default leno-slow; do
	ip -oneline addr show dev $link scope global | cut -d' ' -f2-
	ip -details link show dev $link | grep -oE 'mtu [0-9]+|<[^>]*>|link/[^ ]+ [0-9a-f:]+|vxlan id.*dstport [0-9]+'
done | sort
ip -4 route show proto 108 | sort
ip -6 route show proto 108 | sort
bridge fdb show dev leno-default | grep dst | sort
ip neigh show dev leno-default nud permanent | sort
`

// drift removes what leno has in the kernel, and waits each time until it is there again.
func (p *pair) drift(m *Machine) {
	p.t.Helper()
	before := p.must(m, "sh", "-c", state)
	for _, word := range []string{"dst 192.0.2.", "PERMANENT", "dstport 8472", "10.1.", "fd00:1:", "10.3.", "unreachable"} {
		if !strings.Contains(before, word) {
			p.t.Errorf("the state of %s lacks %q:\n%s", m.Name, word, before)
		}
	}
	for _, fault := range []struct {
		name, script string
		says         []string
	}{
		{"entries", `ip route flush proto 108; ip -6 route flush proto 108; ip neigh flush dev leno-default nud permanent
			bridge fdb show dev leno-default | while read -r mac rest; do bridge fdb del "$mac" dev leno-default; done`,
			[]string{"routes were missing", "FDB entries were missing", "neighbours were missing"}},
		{"addresses and MTU", `for link in leno-default leno-slow; do ip addr flush dev $link scope global; ip link set $link mtu 1400; done`,
			[]string{"addresses were missing", "device had another MTU"}},
		{"devices that are down", "ip link set leno-default down; ip link set leno-slow down", []string{"device was down"}},
		{"deleted devices", "ip link del leno-default; ip link del leno-slow", []string{"device was deleted"}},
	} {
		p.must(m, "sh", "-euc", since+fault.script)
		errs := []error{p.settle(m, before)}
		for _, words := range fault.says {
			errs = append(errs, p.reported(m, words))
		}
		if err := errors.Join(errs...); err != nil {
			p.t.Errorf("%s: %v", fault.name, err)
		}
	}
}

// settle waits until the kernel has the same of leno as before.
func (p *pair) settle(m *Machine, before string) error {
	return lab.WaitFor(p.ctx, "leno's state in the kernel of "+m.Name, func(ctx context.Context) error {
		now, err := m.Run(ctx, "sh", "-c", state)
		if err == nil && now != before {
			err = errors.New("the kernel has (-before +now)\n" + cmp.Diff(before, now))
		}
		return err
	})
}

// since remembers when a script begins that reported is about.
const since = "date +@%s >/run/began\n"

// reported waits until the agent has warned with these words, a regular expression.
func (p *pair) reported(m *Machine, words string) error {
	return lab.WaitFor(p.ctx, "the agent on "+m.Name+" to report "+words, func(ctx context.Context) error {
		_, err := m.Run(ctx, "sh", "-euc", `journalctl --quiet --unit leno --priority=warning --output=cat --since="$(cat /run/began)" | grep -q "$1"`, "sh", words)
		return err
	})
}

// TestRestricted boots one machine with lockdown=integrity and one with lockdown=confidentiality.
// The first one may also not load the modules of vxlan and udp: leno names each module and what to
// do, and continues by itself once they may be loaded. Then all backends work on both machines.
func TestRestricted(t *testing.T) {
	with := func(lockdown string) Options {
		return Options{Kernel: defaultKernel, Processors: 2, Parameters: []string{"lockdown=" + lockdown}}
	}
	p := newUnequalPair(t, with("integrity"), with("confidentiality"))
	for m, want := range map[*Machine]string{p.a: "[integrity]", p.b: "[confidentiality]"} {
		if got := p.must(m, "cat", "/sys/kernel/security/lockdown"); !strings.Contains(got, want) {
			t.Fatalf("lockdown of %s: %s", m.Name, got)
		}
	}
	const list = "/etc/modprobe.d/restricted.conf"
	p.write(p.a, list, "blacklist vxlan\nblacklist tun\n")
	p.configureAll()
	p.dropIn(true)
	p.must(p.a, "systemctl", "start", "--no-block", "leno")
	p.must(p.b, "systemctl", "start", "leno")
	p.wait(p.a, "the check of the TUN device", "leno status | tr -s ' \n' ' ' | grep 'slow: device is critical.*/dev/net/tun: no such device.*modprobe tun'")
	p.wait(p.a, "the check of the VXLAN device", "leno status | tr -s ' \n' ' ' | grep 'default: device is critical.*the kernel has no such devices.*modprobe vxlan'")
	report, err := p.a.Run(p.ctx, "leno", "doctor", "-no-color")
	var exit *ExitError
	if !errors.As(err, &exit) || exit.Code != 1 {
		t.Errorf("leno doctor without the modules: %v", err)
	}
	t.Logf("leno doctor without the modules:\n%s", report)
	for _, network := range []string{"default", "slow"} {
		if !strings.Contains(report, "FAULT module, network "+network+"\n") {
			t.Errorf("leno doctor does not report the module of %s:\n%s", network, report)
		}
	}
	for _, want := range []string{"modprobe tun", "modprobe vxlan"} {
		if !strings.Contains(strings.Join(strings.Fields(report), " "), want) {
			t.Errorf("leno doctor does not say what to do: %s:\n%s", want, report)
		}
	}
	p.must(p.a, "modprobe", "--all", "tun", "vxlan") // as leno says
	p.must(p.a, "leno", "status", "-wait=2m")
	p.must(p.b, "leno", "status", "-wait=2m")
	p.cross()
	for _, m := range p.both() {
		p.steers(m, true)
		p.doctor(m)
	}
	// The capability alone is not enough in a unit that forbids the system call.
	p.write(p.a, "/etc/systemd/system/leno.service.d/queues.conf", "[Service]\nAmbientCapabilities=CAP_BPF\nCapabilityBoundingSet=CAP_BPF\n")
	p.write(p.b, "/etc/systemd/system/leno.service.d/queues.conf", "[Service]\nSystemCallFilter=bpf\n")
	for _, m := range p.both() {
		p.must(m, "sysctl", "kernel.unprivileged_bpf_disabled")
		p.must(m, "systemctl", "daemon-reload")
		p.must(m, "systemctl", "restart", "leno")
		p.steers(m, false)
	}
}
