package packages

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/e2e/lab"
)

func deb(t *testing.T, release string) string {
	t.Helper()
	return file(t, release+"/leno_*_"+runtime.GOARCH+".deb")
}

// agentUser matches the agent's user in passwd.
var agentUser = regexp.MustCompile(`^leno:x:\d{3}:\d{3}:[^:]*:/var/lib/leno:/usr/sbin/nologin\n$`)

// TestDebFiles installs the deb where systemd does not run, checks the files, and purges it:
// nothing is left but the user.
func TestDebFiles(t *testing.T) {
	m := newMachine(t)
	before := m.files()
	m.must("dpkg", "--install", m.put(deb(t, "first")))

	if got := m.must("leno", "version"); !strings.HasPrefix(got, "leno 1.0.0\n") {
		t.Errorf("version: %s", got)
	}
	want := `/etc/leno.d 750 root:leno
/etc/leno.d/leno.hcl 640 root:leno
/usr/bin/leno 755 root:root
/usr/lib/systemd/system/leno.service 644 root:root`
	if got := m.stat("/etc/leno.d", "/etc/leno.d/leno.hcl", "/usr/bin/leno", "/usr/lib/systemd/system/leno.service"); got != want {
		t.Errorf("files:\n%s\nwant\n%s", got, want)
	}
	if got := m.must("getent", "passwd", "leno"); !agentUser.MatchString(got) {
		t.Errorf("user: %s", got)
	}
	if got := m.must("dpkg", "--verify", "leno"); got != "" {
		t.Errorf("dpkg --verify: %s", got)
	}
	if got := m.must("dpkg-query", "--show", "--showformat=${Conffiles}", "leno"); !regexp.MustCompile(`^\n? /etc/leno.d/leno.hcl [0-9a-f]{32}\n?$`).MatchString(got) {
		t.Errorf("conffiles: %q", got)
	}
	for _, link := range []string{"/usr/lib/cni/leno-cni", "/opt/cni/bin/leno-cni"} {
		if got := strings.TrimSpace(m.must("realpath", link)); got != "/usr/bin/leno" {
			t.Errorf("%s leads to %s", link, got)
		}
		if got := m.must(link); !strings.Contains(got, "CNI leno-cni plugin v1.0.0") {
			t.Errorf("%s says %s", link, got)
		}
	}
	if got := m.must("env", "COMP_LINE=leno statu", "COMP_POINT=10", "bash", "-c", ". /usr/share/bash-completion/completions/leno; eval $(complete -p leno | cut -d' ' -f3)"); got != "status\n" {
		t.Errorf("completion of statu: %q", got)
	}
	m.configuration()
	m.manual()
	m.documented()

	m.must("sh", "-euc", "install -d /var/lib/leno; mount -t tmpfs state /var/lib/leno; touch /var/lib/leno/node-id; "+
		"dpkg --purge leno; test ! -e /var/lib/leno/node-id; umount /var/lib/leno; rmdir /var/lib/leno")
	if diff := cmp.Diff(before, m.files()); diff != "" {
		t.Errorf("after a purge:\n%s", diff)
	}
	m.must("getent", "passwd", "leno")
}

// configuration checks the installed configuration: it joins no network, and the network that it
// proposes works once the comment marks are removed.
func (m *machine) configuration() {
	m.t.Helper()
	as := []string{"setpriv", "--reuid=leno", "--regid=leno", "--clear-groups", "leno", "validate", "/etc/leno.d"}
	if got := m.must(as...); !strings.Contains(got, "valid: 1 file, 0 networks") {
		m.t.Errorf("as installed: %s", got)
	}
	text := m.read("/etc/leno.d/leno.hcl")
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimPrefix(line, "# "); line != "" && (len(lines) > 0 || strings.HasPrefix(line, "network ")) {
			lines = append(lines, line)
		}
	}
	m.write("/tmp/proposed.hcl", strings.Join(lines, ""), 0o644)
	if got := m.must("leno", "validate", "/tmp/proposed.hcl"); !strings.Contains(got, "valid: 1 file, 1 network") {
		m.t.Errorf("as proposed: %s", got)
	}
	example := strings.TrimSuffix(regexp.MustCompile(`/usr/share/doc/\S+`).FindString(text), ".")
	m.must("leno", "validate", example)
}

