package confined

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/docpages"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/mounts"
	"github.com/lenonet/leno/e2e/world"
)

// A host runs its agent with the restrictions of the unit.
type host struct {
	*mounts.Host
	w *testWorld
}

func newHost(w *testWorld, h *lab.Host, config string, programs map[string]string) *host {
	w.T.Helper()
	p := &host{mounts.New(w.World, h, config, programs), w}
	w.Must(os.WriteFile(filepath.Join(h.Dir, "bin/filter"), nil, 0o755)) // confine mounts this program there
	return p
}

// confine runs the unit's command with the unit's restrictions.
func (p *host) confine(c confinement) {
	p.w.T.Helper()
	exe, err := os.Executable()
	p.w.Must(err)
	script := fmt.Sprintf("mount --bind '%s' /usr/local/bin/filter\nexport %s='%s'\n", exe, filterVariable, c.filter(p.w.T))
	p.w.Must(p.LaunchCommand(script+c.script(), strings.Fields(c.unit["ExecStart"])...))
}

// ready waits for the agent and links its subnet files to where the lab's containers expect them.
func (p *host) ready(networks ...string) {
	p.w.T.Helper()
	p.w.Must(p.Process.WaitFor(p.w.Ctx, "the agent on "+p.Name+" to be ready", func(ctx context.Context) error {
		status, body, err := p.Get(ctx, "/readyz")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("/readyz answers %d: %s", status, body)
		}
		return err
	}))
	for _, network := range networks {
		file := filepath.Join(p.Dir, "run/leno", network+".env")
		info, err := os.Stat(file)
		p.w.Must(err)
		if info.Mode().Perm() != 0o644 {
			p.w.T.Errorf("%s: %s has mode %s", p.Name, file, info.Mode())
		}
		if _, err := os.Lstat(p.SubnetFile(network)); err != nil {
			p.w.Must(os.Symlink(file, p.SubnetFile(network)))
		}
	}
}

// logs waits until the agent's log has the words.
func (p *host) logs(words string) {
	p.w.T.Helper()
	p.w.Must(p.Process.WaitFor(p.w.Ctx, fmt.Sprintf("the agent on %s to log %q", p.Name, words), func(context.Context) error {
		if !strings.Contains(p.Process.Output(), words) {
			return errors.New("it has not yet")
		}
		return nil
	}))
}

// only returns the confinement with other capabilities.
func (c confinement) only(caps ...string) confinement {
	c.caps = caps
	return c
}

