package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/internal/testkit/programs"
)

// flanneld is a real flanneld on a host.
type flanneld struct {
	w       *world
	host    *lab.Host
	program string // a link with the name by which leno finds it
	process *lab.Process
	subnets []netip.Prefix // IPv4, then IPv6
}

// newFlanneld starts flanneld and waits for its subnets. If it had subnets before, it takes them again.
func (w *world) newFlanneld(h *lab.Host, had ...string) *flanneld {
	w.t.Helper()
	found, err := programs.Flannel.Find()
	w.must(err)
	f := &flanneld{w: w, host: h, program: filepath.Join(h.Dir, "flanneld")}
	w.must(os.Symlink(found, f.program))
	_, err = h.Exec(w.ctx, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	w.must(err)
	for i, name := range subnetVariables[:len(had)] {
		f.subnets = append(f.subnets, netip.MustParsePrefix(had[i]))
		w.must(appendLine(f.subnetFile(), name+"="+had[i]))
	}
	f.start()
	return f
}

// subnetVariables are the names of the subnets in flannel's subnet file.
var subnetVariables = []string{"FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"}

func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, line)
	return errors.Join(err, f.Close())
}

func (f *flanneld) subnetFile() string { return filepath.Join(f.host.Dir, "subnet.env") }

// start starts flanneld, again or for the first time, and waits until it is ready.
func (f *flanneld) start() {
	f.w.t.Helper()
	var err error
	f.process, err = f.host.Start(f.program, "--etcd-endpoints=http://"+f.w.Etcd.Address(), "--iface=eth0",
		"--subnet-file="+f.subnetFile())
	f.w.must(err)
	f.w.must(f.process.WaitFor(f.w.ctx, "flanneld to be ready", func(context.Context) error {
		if !strings.Contains(f.process.Output(), "flannel is ready") {
			return fmt.Errorf("it is not")
		}
		return nil
	}))
	text, err := os.ReadFile(f.subnetFile())
	f.w.must(err)
	var subnets []netip.Prefix
	for _, name := range subnetVariables {
		if _, rest, ok := strings.Cut("\n"+string(text), "\n"+name+"="); ok {
			value, _, _ := strings.Cut(rest, "\n")
			gateway, err := netip.ParsePrefix(value)
			f.w.must(err)
			subnets = append(subnets, gateway.Masked())
		}
	}
	if len(subnets) == 0 {
		f.w.t.Fatalf("flanneld of %s has no subnet:\n%s", f.host.Name, text)
	}
	if f.subnets != nil && !slices.Equal(f.subnets, subnets) {
		f.w.t.Errorf("flanneld of %s had %s and has %s now", f.host.Name, f.subnets, subnets)
	}
	f.subnets = subnets
}

// stop ends flanneld, which leaves its device and routes.
func (f *flanneld) stop() {
	f.w.t.Helper()
	f.w.must(f.process.Stop(f.w.ctx))
}

// container adds a container in flanneld's subnets.
func (f *flanneld) container() *lab.Container {
	f.w.t.Helper()
	// The lab's containers read variables with leno's names.
	env := "LENO_MTU=1430\n"
	for i, p := range f.subnets {
		env += fmt.Sprintf("%s=%s\n", []string{"LENO_SUBNET", "LENO_IPV6_SUBNET"}[i], netip.PrefixFrom(p.Addr().Next(), p.Bits()))
	}
	f.w.must(os.WriteFile(f.host.SubnetFile("flannel"), []byte(env), 0o644))
	c, err := f.host.AddContainer(f.w.ctx, "flannel")
	f.w.must(err)
	return c
}

// routesOver blocks until a host has routes to subnets over a device, and no others.
func (w *world) routesOver(h *lab.Host, device string, subnets ...netip.Prefix) {
	w.t.Helper()
	w.must(lab.WaitFor(w.ctx, h.Name+" to have its routes over "+device, func(ctx context.Context) error {
		for _, subnet := range subnets {
			got, err := routesTo(ctx, h, flannel{subnet: subnet})
			if err != nil {
				return err
			}
			if got != device {
				return fmt.Errorf("to %s over %q", subnet, got)
			}
		}
		return nil
	}))
}

