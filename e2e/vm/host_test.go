//go:build vm

package vm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
)

// A pair is two machines with leno's package. Consul runs beside them in a namespace of the lab: on an
// emulated processor its start alone takes a minute.
type pair struct {
	t    *testing.T
	ctx  context.Context
	lab  *lab.Lab
	a, b *Machine
}

// deb returns the path of a package that tools/test-vm has built.
func deb(t *testing.T, release string) string {
	t.Helper()
	debs, err := filepath.Glob(filepath.Join(os.Getenv("LENO_TEST_VM_PACKAGES"), release, "leno_*_amd64.deb"))
	if err != nil || len(debs) != 1 {
		t.Fatalf("packages in %s of LENO_TEST_VM_PACKAGES: %q, %v", release, debs, err)
	}
	return debs[0]
}

// newPair boots both machines and installs the package. Its service is not started yet.
func newPair(t *testing.T, o Options) *pair {
	t.Helper()
	return newUnequalPair(t, o, o)
}

// newUnequalPair is newPair with different machines.
func newUnequalPair(t *testing.T, a, b Options) *pair {
	t.Helper()
	p := &pair{t: t}
	p.ctx, p.lab = newLab(t, true)
	group, ctx := errgroup.WithContext(p.ctx)
	for machine, o := range map[**Machine]Options{&p.a: a, &p.b: b} {
		o.Name = map[**Machine]string{&p.a: "vm-a", &p.b: "vm-b"}[machine]
		files := map[string]string{"leno.deb": deb(t, "")}
		maps.Copy(files, o.Files)
		o.Files = files
		group.Go(func() error {
			m, err := Start(ctx, p.lab, o)
			if err != nil {
				return err
			}
			*machine = m
			_, err = m.Run(ctx, "dpkg", "--install", "/mnt/leno.deb")
			return err
		})
	}
	err := group.Wait()
	t.Cleanup(func() {
		for _, m := range p.both() {
			if t.Failed() && m != nil {
				t.Logf("the end of the console of %s:\n%s", m.Name, m.ConsoleTail(40))
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.logIfFailed)
	return p
}

func (p *pair) both() []*Machine { return []*Machine{p.a, p.b} }

// logIfFailed shows what systemd and the agents of a failed test said.
func (p *pair) logIfFailed() {
	if !p.t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, m := range p.both() {
		out, err := m.Run(ctx, "sh", "-c", "systemctl --no-pager --failed; systemctl --no-pager status leno; journalctl --no-pager -u leno -n 60; journalctl --no-pager -u docker -n 60; leno doctor -no-color; true")
		p.t.Logf("%s: %s%v", m.Name, out, err)
	}
}

// must runs a command that must succeed.
func (p *pair) must(m *Machine, command ...string) string {
	p.t.Helper()
	out, err := m.Run(p.ctx, command...)
	if err != nil {
		p.t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// write writes a file.
func (p *pair) write(m *Machine, path, content string) {
	p.t.Helper()
	if err := m.WriteFile(p.ctx, path, content); err != nil {
		p.t.Fatal(err)
	}
}

// wait waits until a shell command succeeds in the machine.
func (p *pair) wait(m *Machine, what, script string) {
	p.t.Helper()
	err := lab.WaitFor(p.ctx, what+" on "+m.Name, func(ctx context.Context) error {
		out, err := m.Run(ctx, "sh", "-euc", script)
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// configure writes the configuration of both agents, with one network.
func (p *pair) configure(network string) {
	p.t.Helper()
	for _, m := range p.both() {
		p.write(m, "/etc/leno.d/leno.hcl", fmt.Sprintf("consul {\n  address = %q\n}\n\nnetwork \"default\" {\n%s}\n", p.lab.Consul.Address(), network))
		p.must(m, "leno", "validate", "/etc/leno.d")
	}
}

// configureAll writes the configuration of both agents, with four networks: "default" with vxlan,
// "plain" with host-gw, "slow" with udp and "sealed" with wireguard, all with both address families.
func (p *pair) configureAll() {
	p.t.Helper()
	text := fmt.Sprintf("consul {\n  address = %q\n}\n", p.lab.Consul.Address())
	for i, n := range allNetworks {
		text += fmt.Sprintf("\nnetwork %q {\n  ipv4 {\n    prefix = \"10.%d.0.0/16\"\n  }\n  ipv6 {\n    prefix = \"fd00:%d::/48\"\n  }\n  backend %q {}\n}\n",
			n.name, i+1, i+1, n.backend)
	}
	for _, m := range p.both() {
		p.write(m, "/etc/leno.d/leno.hcl", text)
		// IPv6 forwarding is the operator's to switch on.
		p.must(m, "sysctl", "-q", "-w", "net.ipv6.conf.all.forwarding=1")
	}
}

// allNetworks are the networks of configureAll, with the MTU that each has on these machines.
var allNetworks = []struct {
	name, backend string
	mtu           int
}{
	{"default", "vxlan", 1500 - 50}, // 20 IPv4, 8 UDP, 8 VXLAN, 14 Ethernet
	{"plain", "host-gw", 1500},
	{"slow", "udp", 1500 - 28},         // 20 IPv4, 8 UDP
	{"sealed", "wireguard", 1500 - 60}, // 20 IPv4, 8 UDP, 32 WireGuard
}

// cross checks that packets of exactly the MTU cross in all networks of configureAll, in both
// directions and both address families, and that larger ones are refused with the MTU.
func (p *pair) cross() {
	p.t.Helper()
	scripts := map[*Machine]string{}
	for i, n := range allNetworks {
		ends := map[*Machine]subnet{p.a: p.bridgeOf(p.a, n.name, i), p.b: p.bridgeOf(p.b, n.name, i)}
		for m, other := range map[*Machine]*Machine{p.a: p.b, p.b: p.a} {
			from, to := ends[m], ends[other]
			if len(from.gateways) != 2 || from.mtu != n.mtu {
				p.t.Fatalf("%s on %s: want both families and MTU %d; subnet file:\n%s", n.name, m.Name, n.mtu, from.file)
			}
			for k, gateway := range to.gateways {
				ping := fmt.Sprintf("ping -n -c 2 -i 0.2 -W 5 -M do -I %s %s -s ", from.gateways[k].Addr(), gateway.Addr())
				exact := n.mtu - headers(gateway.Addr())
				scripts[m] += fmt.Sprintf("%s%d\n! %[1]s%[3]d >/run/refused 2>&1\ngrep -E 'mtu(=|: )%[4]d' /run/refused\n", ping, exact, exact+1, n.mtu)
			}
		}
	}
	for m, script := range scripts {
		p.wait(m, "packets of exactly the MTU in all networks", script)
	}
}

// A subnet is what a machine's subnet file contains.
type subnet struct {
	network  string
	file     string
	gateways []netip.Prefix // in each family: the gateway's address and the subnet's length
	mtu      int
}

// bridge reads the subnet file of the network "default" and creates the bridge br0.
func (p *pair) bridge(m *Machine) subnet {
	p.t.Helper()
	return p.bridgeOf(m, "default", 0)
}

// bridgeOf reads a network's subnet file and creates the bridge of a container runtime with the
// given number, with the gateway's addresses. It may be called again.
func (p *pair) bridgeOf(m *Machine, network string, number int) subnet {
	p.t.Helper()
	text, err := m.ReadFile(p.ctx, "/run/leno/"+network+".env")
	if err != nil {
		p.t.Fatal(err)
	}
	s := subnet{network: network, file: text}
	br := fmt.Sprintf("br%d", number)
	script := fmt.Sprintf("ip link show dev %[1]s >/dev/null 2>&1 || ip link add %[1]s type bridge\n", br)
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "LENO_SUBNET", "LENO_IPV6_SUBNET":
			prefix, err := netip.ParsePrefix(value)
			if err != nil {
				p.t.Fatal(err)
			}
			s.gateways = append(s.gateways, prefix)
			script += fmt.Sprintf("ip addr replace %s dev %s nodad\n", prefix, br)
		case "LENO_MTU":
			if s.mtu, err = strconv.Atoi(value); err != nil {
				p.t.Fatal(err)
			}
			script += fmt.Sprintf("ip link set %s mtu %d up\n", br, s.mtu)
		}
	}
	if len(s.gateways) == 0 || s.mtu == 0 {
		p.t.Fatalf("the subnet file of %s: %s", m.Name, text)
	}
	// A bridge without ports has no carrier.
	script += fmt.Sprintf("ip link show dev port%[1]d >/dev/null 2>&1 || { ip link add port%[1]d type veth peer name peer%[1]d; ip link set port%[1]d master %[2]s up; ip link set peer%[1]d up; }\n", number, br)
	p.must(m, "sh", "-euc", script)
	return s
}

// headers are the sizes of the headers of an ICMP echo request, by address family.
func headers(addr netip.Addr) int {
	if addr.Is4() {
		return 28
	}
	return 48
}

// checkMTU checks that packets of exactly the network's MTU cross from m to the gateway, and that
// larger ones are refused with the MTU instead of vanishing.
func (p *pair) checkMTU(m *Machine, from subnet, to netip.Addr) {
	p.t.Helper()
	source := from.gateways[slices.IndexFunc(from.gateways, func(g netip.Prefix) bool { return g.Addr().Is4() == to.Is4() })].Addr()
	ping := func(size int) (string, error) {
		return m.Run(p.ctx, "ping", "-n", "-c", "3", "-i", "0.2", "-W", "10", "-M", "do", "-I", source.String(), "-s", strconv.Itoa(size-headers(to)), to.String())
	}
	if out, err := ping(from.mtu); err != nil {
		p.t.Errorf("%s to %s with %d bytes: %v\n%s", m.Name, to, from.mtu, err, out)
	}
	out, err := ping(from.mtu + 1)
	if err == nil || !strings.Contains(err.Error()+out, fmt.Sprintf("mtu=%d", from.mtu)) && !strings.Contains(err.Error()+out, fmt.Sprintf("mtu: %d", from.mtu)) {
		p.t.Errorf("%s to %s with %d bytes: %v\n%s", m.Name, to, from.mtu+1, err, out)
	}
}

// doctor runs `leno doctor` until it finds no fault: its first run may see a host that has just
// joined. It fails the test with the last report.
func (p *pair) doctor(m *Machine) {
	p.t.Helper()
	err := lab.WaitFor(p.ctx, "leno doctor to find no fault on "+m.Name, func(ctx context.Context) error {
		out, err := m.Run(ctx, "leno", "doctor", "-no-color")
		if err == nil && strings.Contains(out, "warning") {
			err = errors.New("it warns")
		}
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
		return err
	})
	if err != nil {
		p.t.Error(err)
	}
}

// startPings sends packets all the time, as a transient unit.
func (p *pair) startPings(m *Machine, to netip.Addr) {
	p.t.Helper()
	p.must(m, "systemd-run", "--quiet", "--unit=pings", "--property=StandardOutput=truncate:/run/pings", "ping", "-D", "-n", "-i", "0.05", to.String())
	p.wait(m, "the first answers", `[ "$(grep -c icmp_seq= /run/pings)" -gt 3 ]`)
}

var sequence = regexp.MustCompile(`\[(\d+)\.(\d+)\] .*icmp_seq=(\d+) ttl`)

// stopPings returns the numbers of packets without an answer, and how many were answered. Those
// after the last answer were still under way.
func (p *pair) stopPings(m *Machine) (missing []int, answered int) {
	p.t.Helper()
	p.must(m, "systemctl", "kill", "--signal=INT", "pings")
	p.wait(m, "ping to end", "! systemctl is-active --quiet pings")
	next, last := 1, time.Time{}
	for _, match := range sequence.FindAllStringSubmatch(p.must(m, "cat", "/run/pings"), -1) {
		var numbers [3]int64
		for i := range numbers {
			var err error
			if numbers[i], err = strconv.ParseInt(match[i+1], 10, 64); err != nil {
				p.t.Fatal(err)
			}
		}
		number, at := int(numbers[2]), time.Unix(numbers[0], numbers[1]*1000).UTC()
		if next < number {
			p.t.Logf("no answers between %s and %s", last.Format(time.TimeOnly+".000"), at.Format(time.TimeOnly+".000"))
		}
		last = at
		for ; next < number; next++ {
			missing = append(missing, next)
		}
		next = number + 1
		answered++
	}
	return missing, answered
}
