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

// confined makes the agent run with the driver exec from now on, as the page describes.
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
		// The agent itself reports its id in the PID namespace of the driver.
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

// chroot returns the configuration of the host files that the driver copies for a task. By default
// it copies all of /usr, which takes long.
func (c *cluster) chroot() string {
	c.t.Helper()
	files := []string{"/etc/passwd", "/etc/group", "/usr/local/bin/leno"}
	// A binary with the race detector is linked with the C library.
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

// lenoID is the id of the user leno on the machines.
const lenoID = "64199"

// accounts creates the user leno in the machine's account files and returns the script that mounts
// them.
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
