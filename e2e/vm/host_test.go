//go:build vm

package vm

import (
	"context"
	"errors"
	"fmt"
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

// newPair boots both machines and installs the package. Its service is not started yet.
func newPair(t *testing.T, o Options) *pair {
	t.Helper()
	p := &pair{t: t}
	p.ctx, p.lab = newLab(t, true)
	debs, err := filepath.Glob(filepath.Join(os.Getenv("LENO_TEST_VM_PACKAGES"), "leno_*_amd64.deb"))
	if err != nil || len(debs) != 1 {
		t.Fatalf("packages in LENO_TEST_VM_PACKAGES: %q, %v", debs, err)
	}
	group, ctx := errgroup.WithContext(p.ctx)
	o.Files = map[string]string{"leno.deb": debs[0]}
	for machine, name := range map[**Machine]string{&p.a: "vm-a", &p.b: "vm-b"} {
		group.Go(func() error {
			o := o
			o.Name = name
			m, err := Start(ctx, p.lab, o)
			if err != nil {
				return err
			}
			*machine = m
			_, err = m.Run(ctx, "dpkg", "--install", "/mnt/leno.deb")
			return err
		})
	}
	err = group.Wait()
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
		out, err := m.Run(ctx, "sh", "-c", "systemctl --no-pager --failed; systemctl --no-pager status leno; journalctl --no-pager -u leno -n 60; leno doctor -no-color; true")
		p.t.Logf("%s: %s%v", m.Name, out, err)
	}
}

// must runs a command that must succeed.
func (p *pair) must(m *Machine, command ...string) string {
	p.t.Helper()
	out, err := m.Run(p.ctx, command...)
	if err != nil {
		p.t.Fatal(err)
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

// A subnet is what a machine's subnet file contains.
type subnet struct {
	file     string
	gateways []netip.Prefix // in each family: the gateway's address and the subnet's length
	mtu      int
}

// bridge reads the subnet file and creates the bridge of a container runtime, with the gateway's
// addresses. It may be called again.
func (p *pair) bridge(m *Machine) subnet {
	p.t.Helper()
	text, err := m.ReadFile(p.ctx, "/run/leno/default.env")
	if err != nil {
		p.t.Fatal(err)
	}
	s := subnet{file: text}
	script := "ip link show dev br0 >/dev/null 2>&1 || ip link add br0 type bridge\n"
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "LENO_SUBNET", "LENO_IPV6_SUBNET":
			prefix, err := netip.ParsePrefix(value)
			if err != nil {
				p.t.Fatal(err)
			}
			s.gateways = append(s.gateways, prefix)
			script += fmt.Sprintf("ip addr replace %s dev br0 nodad\n", prefix)
		case "LENO_MTU":
			if s.mtu, err = strconv.Atoi(value); err != nil {
				p.t.Fatal(err)
			}
			script += fmt.Sprintf("ip link set br0 mtu %d up\n", s.mtu)
		}
	}
	if len(s.gateways) == 0 || s.mtu == 0 {
		p.t.Fatalf("the subnet file of %s: %s", m.Name, text)
	}
	// A bridge without ports has no carrier.
	script += "ip link show dev port0 >/dev/null 2>&1 || { ip link add port0 type veth peer name port1; ip link set port0 master br0 up; ip link set port1 up; }\n"
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
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	err := lab.WaitFor(ctx, "leno doctor to find no fault on "+m.Name, func(ctx context.Context) error {
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
	p.must(m, "systemd-run", "--quiet", "--unit=pings", "--property=StandardOutput=file:/run/pings", "ping", "-n", "-i", "0.05", to.String())
	p.wait(m, "the first answers", `[ "$(grep -c icmp_seq= /run/pings)" -gt 3 ]`)
}

var sequence = regexp.MustCompile(`icmp_seq=(\d+) ttl`)

// stopPings returns the numbers of packets without an answer, and how many were answered. Those
// after the last answer were still under way.
func (p *pair) stopPings(m *Machine) (missing []int, answered int) {
	p.t.Helper()
	p.must(m, "systemctl", "kill", "--signal=INT", "pings")
	p.wait(m, "ping to end", "! systemctl is-active --quiet pings")
	next := 1
	for _, match := range sequence.FindAllStringSubmatch(p.must(m, "cat", "/run/pings"), -1) {
		number, err := strconv.Atoi(match[1])
		if err != nil {
			p.t.Fatal(err)
		}
		for ; next < number; next++ {
			missing = append(missing, next)
		}
		next = number + 1
		answered++
	}
	return missing, answered
}
