package nomad

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// fragments is the directory from which systemd-tmpfiles reads what to create at boot.
const fragments = "/etc/tmpfiles.d"

// boots reboots a client: its allocations and everything that the kernel and /run hold are gone.
// Its agent runs with the driver exec.
func (c *cluster) boots() {
	c.t.Helper()
	a, b := c.machines[0], c.machines[1]
	subnet, err := b.subnet()
	c.must(err)
	before := c.self(b)
	c.must(b.boot(c.ctx))
	c.must(c.removeSlice(b.Host))

	// Without the directory below /run, Nomad exits with an error.
	c.must(b.startNomad())
	_ = b.nomad.Wait(c.ctx)
	c.must(contains(b.nomad.Output(), c.says("failed to validate volume leno-run, err: stat /run/leno: no such file or directory")))

	c.sudo(b, "sudo systemd-tmpfiles --create "+fragments+"/leno-nomad.conf") // as systemd does before it starts Nomad
	b.nomad = nil
	c.startClients()
	c.eventually("the agent on "+b.Name+" to be ready", func(ctx context.Context) error { return ready(ctx, b) })
	if now := c.self(b); now.NodeID != before.NodeID {
		c.t.Errorf("the agent was %s and is %s", before.NodeID, now.NodeID)
	}
	if now, err := b.subnet(); err != nil || now != subnet {
		c.t.Errorf("the subnet was %s and is %s, %v", subnet, now, err)
	}
	client := c.namespace(a, c.web[0]).HTTP()
	c.eventually("an allocation on "+b.Name+" that can be reached", func(ctx context.Context) error {
		c.web = c.running("web", 0, a, b) // may still be what Nomad knew before the boot
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		text, err := read(ctx, client, fmt.Sprintf("http://%s:8080/", c.web[1].addr()))
		if err != nil {
			return err
		}
		return contains(text, "on "+b.Name)
	})
	c.carries()
}

// boot ends everything on the machine at once and starts it with an empty /run.
func (m *machine) boot(ctx context.Context) error {
	first, err := child(m.init.Pid())
	if err != nil {
		return err
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil { // takes all other processes of its namespace with it
		return err
	}
	if err := m.init.Wait(ctx); m.init.IsRunning() {
		return err
	}
	if err := m.nomad.Wait(ctx); m.nomad.IsRunning() {
		return err
	}
	links, err := m.Exec(ctx, "ip", "-o", "link", "show")
	if err != nil {
		return err
	}
	for line := range strings.Lines(links) {
		name, _, _ := strings.Cut(strings.TrimSuffix(strings.Fields(line)[1], ":"), "@")
		if strings.HasPrefix(name, "cni-") || strings.HasPrefix(name, "veth") { // created by leno-cni
			if _, err := m.Exec(ctx, "ip", "link", "del", name); err != nil {
				return err
			}
		}
	}
	if err := m.Wipe(ctx); err != nil {
		return err
	}
	// The page requires this of the host where the agent may not do it. Unlike after Wipe, no
	// program drops packets for others.
	for _, command := range [][]string{{"sysctl", "-q", "-w", "net.ipv4.ip_forward=1"}, {"iptables", "-P", "FORWARD", "ACCEPT"}} {
		if _, err := m.Exec(ctx, command...); err != nil {
			return err
		}
	}
	left, err := filepath.Glob(m.path("/run/*"))
	if err != nil {
		return err
	}
	for _, path := range left {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return m.start(ctx)
}

// taken returns the addresses that host-local has assigned, which are the names of its files.
func (m *machine) taken() (out []netip.Addr, err error) {
	err = filepath.WalkDir(m.path("/run"), func(path string, entry fs.DirEntry, err error) error {
		if addr, bad := netip.ParseAddr(filepath.Base(path)); err == nil && bad == nil && !entry.IsDir() {
			out = append(out, addr)
		}
		return err
	})
	slices.SortFunc(out, netip.Addr.Compare)
	return out, err
}
