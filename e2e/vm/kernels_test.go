//go:build vm

package vm

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/lenonet/leno/e2e/lab"
)

// TestKernels runs every backend on two machines with each kernel: packets of exactly the MTU cross
// in both address families, and neither the agent nor `leno doctor` finds anything wrong.
func TestKernels(t *testing.T) {
	if len(Kernels()) == 0 {
		t.Fatal("no kernels in LENO_TEST_VM_KERNELS: run make vm-test")
	}
	queues, err := os.ReadFile("../../examples/systemd/leno-queues.conf")
	if err != nil {
		t.Fatal(err)
	}
	for _, kernel := range Kernels() {
		t.Run(kernel, func(t *testing.T) {
			// Two processors: the udp backend has a queue for each.
			p := newPair(t, Options{Kernel: kernel, Processors: 2})
			t.Logf("kernel %s", p.must(p.a, "uname", "-r"))
			for _, m := range p.both() {
				// The documented drop-in that lets the udp backend use a queue for each processor.
				p.write(m, "/etc/systemd/system/leno.service.d/queues.conf", string(queues))
				p.must(m, "systemctl", "daemon-reload")
			}
			for number, backend := range []struct {
				name    string
				mtu     int
				options string
			}{
				{"vxlan", 1450, ""},
				{"host-gw", 1500, ""},
				{"udp", 1472, ""},
			} {
				t.Run(backend.name, func(t *testing.T) {
					on := *p
					on.t = t
					t.Cleanup(on.logIfFailed)
					on.checkBackend(number+1, backend.name, backend.mtu, backend.options)
				})
			}
		})
	}
}

// checkBackend replaces the machines' network by one with the given backend. The number makes its
// name and addresses unique.
func (p *pair) checkBackend(number int, backend string, mtu int, options string) {
	p.t.Helper()
	for _, m := range p.both() {
		p.must(m, "systemctl", "stop", "leno")
		p.must(m, "leno", "cleanup", "-keep-lease") // the records are deleted below
		p.must(m, "sh", "-c", "ip link del br0 2>/dev/null; rm -f /run/leno/default.env")
	}
	if out, err := p.lab.Consul.CLI(p.ctx, "kv", "delete", "-recurse", "leno/"); err != nil {
		p.t.Fatal(err, out)
	}
	p.configure(fmt.Sprintf(`  ipv4 {
    prefix = "10.%d.0.0/16"
  }
  ipv6 {
    prefix = "fd00:%d::/48"
  }
  backend %q {
%s  }
`, number, number, backend, options))
	for _, m := range p.both() {
		// IPv6 forwarding is the operator's to switch on.
		p.must(m, "sysctl", "-q", "-w", "net.ipv6.conf.all.forwarding=1")
		p.must(m, "systemctl", "start", "leno")
		p.must(m, "leno", "status", "-wait=2m")
	}
	a, b := p.bridge(p.a), p.bridge(p.b)
	if len(a.gateways) != 2 || a.mtu != mtu || b.mtu != mtu {
		p.t.Fatalf("want both families and MTU %d; subnet files:\n%s\n%s", mtu, a.file, b.file)
	}
	for i, gateway := range b.gateways {
		err := lab.WaitFor(p.ctx, "a first answer", func(ctx context.Context) error {
			_, err := p.a.Run(ctx, "ping", "-n", "-c", "1", "-W", "2", "-I", a.gateways[i].Addr().String(), gateway.Addr().String())
			return err
		})
		if err != nil {
			p.t.Fatal(err)
		}
		p.checkMTU(p.a, a, gateway.Addr())
		p.checkMTU(p.b, b, a.gateways[i].Addr())
	}
	for _, m := range p.both() {
		p.doctor(m)
	}
	if backend == "udp" {
		for _, m := range p.both() {
			journal := p.must(m, "journalctl", "--quiet", "--unit", "leno", "--output=cat", "--boot")
			if !strings.Contains(journal, "queues=2") || strings.Contains(journal, "one_queue_because") {
				p.t.Errorf("%s does not steer flows to two queues of the TUN device:\n%s", m.Name, journal)
			}
		}
	}
}
