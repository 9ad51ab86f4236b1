package command

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/command/cli"
)

// completed returns what a shell would offer for a line, sorted.
func completed(t *testing.T, f *fakeAgent, line string) []string {
	t.Helper()
	t.Setenv("COMP_LINE", line) // the library reads it from there, and prints to the process's output
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stdout
	os.Stdout = write
	got := world{env: map[string]string{"LENO_ADDRESS": f.url, "COMP_LINE": line}}.run()
	os.Stdout = before
	var out bytes.Buffer
	if err := write.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(&out, read); err != nil || got.code != cli.ExitDone || got.stdout+got.stderr != "" {
		t.Errorf("%s: %+v, %v", line, got, err)
	}
	words := strings.Fields(out.String())
	slices.Sort(words)
	return words
}

// TestCompletionLines checks completions, requested in the way a shell does.
func TestCompletionLines(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"a.hcl", "b.txt"} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir("conf.d", 0o700); err != nil {
		t.Fatal(err)
	}
	f, other := newFakeAgent(t), newFakeAgent(t)
	other.networks[0].Name = "elsewhere"
	for _, tt := range []struct{ line, want string }{
		{"leno lea", "lease"},
		{"leno -", "-help -version"},
		{"leno lease ", "list release renew revoke show"},
		{"leno lease re", "release renew revoke"},
		{"leno lease list ", "blue default"},
		{"leno lease list b", "blue"},
		{"leno lease list blue ", ""},
		{"leno lease list -address=" + other.url + " e", "elsewhere"},
		{"leno lease list -address " + other.url + " e", "elsewhere"},
		{"leno lease list -address 127.0.0.1:1 ", ""},
		{"leno lease list -wa", "-watch"},
		{"leno lease list -format ", "json table"},
		{"leno completion ", "bash fish zsh"},
		{"leno reservation add 10.5.3", "10.5.34.0/24"},
		{"leno lease list -format=j", "json"},
		{"leno docker-opts -format=", "env json table"},
		{"leno docker-opts -network=d", "default"},
		{"leno docker-opts -docker-firewall=n", "nftables"},
		{"leno lease show ", "10.5.34.0/24 10.5.77.0/24 blue default"},
		{"leno lease show 10.5.3", "10.5.34.0/24"},
		{"leno lease show blue 10.5.7", "10.5.77.0/24"},
		{"leno lease show 10.5.34.0/24 ", ""},
		{"leno lease revoke default 10.5.34.0/24 ", ""},
		{"leno reservation remove 10.5.4", "10.5.40.0/24 10.5.41.0/24"},
		{"leno reservation add -node=host", "host-a host-b"},
		{"leno reservation add -node-id 6f1c9d1e-0000-4000-8000-000000000002", "6f1c9d1e-0000-4000-8000-000000000002"},
		{"leno peers -probe -peer host-b", "host-b"},
		{"leno network apply a", "a.hcl"},
		{"leno agent -config-dir=", "./ conf.d/"},
		{"leno agent -config-file ", "./ a.hcl b.txt conf.d/"},
		{"leno agent -log-level=d", "debug"},
		{"leno status -token-file b", "b.txt"},
		{"leno status -w", "-wait -watch"},
		{"leno nothing ", ""},
	} {
		got := completed(t, f, tt.line)
		if tt.line == "leno nothing " {
			continue // any result, but no failure
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q, want %q", tt.line, got, tt.want)
		}
	}
	f.set(func() { f.down = true })
	if got := completed(t, f, "leno lease list "); len(got) > 0 {
		t.Errorf("an agent that does not answer: %q", got)
	}
}

// TestCompletionOfFlags: every flag is offered, and files and directories are completed as such.
func TestCompletionOfFlags(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("x.env", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFakeAgent(t)
	m := cli.Meta{Getenv: func(string) string { return f.url }}
	for name := range Commands(m) {
		c, ok := Commands(m).Leaf(name)
		if !ok {
			continue
		}
		offered := completed(t, f, "leno "+name+" -")
		c.Flags.VisitAll(func(fl *flag.Flag) {
			if !slices.Contains(offered, "-"+fl.Name) {
				t.Errorf("%s: -%s is not offered in %q", name, fl.Name, offered)
			}
			p := c.AutocompleteFlags()["-"+fl.Name]
			value, _ := flag.UnquoteUsage(fl)
			if value == "file" && !slices.ContainsFunc(p.Predict(completionArgs()), func(s string) bool { return filepath.Base(s) == "x.env" }) {
				t.Errorf("%s: -%s takes a file and completes %q", name, fl.Name, p.Predict(completionArgs()))
			}
		})
	}
}
