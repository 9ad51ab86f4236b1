package packages

import (
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

func rpm(t *testing.T, release string) string {
	t.Helper()
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	return file(t, release+"/leno-*."+arch+".rpm")
}

// TestRPM installs the rpm into a directory whose shell and tools its scripts use, upgrades it and
// removes it.
func TestRPM(t *testing.T) {
	m := newMachine(t)
	m.systemd()
	run := func(args ...string) (string, error) {
		// Debian's rpm needs a confirmation. The dependencies are installed, but in no database
		// that rpm knows.
		line := append([]string{"--mount", "--net", "--pid", "--fork", "--kill-child", "rpm", "--root", m.dir, "--dbpath", "/var/lib/rpm"}, args...)
		out, err := exec.CommandContext(m.ctx, "unshare", line...).CombinedOutput()
		return string(out), err
	}
	of := func(args ...string) string {
		t.Helper()
		out, err := run(args...)
		if err != nil {
			t.Fatalf("rpm %q: %v\n%s", args, err, out)
		}
		return out
	}
	m.must("useradd", "--uid", "1500", "--gid", "users", "leno")
	out, err := run("--force-debian", "--nodeps", "--install", rpm(t, "first"))
	if err == nil || !strings.Contains(out, "leno: the user leno, uid 1500, is a person's account") || m.exists("/usr/bin/leno") {
		t.Errorf("with a person's account: %v\n%s", err, out)
	}
	m.must("userdel", "leno")
	of("--force-debian", "--nodeps", "--install", rpm(t, "first"))
	m.called("installation", "--system daemon-reload", managersReload)
	want := `/etc/leno.d 750 root:leno
/etc/leno.d/leno.hcl 640 root:leno
/usr/bin/leno 755 root:root`
	if got := m.stat("/etc/leno.d", "/etc/leno.d/leno.hcl", "/usr/bin/leno"); got != want {
		t.Errorf("files:\n%s\nwant\n%s", got, want)
	}
	if got := m.must("getent", "passwd", "leno"); !strings.HasSuffix(got, ":/var/lib/leno:/usr/sbin/nologin\n") {
		t.Errorf("user: %s", got)
	}
	m.configuration()
	for _, link := range []string{"/usr/libexec/cni/leno-cni", "/opt/cni/bin/leno-cni"} {
		if got := strings.TrimSpace(m.must("realpath", link)); got != "/usr/bin/leno" {
			t.Errorf("%s leads to %s", link, got)
		}
	}
	if got := of("--verify", "--nodeps", "leno"); got != "" {
		t.Errorf("rpm --verify: %s", got)
	}
	config := m.read("/etc/leno.d/leno.hcl") + "\nlog_level = \"DEBUG\"\n"
	m.write("/etc/leno.d/leno.hcl", config, 0)

	of("--force-debian", "--nodeps", "--upgrade", rpm(t, "next"))
	m.called("upgrade", "--system daemon-reload", "--system daemon-reload", "--no-block try-restart leno.service")
	if got := m.must("leno", "version"); !strings.HasPrefix(got, "leno 1.1.0-rc1\n") {
		t.Errorf("after an upgrade: %s", got)
	}
	if got := m.read("/etc/leno.d/leno.hcl"); got != config {
		t.Errorf("configuration after an upgrade: %s", got)
	}

	of("--force-debian", "--nodeps", "--erase", "leno")
	m.called("removal", "--no-reload disable --now leno.service", "--system daemon-reload")
	if m.exists("/usr/bin/leno") || m.exists("/usr/lib/systemd/system/leno.service") || m.exists("/etc/leno.d/leno.hcl") {
		t.Error("files are left")
	}
	if got := m.read("/etc/leno.d/leno.hcl.rpmsave"); got != config {
		t.Errorf("configuration after a removal: %s", got)
	}
}

// TestRPMHeader checks the rpm's header.
func TestRPMHeader(t *testing.T) {
	t.Parallel()
	path := rpm(t, "first")
	query := func(args ...string) string {
		return output(t, append([]string{"rpm", "--query", "--package", path}, args...)...)
	}
	if got := query("--queryformat", "%{NAME} %{VERSION} %{RELEASE} %{LICENSE} %{OS} %{BUILDTIME} %{BUILDHOST}"); got != "leno 1.0.0 1 MPL-2.0 linux 1700000000 localhost" {
		t.Errorf("it is %s", got)
	}
	// Flags: c for a configuration file, n for noreplace.
	if got := query("--queryformat", "[%{FILENAMES} %{FILEFLAGS:fflags} %{FILEMTIMES}\n]"); !strings.Contains(got, "\n/etc/leno.d/leno.hcl cn 1700000000\n") || strings.Count(got, " cn ") != 1 {
		t.Errorf("files:\n%s", got)
	}
	scripts := query("--scripts")
	for _, name := range []string{"preinstall", "postinstall", "preuninstall", "postuninstall"} {
		if !regexp.MustCompile(`(?m)^` + name + ` scriptlet \(using /bin/sh\):$`).MatchString(scripts) {
			t.Errorf("no %s in\n%s", name, scripts)
		}
	}
	for _, line := range strings.Split(strings.TrimSpace(query("--requires")), "\n") {
		if line != "/usr/sbin/useradd" && !strings.HasPrefix(line, "rpmlib(") && line != "/bin/sh" {
			t.Errorf("it needs %s", line)
		}
	}
}
