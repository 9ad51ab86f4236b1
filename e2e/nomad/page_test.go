package nomad

import (
	"os"
	"regexp"
	"strings"
)

// page returns the documentation pages that these tests follow.
func (c *cluster) page() string {
	c.t.Helper()
	var all strings.Builder
	for _, name := range []string{"integrations/nomad", "guides/nomad", "integrations/service-mesh"} {
		text, err := os.ReadFile("../../website/content/docs/" + name + ".mdx")
		c.must(err)
		all.Write(text)
	}
	return all.String()
}

// lines returns the lines of the pages' block of commands that begins with the given line.
func (c *cluster) lines(first string) []string {
	c.t.Helper()
	for _, block := range regexp.MustCompile("(?ms)^```sh[^\n]*\n(.*?)^```").FindAllStringSubmatch(c.page(), -1) {
		if lines := strings.Split(strings.TrimSpace(block[1]), "\n"); lines[0] == first {
			return lines
		}
	}
	c.t.Fatalf("no block of the pages begins with %q", first)
	return nil
}

// does runs a command of the page with the nomad program, with paths relative to the top of the
// source tree. It does not wait for the effect.
func (c *cluster) does(line string, more ...string) {
	c.t.Helper()
	args := strings.Fields(c.lines(line)[0])[1:]
	for i, arg := range args {
		if strings.HasPrefix(arg, "examples/") {
			args[i] = "../../" + arg
		}
	}
	verb := 2 // flags follow "job run"
	args = append(append(append([]string{}, args[:verb]...), more...), args[verb:]...)
	c.nomad(args...)
}

// says fails the test unless the page contains the words, and returns them. The caller then looks
// for them in a program's output.
func (c *cluster) says(words string) string {
	c.t.Helper()
	if !strings.Contains(c.page(), words) {
		c.t.Fatalf("the pages do not contain %q", words)
	}
	return words
}

// prepare does on a machine what the page requires on every client.
func (c *cluster) prepare(m *machine) {
	c.t.Helper()
	c.follow(m, "sudo install -D -m 755 bin/leno /usr/local/bin/leno")
	c.configured(m, "leno.hcl", "nomad/client.hcl")
}

// configured compares a file of Nomad's configuration with an example.
func (c *cluster) configured(m *machine, file, example string) {
	c.t.Helper()
	got, err := os.ReadFile(m.path(configuration + "/" + file))
	c.must(err)
	if want := c.example(example); string(got) != want {
		c.t.Errorf("%s is %s, not %s", file, got, want)
	}
}

// follow runs the lines of one of the page's blocks on a machine, except for Nomad's restart, which
// startClients does.
func (c *cluster) follow(m *machine, first string) {
	c.t.Helper()
	for _, line := range c.lines(first) {
		if strings.HasPrefix(line, "sudo systemctl ") {
			continue
		}
		c.sudo(m, line)
	}
}

// sudo runs a line of the page on a machine. It replaces the paths of directories that are not
// mounted by their outside paths.
func (c *cluster) sudo(m *machine, line string) {
	c.t.Helper()
	line = strings.NewReplacer("sudo ", "", configuration, m.path(configuration), fragments, m.path(fragments)).Replace(line)
	_, err := m.run(c.ctx, append([]string{"env", "-C", m.path("source")}, strings.Fields(line)...)...)
	c.must(err)
}