// documented compares the table in the documentation with the installed files.
func (m *machine) documented() {
	m.t.Helper()
	text, err := os.ReadFile(source + "website/content/docs/integrations/packages.mdx")
	if err != nil {
		m.t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n## What is installed\n")
	table, _, _ = strings.Cut(table, "\n\nThe agent makes")
	var names []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(/[^`]+)` \\|").FindAllStringSubmatch(table, -1) {
		names = append(names, row[1])
		if found, err := filepath.Glob(m.path(row[1])); err != nil || len(found) == 0 && !m.exists(row[1]) {
			m.t.Errorf("%s is documented, and not there; %v", row[1], err)
		}
	}
	for _, path := range strings.Fields(m.must("dpkg", "--listfiles", "leno")) {
		known := slices.ContainsFunc(names, func(name string) bool {
			matches, err := filepath.Match(name, path)
			return err == nil && matches || path == name || strings.HasPrefix(path, "/usr/share/doc/leno/")
		})
		info, err := os.Lstat(m.path(path))
		if err != nil || !info.IsDir() && !known && !strings.HasPrefix(path, "/usr/share/lintian/") {
			m.t.Errorf("%s is there, and not documented; %v", path, err)
		}
	}
	if out, err := m.run("grep", "-rl", "/usr/local/bin/leno", "/usr/share/doc/leno", "/usr/lib/systemd/system/leno.service"); err == nil {
		m.t.Errorf("these name a program that is not there:\n%s", out)
	}
}

// manual compares the manual pages with the program: there is one for each command.
func (m *machine) manual() {
	m.t.Helper()
	page := m.must("zcat", "/usr/share/man/man1/leno.1.gz")
	_, list, _ := strings.Cut(m.must("leno", "-help"), "Commands:")
	list, _, _ = strings.Cut(list, "Common options")
	commands := regexp.MustCompile(`(?m)^  ([a-z-]+) +(.+)$`).FindAllStringSubmatch(list, -1)
	if len(commands) < 10 {
		m.t.Errorf("commands: %s", list)
	}
	for _, c := range commands {
		if entry := "\n.TP\n.B " + c[1] + "\n" + c[2] + ".\n"; !strings.Contains(page, entry) {
			m.t.Errorf("leno.1 lacks%s", entry)
		}
		if !m.exists("/usr/share/man/man8/leno-" + c[1] + ".8.gz") {
			m.t.Errorf("there is no page of leno %s", c[1])
		}
	}
	if page := m.must("zcat", "/usr/share/man/man5/leno.hcl.5.gz"); !strings.HasPrefix(page, `.TH LENO.HCL 5 "2023-11-14" "leno 1.0.0" "leno manual"`+"\n") {
		m.t.Errorf("leno.hcl.5 is\n%s", page)
	}
}

// TestUnitInPackage compares the unit in the package with the example, which TestUnit verifies with
// systemd. They differ in the path of the program only, which must exist.
func TestUnitInPackage(t *testing.T) {
	dir := t.TempDir()
	output(t, "dpkg-deb", "--extract", deb(t, "first"), dir)
	path := filepath.Join(dir, "usr/lib/systemd/system/leno.service")
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(source + "examples/systemd/leno.service")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.ReplaceAll(string(want), "/usr/local/bin/leno", "/usr/bin/leno"), string(got)); diff != "" {
		t.Error(diff)
	}
	for _, line := range strings.Split(string(got), "\n") {
		if program, ok := strings.CutPrefix(line, "ExecStart="); ok {
			if _, err := os.Stat(filepath.Join(dir, strings.Fields(program)[0])); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
	}
	out := strings.Split(strings.TrimSpace(output(t, "systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=25", path)), "\n")
	t.Log(out[len(out)-1])
}

// TestDebUnderTraffic takes a host with a peer and communicating containers through an
// installation, an upgrade, a removal, another installation and a purge.
func TestDebUnderTraffic(t *testing.T) {
	m := newMachine(t)
	m.systemd()
	peers := t.TempDir()
	output(t, "dpkg-deb", "--extract", deb(t, "first"), peers)
	l, err := lab.New(m.ctx, lab.Options{Name: "pkg", Hosts: 2, Leno: filepath.Join(peers, "usr/bin/leno")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Errorf("close the lab: %v", err)
		}
	}()
	h := &host{machine: m, lab: l.Hosts[0]}
	first, next := m.put(deb(t, "first")), m.put(deb(t, "next"))

	m.must("dpkg", "--install", first)
	m.called("installation", "--system daemon-reload", managersReload) // neither enabled nor started
	config := m.read("/etc/leno.d/leno.hcl") + fmt.Sprintf(`
node_name = "host-a"
consul {
  address = %q
}
network "default" {
  ipv4 {
    prefix = "10.5.0.0/16"
  }
}
`, l.Consul.Address())
	m.write("/etc/leno.d/leno.hcl", config, 0)
	if err := l.Hosts[1].StartAgent(l.Hosts[1].Config(l.Hosts[1].Network("default", `ipv4 { prefix = "10.5.0.0/16" }`))); err != nil {
		t.Fatal(err)
	}
	h.start("1.0.0")
	subnet := m.read("/run/leno/default.env")
	if err := os.Symlink(m.path("/run/leno/default.env"), h.lab.SubnetFile("default")); err != nil {
		t.Fatal(err)
	}
	if err := l.Hosts[1].WaitReady(m.ctx); err != nil {
		t.Fatal(err)
	}
	pings := h.talk(l.Hosts[1])
	device := h.device()

	t.Log("upgrade")
	m.must("dpkg", "--install", next)
	m.called("upgrade", "--system daemon-reload", "--no-block try-restart leno.service", managersReload)
	h.restart("1.1.0-rc1")
	// Back to the first version, with an administrator who restarts services manually.
	m.program("/usr/sbin/policy-rc.d", "exit 101")
	m.must("dpkg", "--install", first)
	m.called("downgrade without restarts", "--system daemon-reload")
	h.restart("1.0.0")
	if err := os.Remove(m.path("/usr/sbin/policy-rc.d")); err != nil {
		t.Fatal(err)
	}
	stays := func(what string) {
		t.Helper()
		if err := pings.WaitAnswers(m.ctx, 20); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got := h.device(); got != device {
			t.Errorf("%s: device %s, before %s", what, got, device)
		}
		if got := m.read("/run/leno/default.env"); got != subnet {
			t.Errorf("%s: subnets\n%s\nbefore\n%s", what, got, subnet)
		}
		if got := m.read("/etc/leno.d/leno.hcl"); got != config {
			t.Errorf("%s: configuration\n%s\nwas\n%s", what, got, config)
		}
		if got := m.stat("/etc/leno.d", "/etc/leno.d/leno.hcl", "/var/lib/leno"); got != "/etc/leno.d 750 root:leno\n/etc/leno.d/leno.hcl 640 root:leno\n/var/lib/leno 700 leno:leno" {
			t.Errorf("%s: %s", what, got)
		}
	}
	stays("upgrade")

	t.Log("removal")
	node := m.read("/var/lib/leno/node-id")
	said := m.must("dpkg", "--remove", "leno")
	m.called("removal", "stop leno.service", "--system daemon-reload")
	h.stop()
	if !strings.Contains(said, "leno cleanup -config-dir=/etc/leno.d") {
		t.Errorf("a removal that leaves the datapath says %s", said)
	}
	if m.exists("/usr/bin/leno") || m.exists("/usr/lib/systemd/system/leno.service") {
		t.Error("the program or the unit is still there")
	}
	stays("removal")

	t.Log("installation after a removal")
	m.must("dpkg", "--install", first)
	m.called("installation after a removal", "--system daemon-reload", "--no-block try-restart leno.service", managersReload)
	h.start("1.0.0")
	if got := m.read("/var/lib/leno/node-id"); got != node {
		t.Errorf("node id %s, before %s", got, node)
	}
	stays("installation after a removal")

	t.Log("purge")
	wants := "/etc/systemd/system/multi-user.target.wants"
	if err := os.MkdirAll(m.path(wants), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/usr/lib/systemd/system/leno.service", m.path(wants+"/leno.service")); err != nil {
		t.Fatal(err)
	}
	m.write("/etc/leno.d/token", "secret\n", 0o640)
	// The address of a running container.
	const address = "/run/leno-cni/addresses/default/10.5.1.2"
	m.must("install", "-D", "/dev/null", address)
	m.must("dpkg", "--purge", "leno")
	m.called("purge", "stop leno.service", "--system daemon-reload")
	h.stop()
	for _, name := range []string{"/etc/leno.d", "/var/lib/leno", "/run/leno", wants + "/leno.service", "/opt/cni", "/usr/lib/cni"} {
		if m.exists(name) {
			t.Errorf("%s is there after a purge", name)
		}
	}
	if !m.exists(address) {
		t.Errorf("%s is gone after a purge", address)
	}
	if err := pings.WaitAnswers(m.ctx, 20); err != nil {
		t.Errorf("after the purge: %v", err)
	}
	result, err := pings.Stop()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d pings, %d lost, longest gap %s", result.Sent, result.Lost(), result.Gap)
	if result.Lost() != 0 {
		t.Error(result.Losses())
	}
}

// A host is a machine that stands for a host of a lab.
type host struct {
	*machine
	lab   *lab.Host
	agent *lab.Process
}

// start runs the agent as the installed unit does: with its command, user, rights and directories.
func (h *host) start(version string) {
	h.t.Helper()
	unit := map[string]string{}
	for line := range strings.Lines(h.read("/usr/lib/systemd/system/leno.service")) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			unit[key] = value
		}
	}
	caps := "-all,+" + strings.ReplaceAll(strings.ToLower(strings.ReplaceAll(unit["AmbientCapabilities"], "CAP_", "")), " ", ",+")
	script := fmt.Sprintf(`
install -d -o %[1]s -g %[2]s -m %[3]s /var/lib/%[4]s
install -d -o %[1]s -g %[2]s -m %[5]s /run/%[6]s
umask %[7]s
exec setpriv --reuid=%[1]s --regid=%[2]s --init-groups --inh-caps=%[8]s --ambient-caps=%[8]s --bounding-set=%[8]s --no-new-privs %[9]s`,
		unit["User"], unit["Group"], unit["StateDirectoryMode"], unit["StateDirectory"], unit["RuntimeDirectoryMode"], unit["RuntimeDirectory"],
		unit["UMask"], caps, unit["ExecStart"])
	var err error
	h.agent, err = h.lab.Start(append([]string{"unshare", "--mount"}, h.inside("sh", "-euc", script)...)...)
	if err != nil {
		h.t.Fatal(err)
	}
	err = h.agent.WaitFor(h.ctx, "version "+version+" to be ready", func(ctx context.Context) error {
		status, body, err := h.lab.Get(ctx, "/readyz")
		if err == nil && status != 200 {
			err = fmt.Errorf("readyz %d: %s", status, body)
		}
		if err != nil {
			return err
		}
		_, body, err = h.lab.Get(ctx, "/v1/agent/self")
		if err == nil && !strings.Contains(body, fmt.Sprintf("%q", version)) {
			err = fmt.Errorf("it is %s", body)
		}
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) stop() {
	h.t.Helper()
	if err := h.agent.Stop(h.ctx); err != nil {
		h.t.Fatal(err)
	}
}

// restart does what systemd was asked to do.
func (h *host) restart(version string) {
	h.t.Helper()
	if !h.agent.IsRunning() {
		h.t.Fatalf("the agent ended during the upgrade:\n%s", h.agent.Output())
	}
	h.stop()
	h.start(version)
}

// talk adds a container here and one on the peer, and starts pings between them.
func (h *host) talk(peer *lab.Host) *lab.Echoes {
	h.t.Helper()
	here, err := h.lab.AddContainer(h.ctx, "default")
	if err != nil {
		h.t.Fatal(err)
	}
	there, err := peer.AddContainer(h.ctx, "default")
	if err != nil {
		h.t.Fatal(err)
	}
	pings, err := there.StartEchoes(h.ctx, here.Addrs[0], 20*time.Millisecond)
	if err != nil {
		h.t.Fatal(err)
	}
	return pings
}

// device returns index and address of the network's device, and leno's routes.
func (h *host) device() string {
	h.t.Helper()
	var out []string
	for _, command := range [][]string{{"ip", "-o", "-4", "addr", "show", "dev", "leno-default"}, {"ip", "route", "show", "proto", "108"}} {
		text, err := h.lab.Exec(h.ctx, command...)
		if err != nil {
			h.t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(text), "\n")
		slices.Sort(lines)
		out = append(out, lines...)
	}
	return strings.Join(out, "\n")
}
