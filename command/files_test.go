package command

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/posener/complete"

	"github.com/lenonet/leno/agent"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/command/cli"
)

func completionArgs() complete.Args { return complete.Args{} }

const (
	untidy = "network \"a\" {\nipv4 {\n prefix=\"10.5.0.0/16\"\n}\n}\n"
	tidy   = "network \"a\" {\n  ipv4 {\n    prefix = \"10.5.0.0/16\"\n  }\n}\n"
	broken = "network \"a\" {\n"
)

// tree writes files into a new directory and returns its path.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestFmt(t *testing.T) {
	tests := []struct {
		name   string
		files  map[string]string
		args   []string // DIR stands for the directory
		stdin  string
		code   int
		stdout string
		stderr string            // part of it
		after  map[string]string // files that changed
	}{
		{name: "tidy", files: map[string]string{"a.hcl": tidy}, args: []string{"DIR"}},
		{name: "rewrites", files: map[string]string{"a.hcl": untidy, "b.hcl": tidy}, args: []string{"DIR"},
			stdout: "DIR/a.hcl\n", after: map[string]string{"a.hcl": tidy}},
		{name: "one file", files: map[string]string{"a.conf": untidy}, args: []string{"DIR/a.conf"},
			stdout: "DIR/a.conf\n", after: map[string]string{"a.conf": tidy}},
		{name: "check", files: map[string]string{"a.hcl": untidy}, args: []string{"-check", "DIR"}, code: cli.ExitFailed, stdout: "DIR/a.hcl\n"},
		{name: "check tidy", files: map[string]string{"a.hcl": tidy}, args: []string{"-check", "DIR"}},
		{name: "print", files: map[string]string{"a.hcl": untidy}, args: []string{"-write=false", "DIR"}, stdout: tidy},
		{name: "print tidy", files: map[string]string{"a.hcl": tidy}, args: []string{"-write=false", "DIR"}, stdout: tidy},
		{name: "not below", files: map[string]string{"x/a.hcl": untidy}, args: []string{"DIR"}},
		{name: "below", files: map[string]string{"x/a.hcl": untidy}, args: []string{"DIR", "-recursive"},
			stdout: "DIR/x/a.hcl\n", after: map[string]string{"x/a.hcl": tidy}},
		{name: "other files", files: map[string]string{"a.txt": untidy, "a.json": "{ }"}, args: []string{"DIR"}},
		{name: "broken", files: map[string]string{"a.hcl": broken, "b.hcl": untidy}, args: []string{"DIR"}, code: cli.ExitFailed,
			stdout: "DIR/b.hcl\n", stderr: "on DIR/a.hcl line", after: map[string]string{"b.hcl": tidy}},
		{name: "missing", args: []string{"DIR/none.hcl"}, code: cli.ExitFailed, stderr: "no such file"},
		{name: "json", files: map[string]string{"a.json": "{}"}, args: []string{"DIR/a.json"}, code: cli.ExitFailed, stderr: "not JSON"},
		{name: "stdin", args: []string{"-"}, stdin: untidy, stdout: tidy},
		{name: "stdin check", args: []string{"-", "-check"}, stdin: untidy, code: cli.ExitFailed},
		{name: "stdin broken", args: []string{"-"}, stdin: broken, code: cli.ExitFailed, stderr: "on standard input line"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := tree(t, tt.files)
			args := []string{"fmt"}
			for _, a := range tt.args {
				args = append(args, strings.Replace(a, "DIR", dir, 1))
			}
			got := world{stdin: tt.stdin}.run(args...)
			stdout := strings.ReplaceAll(got.stdout, dir, "DIR")
			stderr := strings.ReplaceAll(got.stderr, dir, "DIR")
			if got.code != tt.code || stdout != tt.stdout {
				t.Errorf("exit %d, want %d, stdout:\n%s", got.code, tt.code, stdout)
			}
			if tt.stderr == "" && stderr != "" || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("stderr, want %q:\n%s", tt.stderr, stderr)
			}
			for name, content := range tt.files {
				if changed, ok := tt.after[name]; ok {
					content = changed
				}
				path := filepath.Join(dir, name)
				if after := read(t, path); after != content {
					t.Errorf("%s is now:\n%s", name, after)
				}
				if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
					t.Errorf("%s: %v, %v", name, info.Mode(), err)
				}
			}
		})
	}
}

