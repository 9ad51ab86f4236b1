package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestDebOnOtherHosts installs and removes the deb on hosts that differ from a fresh Debian. Each
// case leaves the machine without the package.
func TestDebOnOtherHosts(t *testing.T) {
	m := newMachine(t)
	m.systemd()
	first := m.put(deb(t, "first"))
	for _, c := range []struct {
		name string
		do   func(t *testing.T, m *machine, deb string)
	}{
		{"configuration created again", configurationAnew},
		{"removal that is aborted", removalAborted},
		{"directory of CNI plugins", pluginsElsewhere},
		{"account of a person", personsAccount},
		{"unit that hides the package's", unitByHand},
	} {
		t.Run(c.name, func(t *testing.T) {
			on := *m
			on.t = t
			on.must("rm", "-f", calls)
			c.do(t, &on, first)
			on.must("dpkg", "--purge", "leno")
		})
	}
}

// configurationAnew removes the configuration directory between a removal and an installation. The
// installation recreates it readable by the agent's group; an ownership that an administrator has
// set stays.
func configurationAnew(t *testing.T, m *machine, deb string) {
	m.must("dpkg", "--install", deb)
	m.must("dpkg", "--remove", "leno")
	m.must("rm", "-r", "/etc/leno.d")
	m.must("dpkg", "--install", deb)
	if got := m.stat("/etc/leno.d"); got != "/etc/leno.d 750 root:leno" {
		t.Errorf("created again: %s", got)
	}
	m.must("setpriv", "--reuid=leno", "--regid=leno", "--clear-groups", "ls", "/etc/leno.d")

	const asInstalled = "/etc/leno.d 750 root:leno\n/etc/leno.d/leno.hcl 640 root:leno"
	m.must("dpkg", "--force-confmiss", "--install", deb)
	if got := m.stat("/etc/leno.d", "/etc/leno.d/leno.hcl"); got != asInstalled {
		t.Errorf("a file created again: %s", got)
	}
	m.must("sh", "-euc", "chgrp root /etc/leno.d /etc/leno.d/leno.hcl; chmod 700 /etc/leno.d; chmod 600 /etc/leno.d/leno.hcl")
	m.must("dpkg", "--install", deb)
	if got := m.stat("/etc/leno.d", "/etc/leno.d/leno.hcl"); got != asInstalled {
		t.Errorf("a directory made by hand: %s", got)
	}

	m.write("/etc/leno.d/mine.hcl", "", 0o600)
	m.must("chgrp", "adm", "/etc/leno.d")
	m.must("dpkg", "--install", deb)
	if got := m.stat("/etc/leno.d", "/etc/leno.d/mine.hcl"); got != "/etc/leno.d 750 root:adm\n/etc/leno.d/mine.hcl 600 root:root" {
		t.Errorf("after an upgrade: %s", got)
	}
}

// removalAborted makes another package fail in whose favour this one is to be removed: everything
// is as before, and the agent was not touched.
func removalAborted(t *testing.T, m *machine, deb string) {
	m.must("dpkg", "--install", deb)
	m.called("installation", "--system daemon-reload", managersReload)
	for name, text := range map[string]string{
		"control": "Package: rival\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@example.com>\nConflicts: leno\nReplaces: leno\nDescription: it cannot be installed\n",
		"preinst": "#!/bin/sh\nexit 1\n",
	} {
		if err := os.MkdirAll(m.path("/tmp/rival/DEBIAN"), 0o755); err != nil {
			t.Fatal(err)
		}
		m.write("/tmp/rival/DEBIAN/"+name, text, 0o755)
	}
	m.must("dpkg-deb", "--build", "/tmp/rival")
	out, err := m.run("dpkg", "--auto-deconfigure", "--install", "/tmp/rival.deb")
	if err == nil || !strings.Contains(out, "removing leno") {
		t.Fatalf("the other package: %v\n%s", err, out)
	}
	if got := m.must("dpkg-query", "--show", "--showformat=${Status}", "leno"); got != "install ok installed" {
		t.Errorf("status: %s", got)
	}
	if got := strings.TrimSpace(m.must("realpath", "/opt/cni/bin/leno-cni")); got != "/usr/bin/leno" {
		t.Errorf("the plugin leads to %s", got)
	}
	m.called("aborted removal")
}