// TestFlanneld runs leno beside real flannelds on one etcd: a new host with leno joins, one host moves from flannel to leno
// and back, and the flannelds and agents of the others restart. No packet between containers is lost, in either direction,
// and every host keeps its subnet.
func TestFlanneld(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	w := newLab(t, lab.Options{Hosts: 4, Store: lab.StoreEtcd})
	// With iptables instead of nftables, flanneld needs the kernel's module br_netfilter.
	w.configureFlannel(`{"Network":"10.5.0.0/16","EnableNFTables":true,"Backend":{"Type":"vxlan","MTU":1400}}`)
	var flannelds []*flanneld
	var containers []*lab.Container
	for _, h := range w.Hosts[:3] {
		f := w.newFlanneld(h)
		flannelds, containers = append(flannelds, f), append(containers, f.container())
	}
	config := func(h *lab.Host) string { return h.Config(w.lease(), h.Network("default", "")) }

	// A host joins that never ran flannel.
	joined := w.Hosts[3]
	w.must(joined.StartAgent(config(joined)))
	w.must(joined.WaitReady(w.ctx))
	c, err := joined.AddContainer(w.ctx, "default")
	w.must(err)
	containers = append(containers, c)
	w.hasMTU(joined, "leno-default", 1350)
	for _, f := range flannelds {
		w.hasMTU(f.host, "flannel.1", 1350)
	}
	subnets := []netip.Prefix{flannelds[0].subnets[0], flannelds[1].subnets[0], flannelds[2].subnets[0], netip.PrefixFrom(c.Addrs[0], 24).Masked()}
	for _, f := range flannelds {
		w.routesOver(f.host, "flannel.1", subnets[3])
	}
	w.routesOver(joined, "leno-default", subnets[:3]...)
	w.healthy(joined)

	var streams []*lab.Echoes
	for i, from := range containers {
		for _, j := range []int{(i + 1) % 4, (i + 2) % 4} {
			s, err := from.StartEchoes(w.ctx, containers[j].Addrs[0], 20*time.Millisecond)
			w.must(err)
			streams = append(streams, s)
		}
	}
	answered := func() {
		t.Helper()
		for _, s := range streams {
			w.must(s.WaitAnswers(w.ctx, 25))
		}
	}
	answered()

	// Each program restarts beside the other one.
	flannelds[0].stop()
	flannelds[0].start()
	w.must(joined.StopAgent(w.ctx))
	w.must(joined.RestartAgent())
	w.must(joined.WaitReady(w.ctx))
	answered()

	// One host moves to leno. The others notice nothing.
	moved := flannelds[2]
	index, before := w.deviceIndex(moved.host, "flannel.1"), w.leases()
	w.configure(moved.host, config(moved.host))
	moved.stop()
	w.handOver(moved.host, "adopt", "device flannel.1: gets the alias leno network default", 3)
	w.must(moved.host.StartAgent(config(moved.host)))
	w.must(moved.host.WaitReady(w.ctx))
	w.healthy(moved.host)
	w.routesOver(moved.host, "leno-default", subnets[0], subnets[1], subnets[3])
	w.hasMTU(moved.host, "leno-default", 1350)
	if got := w.deviceIndex(moved.host, "leno-default"); got != index {
		t.Errorf("the device has index %s, flannel's had %s", got, index)
	}
	for key, flannels := range before {
		if now := w.leases()[key]; now.PublicIP != flannels.PublicIP || now.BackendData != flannels.BackendData {
			t.Errorf("%s: the lease was %+v, it is %+v", key, flannels, now)
		}
	}
	answered()

	// And back.
	w.must(moved.host.StopAgent(w.ctx))
	w.handOver(moved.host, "return", "device leno-default: gets the name flannel.1", 4)
	moved.start()
	_, err = moved.host.Leno(w.ctx, "cleanup", "-keep-lease", "-config-file="+moved.host.ConfigFile())
	w.must(err)
	w.routesOver(moved.host, "flannel.1", subnets[0], subnets[1], subnets[3])
	w.hasMTU(moved.host, "flannel.1", 1350)
	if got := w.deviceIndex(moved.host, "flannel.1"); got != index {
		t.Errorf("the device has index %s, it had %s", got, index)
	}
	w.noTrace(moved.host, "leno")
	w.routesOver(joined, "leno-default", subnets[:3]...)
	w.healthy(joined)
	answered()
	for _, s := range streams {
		result, err := s.Stop()
		w.must(err)
		if result.Lost() != 0 {
			t.Errorf("%d of %d packets were lost, the longest gap was %s", result.Lost(), result.Sent, result.Gap)
		}
	}

	// A device with another MAC address than in its record drops what the others send: restarting flanneld cures it.
	before = w.leases()
	_, err = moved.host.Exec(w.ctx, "ip", "link", "set", "flannel.1", "address", "02:00:00:00:00:01")
	w.must(err)
	doctor := func(healthy bool, words string) {
		t.Helper()
		w.must(lab.WaitFor(w.ctx, "leno doctor to say "+words, func(ctx context.Context) error {
			out, err := joined.Leno(ctx, "doctor")
			if (err == nil) != healthy || !strings.Contains(strings.Join(strings.Fields(out), " "), words) {
				return fmt.Errorf("%v\n%s", err, out)
			}
			return nil
		}))
	}
	doctor(false, "restart it if the MAC address of its device (`ip link show flannel.1`)")
	moved.stop()
	moved.start()
	w.must(c.Reach(w.ctx, containers[2].Addrs[0]))
	if maps.Equal(before, w.leases()) {
		t.Error("flanneld has not written the device's MAC address")
	}
	doctor(true, "healthy")
}