// TestFmtReplacesAFile: a file is not overwritten in place, because a full disk would destroy it. A link to it stays.
func TestFmtReplacesAFile(t *testing.T) {
	dir := tree(t, map[string]string{"a.conf": untidy})
	path, link := filepath.Join(dir, "a.conf"), filepath.Join(dir, "b.conf")
	before, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	if err := os.Symlink("a.conf", link); err != nil {
		t.Fatal(err)
	}
	if got := (world{}).run("fmt", link); got.code != cli.ExitDone || read(t, path) != tidy {
		t.Errorf("%+v", got)
	}
	if old, err := io.ReadAll(before); err != nil || string(old) != untidy {
		t.Errorf("the file was overwritten: %q, %v", old, err)
	}
	if target, err := os.Readlink(link); err != nil || target != "a.conf" {
		t.Errorf("the link leads to %q: %v", target, err)
	}
}

func TestValidate(t *testing.T) {
	dir := tree(t, map[string]string{
		"good/a.hcl": "data_dir = \"/var/lib/leno\"\n" + tidy,
		"good/b.hcl": "lease {\n  ttl = \"1m\"\n}\nnetwork \"joined\" {}\n",
		"bad/a.hcl":  "lease {\n  ttl = \"1s\"\n}\n",
		"bad/b.hcl":  "network \"-\" {\n  ipv4 {\n    prefix     = \"10.5.0.0/16\"\n    subnet_len = 17\n  }\n}\nnonsense = 1\n",
	})
	good := world{}.run("validate", filepath.Join(dir, "good"))
	want := `The configuration is valid: 2 files, 2 networks.

Network      a
IPv4         10.5.0.0/16, a /24 each, from 10.5.1.0 to 10.5.255.0
Backend      vxlan
Subnet file  /run/leno/a.env

Network      joined
Pools        as Consul has them
Subnet file  /run/leno/joined.env
`
	if good.code != cli.ExitDone || good.stderr != "" || good.stdout != want {
		t.Errorf("exit %d\n%s%s", good.code, good.stdout, good.stderr)
	}
	if same := (world{}).run("validate", "-config-file", filepath.Join(dir, "good/a.hcl"), "-config-file="+filepath.Join(dir, "good/b.hcl")); same != good {
		t.Errorf("by flags: %+v", same)
	}

	bad := world{}.run("validate", "-config-dir", filepath.Join(dir, "bad"))
	if bad.code != cli.ExitFailed || bad.stdout != "" {
		t.Errorf("exit %d, stdout %q", bad.code, bad.stdout)
	}
	// All errors of all files are printed at once, with position and source line.
	for _, want := range []string{"bad/a.hcl line 2", `ttl = "1s"`, "bad/b.hcl line 1", `network "-"`, "bad/b.hcl line 4",
		"subnet_len = 17", "bad/b.hcl line 7", "nonsense", "4 errors in the configuration"} {
		if !strings.Contains(bad.stderr, want) {
			t.Errorf("no %q in:\n%s", want, bad.stderr)
		}
	}
}