// TestRights runs agents without one right that the table in operations/systemd.mdx requires: the
// check concerned must name the missing right. With exactly the rights of the table, all checks
// must pass.
func TestRights(t *testing.T) {
	unit := readConfinement(t)
	readOnly := unit
	readOnly.unit = maps.Clone(unit.unit)
	readOnly.unit["ReadWritePaths"] = ""
	legacy := legacyPrograms()
	all := []struct {
		row, network string
		programs     map[string]string
		less         confinement // without one of the rights
		check        string      // "" if all checks pass even so
		status       string
		words        []string
		enough       confinement
	}{
		{"`vxlan`, `host-gw`", `backend "vxlan" {}`, nil, unit.only(), "device", api.Critical, []string{"not permitted", "CAP_NET_ADMIN"}, unit.only("net_admin")},
		{"`vxlan`, `host-gw`", `backend "host-gw" {}`, nil, unit.only(), "routes", api.Critical, []string{"not permitted", "CAP_NET_ADMIN"}, unit.only("net_admin")},
		{"`udp`", `backend "udp" {}`, nil, unit.only(), "device", api.Critical, []string{"not permitted", "CAP_NET_ADMIN"}, unit.only("net_admin")},
		{"`wireguard`", `backend "wireguard" {}`, nil, unit.only(), "device", api.Critical, []string{"not permitted", "CAP_NET_ADMIN"}, unit.only("net_admin")},
		{"`alloc`", `backend "alloc" {}`, nil, unit.only(), "", "", nil, unit.only()},
		{"rules with iptables-legacy", "backend \"vxlan\" {\n    vni = 2\n  }\n  ip_masq = true\n}\nfirewall {\n  type = \"iptables\"", legacy, unit.only("net_admin"), "firewall", api.Critical, []string{"CAP_NET_RAW"}, readConfinement(t, "leno-legacy.conf")},
		{"switching `net.ipv4.ip_forward` on", "backend \"vxlan\" {\n    vni = 3\n  }", nil, readOnly, "forwarding", api.Warning, []string{"read-only file system", "/etc/sysctl.d"}, unit.only("net_admin")},
	}
	w := newWorld(t, lab.Options{Hosts: len(all)})
	documented := map[string]bool{}
	for _, row := range docpages.Rows(t, docpages.Path("operations/systemd"), "Rights on the host") {
		documented[row[0]] = true
	}
	var runs sync.WaitGroup
	for i, tt := range all {
		if !documented[tt.row] {
			t.Errorf("no row %q", tt.row)
		}
		// Separate networks, so that a fault of one host does not affect another.
		config := w.Hosts[i].Config(fmt.Sprintf("%s\nnetwork \"n%d\" {\n  ipv4 {\n    prefix = \"10.%[2]d.0.0/16\"\n  }\n  %[3]s\n}\n", world.ShortLease, 5+i, tt.network))
		config = strings.Replace(config, fmt.Sprintf("%q", w.Hosts[i].DataDir()), `"/var/lib/leno"`, 1)
		p := newHost(w, w.Hosts[i], config, tt.programs)
		runs.Go(func() {
			if err := p.lacking(tt.less, tt.check, tt.status, tt.words, tt.enough); err != nil {
				t.Errorf("%s (%s): %v", tt.row, p.Name, err)
			}
		})
	}
	runs.Wait()
}

// legacyPrograms makes iptables the legacy variant, whatever the machine uses.
func legacyPrograms() map[string]string {
	out := map[string]string{}
	for _, program := range []string{"iptables", "ip6tables"} {
		out[program+"-nft"] = "/bin/false" // a working nft variant would be preferred
		for _, part := range []string{"", "-save", "-restore"} {
			out[program+part] = "/usr/sbin/" + program + "-legacy" + part
		}
	}
	return out
}

// lacking runs the agent first without a right and then with it.
func (p *host) lacking(less confinement, check, status string, words []string, enough confinement) error {
	if _, err := p.Exec(p.w.Ctx, "sh", "-euc", fmt.Sprintf("sysctl -qw net.ipv4.ip_forward=0; touch %[1]s; chmod 644 %[1]s", filepath.Join(p.Dir, "run/xtables.lock"))); err != nil {
		return err
	}
	for _, c := range []confinement{less, enough} {
		p.confine(c)
		if check != "" && c.less(enough) {
			if err := p.WaitCheck(check, status, words...); err != nil {
				return err
			}
			if begun, _ := p.Faults(check); begun > 1 {
				return fmt.Errorf("%d lines of the beginning", begun)
			}
		} else if err := p.WaitPassing(); err != nil {
			return err
		}
		if err := p.Process.Stop(p.w.Ctx); err != nil {
			return err
		}
	}
	return nil
}

// less reports whether c lacks rights that o has.
func (c confinement) less(o confinement) bool {
	return !slices.Equal(c.caps, o.caps) || c.unit["SupplementaryGroups"] != o.unit["SupplementaryGroups"] || c.unit["ReadWritePaths"] != o.unit["ReadWritePaths"]
}

// refused returns the lines of a log that report a missing right.
func refused(log string) (out []string) {
	for line := range strings.Lines(log) {
		if regexp.MustCompile(`(?i)not permitted|permission denied|read-only file system|must be root|EPERM|EACCES`).MatchString(line) {
			out = append(out, line)
		}
	}
	return out
}