// hasMTU checks the MTU of a device and, on a host with leno, the one of its containers.
func (w *world) hasMTU(h *lab.Host, link string, want int) {
	w.t.Helper()
	out, err := h.Exec(w.ctx, "ip", "-o", "link", "show", "dev", link)
	w.must(err)
	if !strings.Contains(out, fmt.Sprintf(" mtu %d ", want)) {
		w.t.Errorf("%s: want an MTU of %d: %s", h.Name, want, out)
	}
	if link == "leno-default" {
		file, err := lab.ReadSubnetFile(h.SubnetFile("default"))
		w.must(err)
		if file.MTU != want {
			w.t.Errorf("%s: containers have an MTU of %d, want %d", h.Name, file.MTU, want)
		}
	}
}

// TestFlanneldDualStack: flannel chooses the subnets of the families independently, and leno gives a host the same position
// in both pools. A host that would lose its IPv6 subnet is not moved without -renumber-ipv6, and loses no packet.
func TestFlanneldDualStack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	w := newLab(t, lab.Options{Hosts: 2, Store: lab.StoreEtcd})
	w.configureFlannel(`{"EnableIPv6":true,"Network":"10.5.0.0/16","IPv6Network":"fd00:5::/48","EnableNFTables":true,` +
		`"Backend":{"Type":"vxlan"}}`)
	moved := w.newFlanneld(w.Hosts[0], "10.5.9.0/24", "fd00:5:0:77::/64")
	other := w.newFlanneld(w.Hosts[1], "10.5.20.0/24", "fd00:5:0:3::/64")
	from, to := moved.container(), other.container()
	var streams []*lab.Echoes
	for _, pair := range [][2]*lab.Container{{from, to}, {to, from}} {
		for _, addr := range pair[1].Addrs {
			s, err := pair[0].StartEchoes(w.ctx, addr, 20*time.Millisecond)
			w.must(err)
			streams = append(streams, s)
		}
	}
	before := w.leases()
	moved.stop()
	config := moved.host.Config(w.lease(), moved.host.Network("default", ""))
	w.configure(moved.host, config)
	out, err := moved.host.Leno(w.ctx, "flannel", "adopt", "-config-file="+moved.host.ConfigFile())
	if err == nil || !strings.Contains(err.Error(), "this host has 10.5.9.0/24 and fd00:5:0:77::/64, which flannel chose independently") {
		t.Errorf("adopt: %s %v", out, err)
	}
	w.must(moved.host.StartAgent(config))
	w.must(lab.WaitFor(w.ctx, "the agent to say what is wrong", func(ctx context.Context) error {
		_, body, err := moved.host.Get(ctx, "/healthz")
		if err == nil && !strings.Contains(body, "flannel gave this host 10.5.9.0/24 and fd00:5:0:77::/64") {
			err = errors.New(body)
		}
		return err
	}))
	if after := w.leases(); !maps.Equal(before, after) {
		t.Errorf("the leases were %v, they are %v", before, after)
	}
	w.must(moved.host.StopAgent(w.ctx))
	moved.start()
	for _, s := range streams {
		w.must(s.WaitAnswers(w.ctx, 25))
		result, err := s.Stop()
		w.must(err)
		if result.Lost() != 0 {
			t.Errorf("%d of %d packets were lost, the longest gap was %s", result.Lost(), result.Sent, result.Gap)
		}
	}

	// The operator accepts another IPv6 subnet. The host with flannel follows in both families, and is without the IPv4
	// route only for the moment in which flanneld replaces it.
	streams = nil
	for _, pair := range [][2]*lab.Container{{from, to}, {to, from}} {
		s, err := pair[0].StartEchoes(w.ctx, pair[1].Addrs[0], 20*time.Millisecond)
		w.must(err)
		streams = append(streams, s)
	}
	moved.stop()
	_, err = moved.host.Leno(w.ctx, "flannel", "adopt", "-renumber-ipv6", "-config-file="+moved.host.ConfigFile())
	w.must(err)
	w.must(moved.host.StartAgent(config))
	w.must(moved.host.WaitReady(w.ctx))
	w.routesOver(other.host, "flannel.1", moved.subnets[0])
	w.routesOver(other.host, "flannel-v6.1", netip.MustParsePrefix("fd00:5:0:9::/64"))
	w.healthy(moved.host)
	for _, s := range streams {
		w.must(s.WaitAnswers(w.ctx, 25))
		result, err := s.Stop()
		w.must(err)
		// flanneld removes the route of the old record and adds it again, once.
		if m := result.Missing; len(m) > 0 && m[len(m)-1]-m[0] != len(m)-1 {
			t.Errorf("-renumber-ipv6: %d of %d packets were lost, not one after the other: %d", result.Lost(), result.Sent, m)
		}
	}
}