// TestValidateFiles: files that the configuration names are checked where they are set, unless it
// is for another host. Missing rights of the user cause a warning.
func TestValidateFiles(t *testing.T) {
	dir := tree(t, map[string]string{"token": "x y"})
	write := func(text string) string {
		t.Helper()
		path := filepath.Join(dir, "leno.hcl")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	socket := "/run/" + strings.Repeat("x", 115)
	path := write("consul {\n  token_file = \"" + dir + "/token\"\n  tls {\n    ca_file = \"" + dir + "/none.pem\"\n  }\n}\n" +
		"http {\n  address = \"unix://" + socket + "\"\n}\nnetwork \"a\" {\n  subnet_file = \"" + dir + "\"\n}\n")
	got := world{}.run("validate", path)
	for _, want := range []string{"leno.hcl line 2", "more in it than a token", "leno.hcl line 4", "none.pem: no such file", "leno.hcl line 8", "120 bytes",
		"leno.hcl line 11", "is not a regular file", "4 errors"} {
		if got.code != cli.ExitFailed || !strings.Contains(strings.Join(strings.Fields(got.stderr), " "), want) {
			t.Errorf("exit %d, no %q in:\n%s", got.code, want, got.stderr)
		}
	}
	if got := (world{}).run("validate", "-no-files", path); got.code != cli.ExitFailed || !strings.Contains(got.stderr, "1 error in") || !strings.Contains(got.stderr, "120 bytes") {
		t.Errorf("for another host: %+v", got)
	}

	sealed := filepath.Join(dir, "sealed")
	if err := os.Mkdir(sealed, 0); err != nil {
		t.Fatal(err)
	}
	path = write("consul {\n  token_file = \"" + sealed + "/token\"\n}\n")
	wants, code := "no such file", cli.ExitFailed // for root, who may read everything
	if os.Geteuid() != 0 {
		wants, code = "Warning: consul.token_file could not be checked", cli.ExitDone
	}
	if got := (world{}).run("validate", path); got.code != code || !strings.Contains(got.stderr, wants) {
		t.Errorf("a directory that is closed: %+v", got)
	}
}

// The backends' own errors point at their option's line, and their effective values are shown.
func TestValidateAsksTheBackends(t *testing.T) {
	backends := map[string]backend.Type{"vxlan": {Name: "vxlan", Normalize: func(options json.RawMessage) (json.RawMessage, error) {
		if strings.Contains(string(options), `"vni":0`) {
			return nil, &backend.OptionError{Option: "vni", Reason: "must be 1 to 16777215, is 0"}
		}
		return json.RawMessage(`{"port":8472}`), nil
	}}}
	network := func(block string) string {
		return "network \"a\" {\n  ipv4 {\n    prefix = \"10.5.0.0/16\"\n  }\n" + block + "}\n"
	}
	dir := tree(t, map[string]string{
		"good.hcl":    network(""),
		"option.hcl":  network("  backend \"vxlan\" {\n    vni = 0\n  }\n"),
		"unknown.hcl": network("  backend \"vxlam\" {}\n"),
	})
	w := world{backends: backends}
	if got := w.run("validate", filepath.Join(dir, "good.hcl")); got.code != cli.ExitDone || !strings.Contains(got.stdout, "  port       8472\n") {
		t.Errorf("%+v", got)
	}
	if got := w.run("validate", filepath.Join(dir, "option.hcl")); got.code != cli.ExitFailed ||
		!strings.Contains(got.stderr, "line 6") || !strings.Contains(got.stderr, "must be 1 to 16777215") {
		t.Errorf("%+v", got)
	}
	if got := w.run("validate", filepath.Join(dir, "unknown.hcl")); got.code != cli.ExitFailed || !strings.Contains(got.stderr, `no backend "vxlam"`) {
		t.Errorf("%+v", got)
	}
}

// TestValidateMTU: the option mtu of a backend must leave room for the families of the network, at its line.
func TestValidateMTU(t *testing.T) {
	network := func(mtu int, pools string) string {
		return fmt.Sprintf("network \"a\" {\n  backend \"host-gw\" {\n    mtu = %d\n  }\n%s}\n", mtu, pools)
	}
	const v4, v6 = "  ipv4 {\n    prefix = \"10.5.0.0/16\"\n  }\n", "  ipv6 {\n    prefix = \"fd00:5::/48\"\n  }\n"
	w := world{backends: map[string]backend.Type{"host-gw": {Normalize: func(options json.RawMessage) (json.RawMessage, error) {
		return options, backend.CheckMTU(backend.MTUOption(options))
	}}}}
	for text, want := range map[string]string{
		network(1000, v4):    "",
		network(1280, v4+v6): "",
		network(1279, v4+v6): "is 1279, and pool fd00:5::/48 needs at least 1280",
		network(67, v4):      "must be 0 or 68 to 65535, is 67",
	} {
		dir := tree(t, map[string]string{"a.hcl": text})
		got := w.run("validate", filepath.Join(dir, "a.hcl"))
		if want == "" && got.code != cli.ExitDone || want != "" && (!strings.Contains(got.stderr, want) || !strings.Contains(got.stderr, "line 3")) {
			t.Errorf("%s%+v", text, got)
		}
	}
}

// TestValidateCollisions: two networks that no host could carry together are rejected, according
// to the real backends.
func TestValidateCollisions(t *testing.T) {
	dir := tree(t, map[string]string{
		"a.hcl": "network \"a\" {\n  ipv4 {\n    prefix = \"10.5.0.0/16\"\n  }\n}\n",
		"b.hcl": "network \"b\" {\n  ipv4 {\n    prefix = \"10.6.0.0/16\"\n  }\n}\n",
		"c.hcl": "network \"c\" {\n  ipv4 {\n    prefix = \"10.7.0.0/16\"\n  }\n  backend \"udp\" {}\n}\n",
		"d.hcl": "network \"d\" {\n  ipv4 {\n    prefix = \"10.8.0.0/16\"\n  }\n  backend \"udp\" {}\n}\n",
		"e.hcl": "network \"e\" {\n  ipv4 {\n    prefix = \"10.9.0.0/16\"\n  }\n  backend \"udp\" {\n    port = 8472\n  }\n}\n",
		"f.hcl": "network \"f\" {\n  ipv4 {\n    prefix = \"10.10.0.0/16\"\n  }\n  backend \"vxlan\" {\n    port = 4789\n  }\n}\n",
	})
	got := world{backends: NewMeta("0.1.0", nil).Backends}.run("validate", dir)
	text := strings.Join(strings.Fields(got.stderr), " ")
	for _, want := range []string{"b.hcl line 1", "needs vxlan vni 1 on port 8472, which network \"a\" at " + dir + "/a.hcl:1 uses",
		"d.hcl line 5", "needs udp port 8285, which network \"c\" at " + dir + "/c.hcl:5 uses",
		"e.hcl line 5", "needs udp port 8472, and network \"a\" at " + dir + "/a.hcl:1 uses vxlan vni 1 on port 8472", "3 errors"} {
		if got.code != cli.ExitFailed || !strings.Contains(text, want) {
			t.Errorf("exit %d, no %q in:\n%s", got.code, want, got.stderr)
		}
	}
}

// The program itself checks files with the backends that it can run.
func TestOwnBackends(t *testing.T) {
	got := slices.Sorted(maps.Keys(NewMeta("0.1.0", nil).Backends))
	if !slices.Equal(got, []string{"alloc", "host-gw", "udp", "vxlan", "wireguard"}) {
		t.Errorf("backends %v", got)
	}
}

func TestExampleConfigurationIsValidAndFormatted(t *testing.T) {
	w := world{backends: NewMeta("0.1.0", nil).Backends}
	for _, args := range [][]string{{"validate", "../config.hcl.example"}, {"fmt", "-check", "../config.hcl.example"}} {
		if got := w.run(args...); got.code != cli.ExitDone {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

// TestAgentConfiguration: an agent that cannot start with its files uses a separate exit code, so
// that systemd does not restart it.
func TestAgentConfiguration(t *testing.T) {
	dir := tree(t, map[string]string{
		"leno.hcl":     "data_dirr = \"/x\"\n",
		"consul.hcl":   "consul {\n  tls {\n    ca_file = \"/dev/null\"\n  }\n}\n",
		"password.hcl": "etcd {\n  username = \"u\"\n  password_file = \"/dev/null\"\n}\n",
		"http.hcl":     "http {\n  tls {\n    cert_file = \"/dev/null\"\n    key_file = \"/dev/null\"\n  }\n}\n",
		"later.hcl":    "http {\n  tls {\n    cert_file = \"/none/cert.pem\"\n    key_file = \"/none/key.pem\"\n  }\n}\n",
	})
	path := filepath.Join(dir, "leno.hcl")
	later := world{}.run("agent", "-config-file="+filepath.Join(dir, "later.hcl"))
	if later.code != cli.ExitFailed || !strings.Contains(later.stderr, "/none/cert.pem") {
		t.Errorf("a certificate that may come later: %+v", later)
	}
	for _, tt := range []struct{ name, flag, want string }{
		{"a mistake", "-config-file=" + path, "leno.hcl line 1"},
		{"no such file", "-config-file=" + filepath.Join(dir, "none.hcl"), "no such file"},
		{"no such directory", "-config-dir=" + filepath.Join(dir, "none"), "no such file"},
		{"no authority of the store", "-config-file=" + filepath.Join(dir, "consul.hcl"), "parse PEM in: /dev/null"},
		{"no password of the store", "-config-file=" + filepath.Join(dir, "password.hcl"), "etcd.password_file"},
		{"no certificate of the API", "-config-file=" + filepath.Join(dir, "http.hcl"), "http.tls.key_file"},
	} {
		got := world{}.run("agent", tt.flag)
		if got.code != cli.ExitConfig || got.stdout != "" || !strings.Contains(got.stderr, tt.want) {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

// TestDevNetwork: the block of -dev defines the network with effective options, so that it does not differ from its own
// definition.
func TestDevNetwork(t *testing.T) {
	a := agentCommand{dev: true}
	c, err := a.load()
	if err != nil {
		t.Fatal(err)
	}
	n, err := definition.FromBlock(c.Networks[0])
	if err != nil {
		t.Fatal(err)
	}
	if differs := definition.DifferencesOfBlock(n, n, agent.Backends()); len(differs) != 0 {
		t.Errorf("its own block differs: %q", differs)
	}
}