// TestConfined runs agents with the restrictions of examples/systemd/leno.service, after agents
// that ran as root: every backend, both kinds of iptables, new keys, reload and restart, without a single
// refusal.
func TestConfined(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	c := readConfinement(t)
	backends := []string{"vxlan", "host-gw", "udp", "wireguard"}
	var hosts []*host
	units := map[string]confinement{}
	variants := map[string]string{"host-a": "iptables-nft", "host-b": "iptables-legacy"}
	for i, variant := range []string{"nft", "legacy"} {
		h := w.Hosts[i]
		config := h.Config(world.ShortLease + "\n")
		config = regexp.MustCompile(`data_dir .*\n`).ReplaceAllString(config, "")
		for j, backend := range backends {
			config += fmt.Sprintf("network %q {\n  ipv4 {\n    prefix = \"10.%d.0.0/16\"\n  }\n  ipv6 {\n    prefix = \"fd00:%[2]d::/48\"\n  }\n  backend %[1]q {}\n  ip_masq = true\n}\n", backend, 5+j)
		}
		config += "firewall {\n  type = \"iptables\"\n}\n"
		programs := map[string]string(nil)
		units[h.Name] = c
		if variant == "legacy" {
			programs = legacyPrograms()
			units[h.Name] = readConfinement(t, "leno-legacy.conf")
		}
		p := newHost(w, h, config, programs)
		lock := regexp.MustCompile(`(?m)^f (/run/xtables.lock) 0(\d+) root leno$`).FindStringSubmatch(docpages.Source(t, "examples/systemd/leno.tmpfiles"))
		if lock == nil {
			t.Fatal("leno.tmpfiles is not as this test knows it")
		}
		file := filepath.Join(h.Dir, lock[1])
		_, err := h.Exec(w.Ctx, "sh", "-euc", fmt.Sprintf("touch %[1]s; chgrp %[2]d %[1]s; chmod 0%[3]s %[1]s", file, lenoID, lock[2]))
		w.Must(err)
		w.Must(p.LaunchCommand(mounts.Run, strings.Fields(c.unit["ExecStart"])...)) // as root, like older versions of the unit
		hosts = append(hosts, p)
	}
	subnets := map[string]string{}
	for _, p := range hosts {
		p.ready(backends...)
		for _, network := range backends {
			w.Container(p.Host.Host, network)
			subnets[p.Name+network] = w.Subnet(p.Host.Host, network).String()
		}
		w.Must(p.Process.Stop(w.Ctx))
	}
	for _, p := range hosts {
		flush := fmt.Sprintf("sysctl -qw net.ipv4.ip_forward=0; export XTABLES_LOCKFILE=%s/lock; %s -w -F LENO-FORWARD", p.Dir, variants[p.Name])
		_, err := p.Exec(w.Ctx, "sh", "-euc", flush)
		w.Must(err)
		p.confine(units[p.Name])
	}
	for _, p := range hosts {
		p.ready(backends...)
		p.logs("CAP_BPF") // why udp has one queue
		w.Eventually("ip_forward on "+p.Name, func(ctx context.Context) error {
			on, err := p.Exec(ctx, "sysctl", "-n", "net.ipv4.ip_forward")
			if err == nil && on != "1\n" {
				err = fmt.Errorf("%q", on)
			}
			return err
		})
		p.logs("firewall rules written") // by this process, not by the one before
		rules, err := p.Exec(w.Ctx, variants[p.Name]+"-save")
		if err != nil || !strings.Contains(rules, "LENO-") {
			t.Errorf("%s: the rules are not with %s: %v\n%s", p.Name, variants[p.Name], err, rules)
		}
	}
	for _, network := range backends {
		w.Settle(network)
	}
	w.Linked(w.Containers)
	w.Matrix()
	// Both send packets, of which a busy machine may lose some.
	for _, network := range backends {
		w.Eventually("a probe of "+network, func(ctx context.Context) error {
			out, err := hosts[0].Exec(ctx, world.Leno(), "peers", network, "-probe", "-count=1")
			if err != nil {
				err = fmt.Errorf("%w\n%s", err, out)
			}
			return err
		})
	}
	for _, p := range hosts {
		w.Eventually("doctor on "+p.Name, func(ctx context.Context) error {
			out, err := p.Exec(ctx, world.Leno(), "doctor")
			if err != nil || !strings.Contains(variants[p.Name], "legacy") && !strings.Contains(out, "healthy") {
				return fmt.Errorf("%v\n%s", err, out)
			}
			return nil
		})
	}
	for _, option := range []string{"-rotate-keys", "-wait=2m"} { // new keys are used after test packets were answered
		if out, err := hosts[0].Exec(w.Ctx, world.Leno(), "network", "switch", option, "wireguard"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	w.reloadConfined(hosts)

	// Kill the agents and start them with the drop-in for more queues.
	units["host-a"] = readConfinement(t, "leno-queues.conf")
	units["host-b"] = readConfinement(t, "leno-queues.conf", "leno-legacy.conf")
	for _, p := range hosts {
		p.Process.Kill()
		p.confine(units[p.Name])
	}
	for _, p := range hosts {
		p.ready(backends...)
		if log := p.Process.Output(); strings.Contains(log, "CAP_BPF") {
			t.Errorf("%s: one queue with the drop-in", p.Name)
		}
		w.WaitHealth(p.Host.Host, http.StatusOK)
		for _, network := range backends {
			if now := w.Subnet(p.Host.Host, network).String(); now != subnets[p.Name+network] {
				t.Errorf("%s: %s of network %s, before %s", p.Name, now, network, subnets[p.Name+network])
			}
		}
		w.confinedStatus(p, units[p.Name])
	}
	w.Linked(w.Containers)
	w.Matrix()
	for _, p := range hosts {
		w.Must(p.Process.Stop(w.Ctx))
	}
}

// reloadConfined changes everything that the parts of the agent have to write.
func (w *testWorld) reloadConfined(hosts []*host) {
	w.T.Helper()
	for _, p := range hosts {
		if lines := refused(p.Process.Output()); len(lines) > 0 {
			w.T.Errorf("%s: %q", p.Name, lines)
		}
		config, err := os.ReadFile(p.ConfigPath())
		w.Must(err)
		p.Configure(strings.Replace(string(config), "ip_masq = true", "ip_masq = false", 1))
		_, err = p.Exec(w.Ctx, world.Leno(), "reload")
		w.Must(err)
		w.Eventually("the subnet file to follow", func(context.Context) error {
			text, err := os.ReadFile(p.SubnetFile("vxlan"))
			if err == nil && !strings.Contains(string(text), "LENO_IPMASQ=false") {
				err = fmt.Errorf("%s", text)
			}
			return err
		})
	}
	w.Matrix()
}

// confinedStatus checks the actual restrictions of the process in /proc/PID/status.
func (w *testWorld) confinedStatus(p *host, c confinement) {
	w.T.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid()))
	w.Must(err)
	var bits uint64
	for _, name := range c.caps {
		bits |= 1 << map[string]int{"net_admin": 12, "net_raw": 13, "bpf": 39}[name]
	}
	for _, want := range []string{
		fmt.Sprintf("CapEff:\t%016x", bits), fmt.Sprintf("CapBnd:\t%016x", bits), fmt.Sprintf("CapAmb:\t%016x", bits),
		"NoNewPrivs:\t1", "Seccomp:\t2", fmt.Sprintf("Uid:\t%d\t%[1]d", lenoID), "Groups:\t" + map[string]string{"root": "0"}[c.unit["SupplementaryGroups"]] + " \n",
	} {
		if !strings.Contains(string(text), want) {
			w.T.Errorf("%s: the process is not %q:\n%s", p.Name, want, text)
		}
	}
	if lines := refused(p.Process.Output()); len(lines) > 0 {
		w.T.Errorf("%s: %q", p.Name, lines)
	}
}
