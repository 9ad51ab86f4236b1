//go:build vm

package vm

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestWireGuard runs the wireguard backend with WireGuard of the kernel, which namespaces on other machines may lack: the
// backend's own tests with that device, and two hosts with the package. Packets of exactly the MTU cross in both address
// families, and what other programs change is repaired. No packet is lost while an agent is killed and starts again, nor
// while the network is switched to other keys and to another backend.
func TestWireGuard(t *testing.T) {
	t.Parallel()
	tests := os.Getenv("LENO_TEST_VM_WIREGUARD")
	if tests == "" {
		t.Fatal("no LENO_TEST_VM_WIREGUARD: run make vm-test")
	}
	p := newPair(t, Options{Kernel: defaultKernel, Processors: 2, Memory: 1024, Files: map[string]string{"wireguard.test": tests}})
	p.configure("  ipv4 {\n    prefix = \"10.5.0.0/16\"\n  }\n  ipv6 {\n    prefix = \"fd00:5::/48\"\n  }\n  backend \"wireguard\" {}\n")
	for _, m := range p.both() {
		p.must(m, "sysctl", "-q", "-w", "net.ipv6.conf.all.forwarding=1")
		p.must(m, "systemctl", "start", "leno")
		p.must(m, "leno", "status", "-wait=2m")
	}
	const link = "leno-default"
	for _, m := range p.both() {
		if out := p.must(m, "ip", "-d", "link", "show", link); !strings.Contains(out, "wireguard") {
			t.Fatalf("not a device of the kernel:\n%s", out)
		}
		if out := p.must(m, "leno", "network", "show", "default"); !strings.Contains(out, "WireGuard of the kernel") {
			t.Errorf("leno network show:\n%s", out)
		}
	}
	ends := map[*Machine]subnet{p.a: p.bridge(p.a), p.b: p.bridge(p.b)}
	for _, gateway := range ends[p.b].gateways {
		p.wait(p.a, "packets to cross", fmt.Sprintf("ping -n -c 1 -W 2 %s", gateway.Addr()))
		p.checkMTU(p.a, ends[p.a], gateway.Addr())
	}
	if ends[p.a].mtu != 1440 {
		t.Errorf("MTU %d", ends[p.a].mtu)
	}
	p.wait(p.a, "wg to show a handshake", "wg show "+link+" | grep 'latest handshake'")
	p.doctor(p.a)

	p.startPings(p.b, ends[p.a].gateways[0].Addr())
	for range 3 {
		p.must(p.a, "systemctl", "kill", "--signal=KILL", "leno")
		p.wait(p.a, "the agent to start again", "systemctl is-active leno && leno status | grep '^Status *passing, ready$'")
	}
	if missing, answered := p.stopPings(p.b); len(missing) != 0 {
		t.Errorf("%d of %d packets lost: %v", len(missing), len(missing)+answered, missing)
	}

	peers := "wg show " + link + " allowed-ips | sort; wg show " + link + " endpoints"
	before := p.must(p.a, "sh", "-euc", peers)
	for _, fault := range []struct{ script, says string }{
		{"wg set " + link + ` peer "$(wg show ` + link + ` peers)" remove`, "peers were missing"},
		{"wg set " + link + ` peer "$(wg genkey | wg pubkey)" allowed-ips 10.5.240.0/24`, "foreign peers were there"},
		{"wg set " + link + " listen-port 4444", "device had another listen port"},
		{"ip link set " + link + " down", "device was down"},
		{"ip link del " + link, "device was deleted"},
	} {
		p.must(p.a, "sh", "-euc", since+fault.script)
		if err := p.reported(p.a, fault.says); err != nil {
			t.Errorf("%s: %v", fault.script, err)
		}
		if after := p.must(p.a, "sh", "-euc", peers); after != before {
			t.Errorf("%s: left\n%s\nbefore\n%s", fault.script, after, before)
		}
	}
	p.wait(p.b, "packets to cross", "ping -n -c 1 -W 2 "+ends[p.a].gateways[0].Addr().String())

	// New keys on a second device of the kernel, and another backend and back.
	p.startPings(p.b, ends[p.a].gateways[0].Addr())
	p.must(p.a, "leno", "network", "switch", "-rotate-keys", "-wait=3m")
	for _, backend := range []string{"vxlan", "wireguard"} {
		p.must(p.a, "sh", "-euc", fmt.Sprintf(`cat >/tmp/network.hcl <<-END
	network "default" {
	  ipv4 {
	    prefix = "10.5.0.0/16"
	  }
	  ipv6 {
	    prefix = "fd00:5::/48"
	  }
	  backend %q {}
	}
	END
leno network apply /tmp/network.hcl
leno network switch -wait=3m`, backend))
	}
	if missing, answered := p.stopPings(p.b); len(missing) != 0 {
		t.Errorf("%d of %d packets lost in switches: %v", len(missing), len(missing)+answered, missing)
	}
	if out := p.must(p.a, "ip", "-br", "link", "show", "type", "wireguard"); strings.Count(out, "\n") != 1 {
		t.Errorf("devices:\n%s", out)
	}

	// The backend's tests, in namespaces of one machine. A thousand peers take too long on an emulated processor.
	p.must(p.a, "systemctl", "stop", "leno")
	out, err := p.a.Run(p.ctx, "/mnt/wireguard.test", "-test.v",
		"-test.run=^(TestConformance|TestDrift|TestRemovedPeer|TestRekey|TestForgedSource|TestPortInUse|TestIPv6Disabled|TestChange|TestLostKey|TestCopiedKey|TestCounters|TestEndpointOfAnyPublicAddress|TestSourceAfterChangeOfUnderlay|TestNAT|TestAlternatives)$/^kernel",
		"-test.skip=//many_peers")
	if err != nil || !strings.Contains(out, "--- PASS: TestConformance/kernel") {
		t.Errorf("the backend's tests: %v\n%s", err, out)
	}
}