// TestFlanneldAfterSwitch: after a network was switched to another VNI, it looks to flannel like any other: flanneld joins it,
// and a host with leno returns to flannel.
func TestFlanneldAfterSwitch(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	w := newLab(t, lab.Options{Hosts: 3, Store: lab.StoreEtcd})
	w.configureFlannel(`{"Network":"10.5.0.0/16","EnableNFTables":true,"Backend":{"Type":"vxlan"}}`)
	var containers []*lab.Container
	for _, h := range w.Hosts[:2] {
		w.must(h.StartAgent(h.Config(w.lease(), h.Network("default", ""))))
	}
	for _, h := range w.Hosts[:2] {
		w.must(h.WaitReady(w.ctx))
		c, err := h.AddContainer(w.ctx, "default")
		w.must(err)
		containers = append(containers, c)
	}
	definition := filepath.Join(w.Dir, "default.hcl")
	w.must(os.WriteFile(definition, []byte("network \"default\" {\n  ipv4 { prefix = \"10.5.0.0/16\" }\n  backend \"vxlan\" { vni = 2 }\n}\n"), 0o644))
	for _, args := range [][]string{{"apply", "-wait=2m", definition}, {"switch", "-wait=2m", "default"}} {
		_, err := w.Hosts[0].Leno(w.ctx, append([]string{"network"}, args...)...)
		w.must(err)
	}

	joined := w.newFlanneld(w.Hosts[2])
	containers = append(containers, joined.container())
	subnets := []netip.Prefix{
		netip.PrefixFrom(containers[0].Addrs[0], 24).Masked(), netip.PrefixFrom(containers[1].Addrs[0], 24).Masked(), joined.subnets[0]}
	w.routesOver(joined.host, "flannel.2", subnets[:2]...)
	for _, h := range w.Hosts[:2] {
		w.healthy(h)
	}
	streams := w.startEchoes(containers, 20*time.Millisecond)

	moved := w.Hosts[1]
	w.must(moved.StopAgent(w.ctx))
	_, err := moved.Leno(w.ctx, "flannel", "return", "-config-file="+moved.ConfigFile())
	w.must(err)
	returned := w.newFlanneld(moved, netip.PrefixFrom(subnets[1].Addr(), 24).String())
	_, err = moved.Leno(w.ctx, "cleanup", "-keep-lease", "-config-file="+moved.ConfigFile())
	w.must(err)
	w.routesOver(returned.host, "flannel.2", subnets[0], subnets[2])
	w.noTrace(moved, "leno")
	w.healthy(w.Hosts[0])
	for _, s := range streams {
		w.must(s.WaitAnswers(w.ctx, 25))
		result, err := s.Stop()
		w.must(err)
		if result.Lost() != 0 {
			t.Errorf("%d of %d packets were lost, the longest gap was %s", result.Lost(), result.Sent, result.Gap)
		}
	}
}

