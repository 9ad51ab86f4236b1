package packages

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestDebOnOtherHosts installs and removes the deb where something is not as on a
// fresh Debian. Each case leaves the machine without the package.
func TestDebOnOtherHosts(t *testing.T) {
	m := newMachine(t)
	m.systemd()
	first := m.put(deb(t, "first"))
	for _, c := range []struct {
		name string
		do   func(t *testing.T, m *machine, deb string)
	}{
		{"account of a person", personsAccount},
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

// personsAccount has a person of the agent's name on the host, and then nobody, both
// with adduser and with systemd-sysusers.
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

// sysusers brings systemd-sysusers there: this machine's, which is of the same Debian,
// and what it is linked with.
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