// pluginsElsewhere puts something else at /opt/cni/bin than a directory that root may write to.
// Neither an installation nor a removal fails because of it.
func pluginsElsewhere(t *testing.T, m *machine, deb string) {
	for _, c := range []struct{ name, before, install, remove, after string }{
		{"a link", "mkdir -p /opt/cni /var/lib/cnibin; ln -s /var/lib/cnibin /opt/cni/bin", "/var/lib/cnibin/leno-cni", "", "rm -r /opt/cni /var/lib/cnibin"},
		{"a file", "mkdir -p /opt/cni; touch /opt/cni/bin", "", "", "rm -r /opt/cni"},
		{"read-only", "", "/opt/cni/bin/leno-cni", "mount --bind /opt /opt; mount -o remount,bind,ro /opt", "rm -r /opt/cni"},
		{"never writable", "", "", "", "test ! -e /opt/cni"},
	} {
		readOnly := ""
		if c.name == "never writable" {
			readOnly = "mount --bind /opt /opt; mount -o remount,bind,ro /opt; "
		}
		said := m.must("sh", "-euc", c.before+"\n"+readOnly+"dpkg --install "+deb)
		if got := m.must("dpkg-query", "--show", "--showformat=${Status}", "leno"); got != "install ok installed" {
			t.Errorf("%s: installed: %s", c.name, got)
		}
		if c.install == "" && !strings.Contains(said, "leno: /opt/cni/bin/leno-cni is not there") {
			t.Errorf("%s: nothing is said of the plugin: %s", c.name, said)
		}
		if c.install != "" && !m.exists(c.install) {
			t.Errorf("%s: no %s", c.name, c.install)
		}
		m.must("sh", "-euc", c.remove+"\ndpkg --remove leno")
		if got := m.must("dpkg-query", "--show", "--showformat=${Status}", "leno"); got != "deinstall ok config-files" {
			t.Errorf("%s: removed: %s", c.name, got)
		}
		if c.name == "a link" && (m.exists(c.install) || !m.exists("/opt/cni/bin")) {
			t.Errorf("%s: not as before", c.name)
		}
		m.must("sh", "-euc", c.after)
	}
}

// personsAccount has a person's account with the agent's name on the host. The installation refuses
// it, and works once the account is renamed, both with adduser and with systemd-sysusers.
func personsAccount(t *testing.T, m *machine, deb string) {
	for _, with := range []string{"adduser", "systemd-sysusers"} {
		if with == "systemd-sysusers" {
			m.sysusers()
		}
		m.must("sh", "-c", "deluser --quiet leno; delgroup --quiet --only-if-empty leno; useradd --uid 1500 --gid users leno")
		out, err := m.run("dpkg", "--install", deb)
		if err == nil || !strings.Contains(out, "leno: the user leno, uid 1500, is a person's account") {
			t.Errorf("%s, with a person's account: %v\n%s", with, err, out)
		}
		if m.exists("/usr/bin/leno") || m.exists("/etc/leno.d") {
			t.Errorf("%s: it is installed over a person's account", with)
		}
		m.must("usermod", "--login", "leonora", "leno")
		m.must("dpkg", "--install", deb)
		if got := m.must("getent", "passwd", "leno"); !agentUser.MatchString(got) {
			t.Errorf("%s: user: %s", with, got)
		}
		if got := m.stat("/etc/leno.d", "/etc/leno.d/leno.hcl"); got != "/etc/leno.d 750 root:leno\n/etc/leno.d/leno.hcl 640 root:leno" {
			t.Errorf("%s: %s", with, got)
		}
		m.must("dpkg", "--purge", "leno")
		m.must("userdel", "leonora")
	}
	m.must("dpkg", "--install", deb)
}

// unitByHand has the unit of a manual installation on the host. The package warns that this unit
// hides its own, and its removal neither stops that unit nor deletes its state.
func unitByHand(t *testing.T, m *machine, deb string) {
	const unit, hint = "/etc/systemd/system/leno.service", "leno: /etc/systemd/system/leno.service hides the package's unit"
	text, err := os.ReadFile(source + "examples/systemd/leno.service")
	if err != nil {
		t.Fatal(err)
	}
	m.write(unit, string(text), 0o644)
	if said := m.must("dpkg", "--install", deb); !strings.Contains(said, hint) {
		t.Errorf("nothing is said of the unit: %s", said)
	}
	m.called("installation", "--system daemon-reload", managersReload)
	m.must("dpkg", "--remove", "leno")
	m.called("removal", "--system daemon-reload")
	const id = "/var/lib/leno/node-id"
	m.must("mkdir", "/var/lib/leno")
	m.write(id, "x", 0o600)
	m.must("dpkg", "--purge", "leno")
	if !m.exists(id) {
		t.Error("the state of the agent that goes on was removed")
	}
	m.must("rm", unit)
	if said := m.must("dpkg", "--install", deb); strings.Contains(said, hint) {
		t.Errorf("without a unit: %s", said)
	}
}

// sysusers adds systemd-sysusers to the machine: a copy of this machine's, which runs the same
// Debian, with its libraries.
func (m *machine) sysusers() {
	m.t.Helper()
	program, err := exec.LookPath("systemd-sysusers")
	if err != nil {
		m.t.Fatal(err)
	}
	paths := []string{program}
	for _, field := range strings.Fields(output(m.t, "ldd", program)) {
		if filepath.IsAbs(field) && !m.exists(field) {
			paths = append(paths, field)
		}
	}
	output(m.t, append([]string{"cp", "--dereference", "--parents", "-t", m.dir}, paths...)...)
}