// TestFlanneldRestored: etcd is restored to before a host with flanneld joined. flanneld would write its record again a day
// later, so the host with leno puts it back: no packet is lost, and a host that joins then gets another subnet.
func TestFlanneldRestored(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	w := newLab(t, lab.Options{Hosts: 3, Store: lab.StoreEtcd})
	w.configureFlannel(`{"Network":"10.5.0.0/22","SubnetLen":24,"SubnetMin":"10.5.1.0","EnableNFTables":true,` +
		`"Backend":{"Type":"vxlan"}}`) // for three hosts
	config := func(h *lab.Host) string { return h.Config(w.lease(), h.Network("default", "")) }
	first, newcomer := w.Hosts[0], w.Hosts[2]
	w.must(first.StartAgent(config(first)))
	w.must(first.WaitReady(w.ctx))
	c, err := first.AddContainer(w.ctx, "default")
	w.must(err)
	snapshot := w.snapshot()
	f := w.newFlanneld(w.Hosts[1])
	other := f.container()
	before := w.leases()
	stream, err := c.StartEchoes(w.ctx, other.Addrs[0], 20*time.Millisecond)
	w.must(err)
	w.must(stream.WaitAnswers(w.ctx, 25))

	w.must(w.RestoreEtcd(w.ctx, snapshot))
	w.must(lab.WaitFor(w.ctx, "flanneld's record to be there again", func(context.Context) error {
		if after := w.leases(); !maps.Equal(before, after) {
			return fmt.Errorf("there are %v, want %v", after, before)
		}
		return nil
	}))
	w.must(newcomer.StartAgent(config(newcomer)))
	w.must(newcomer.WaitReady(w.ctx))
	for key, flannels := range before {
		if got := w.leases()[key]; got != flannels {
			t.Errorf("%s: the lease was %+v, it is %+v", key, flannels, got)
		}
	}
	w.routesOver(newcomer, "leno-default", f.subnets...)
	w.healthy(first)
	w.must(stream.WaitAnswers(w.ctx, 25))
	result, err := stream.Stop()
	w.must(err)
	if result.Lost() != 0 {
		t.Errorf("%d of %d packets were lost, the longest gap was %s", result.Lost(), result.Sent, result.Gap)
	}
}

// snapshot saves etcd's data to a file.
func (w *world) snapshot() (path string) {
	w.t.Helper()
	snapshot, err := w.etcd().SnapshotWithVersion(w.ctx)
	w.must(err)
	data, err := io.ReadAll(snapshot.Snapshot)
	w.must(errors.Join(err, snapshot.Snapshot.Close()))
	path = filepath.Join(w.Dir, "snapshot.db")
	w.must(os.WriteFile(path, data, 0o600))
	return path
}
