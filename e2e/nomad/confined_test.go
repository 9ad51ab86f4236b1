package nomad

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"

	"github.com/lenonet/leno/api"
)

// confined has the agent run with the driver exec from now on, as the page says.
func (c *cluster) confined() {
	c.t.Helper()
	for _, m := range c.machines {
		c.must(m.write(configuration+"/chroot.hcl", c.chroot()))
	}
	c.lossless("change of the driver to exec", func() {
		before := []api.Self{c.self(c.machines[0]), c.self(c.machines[1])}
		c.does("nomad job stop leno", "-detach")
		for _, m := range c.machines {
			c.gone(m)
			c.follow(m, "sudo install -D -m 644 examples/nomad/leno.tmpfiles /etc/tmpfiles.d/leno-nomad.conf")
			c.configured(m, "leno-exec.hcl", "nomad/client-exec.hcl")
			c.must(m.stopNomad(c.ctx, syscall.SIGTERM))
			m.nomad = nil
		}
		c.startClients()
		c.does("nomad job run examples/nomad/leno-exec.nomad.hcl", "-detach")
		for i, m := range c.machines {
			c.another(m, before[i])
		}
	})
	for _, m := range c.machines {
		// What it says itself is its number in the namespace that the driver gives it.
		pid, err := m.run(c.ctx, "pgrep", "-f", "^/usr/local/bin/leno agent")
		c.must(err)
		status, err := m.run(c.ctx, "cat", "/proc/"+strings.TrimSpace(pid)+"/status")
		c.must(err)
		for _, want := range []string{"Uid:\t" + lenoID, "CapEff:\t0000000000003000", "CapBnd:\t0000000000003000"} {
			if err := contains(status, want); err != nil {
				c.t.Errorf("%s: %v", m.Name, err)
			}
		}
	}
	c.web = c.running("web", 0, c.machines...)
	c.carries()
}

// chroot is what the driver gives a task of the host's files. That is all of /usr
// unless something else is said, which takes long to copy.
func (c *cluster) chroot() string {
	c.t.Helper()
	files := []string{"/etc/passwd", "/etc/group", "/usr/local/bin/leno"}
	// With the race detector it is linked with the C library.
	libraries, err := exec.CommandContext(context.Background(), "ldd", c.programs.leno).Output()
	var static *exec.ExitError
	if err != nil && !errors.As(err, &static) {
		c.must(err)
	}
	for _, m := range regexp.MustCompile(`(/\S+) \(0x`).FindAllStringSubmatch(string(libraries), -1) {
		files = append(files, m[1])
	}
	var lines []string
	for _, file := range files {
		lines = append(lines, fmt.Sprintf("    %q = %q", file, file))
	}
	return "client {\n  chroot_env {\n" + strings.Join(lines, "\n") + "\n  }\n}\n"
}

// lenoID is the number of the user leno on the machines.
const lenoID = "64199"

// accounts gives the machine a user leno, and is the script that does.
func (m *machine) accounts() (script string, err error) {
	for file, line := range map[string]string{
		"/etc/passwd": "leno:x:" + lenoID + ":" + lenoID + "::/:/usr/sbin/nologin\n",
		"/etc/group":  "leno:x:" + lenoID + ":\n",
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		if err := m.write(file, regexp.MustCompile(`(?m)^leno:.*\n`).ReplaceAllString(string(text), "")+line); err != nil {
			return "", err
		}
		script += fmt.Sprintf("mount --bind %s %s\n", m.path(file), file)
	}
	return script, nil
}
