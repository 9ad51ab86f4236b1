package command

import (
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
)

// TestUsage checks the exit code and the error of every kind of mistake on the command line. No
// agent is reached.
func TestUsage(t *testing.T) {
	tests := []struct {
		args string
		env  map[string]string
		want string // in standard error
	}{
		{args: "", want: "Commands:"},
		{args: "lese list", want: `unknown command "lese"; did you mean lease?`},
		{args: "xyzzy", want: `unknown command "xyzzy"` + "\n"},
		{args: "-address=h:1 status", want: "-address is before the command; flags go after it"},
		{args: "lease", want: "a subcommand is missing"},
		{args: "lease lsit", want: `unknown subcommand "lsit"; did you mean list?`},
		{args: "network", want: "Subcommands: apply, delete, list, plan, show"},
		{args: "lease list -adress=h:1", want: "unknown flag -adress; did you mean -address?"},
		{args: "lease list -q", want: "unknown flag -q\n"},
		{args: "lease list -address", want: "flag needs an argument: -address"},
		{args: "lease list a b", want: `unexpected argument "b"`},
		{args: "lease list -- a -b", want: `unexpected argument "-b"`},
		{args: "lease show", want: "SUBNET|ADDRESS is missing"},
		{args: "lease show x", want: `"x" is not a subnet`},
		{args: "lease show 10.5.34.7/24", want: "did you mean 10.5.34.0/24?"},
		{args: "lease revoke", want: "SUBNET is missing"},
		{args: "network delete", want: "NETWORK is missing"},
		{args: "network apply", want: "FILE|- is missing"},
		{args: "store copy", want: "-from is missing"},
		{args: "store copy -from=a.hcl", want: "-to is missing"},
		{args: "store copy -from=a.hcl -to=b.hcl -network=a/b", want: "network name"},
		{args: "reservation add 10.5.34.0/24", want: "exactly one of -node and -node-id"},
		{args: "reservation add -node=a -node-id=b 10.5.34.0/24", want: "exactly one of -node and -node-id"},
		{args: "peers -count=5", want: "-peer and -count need -probe"},
		{args: "peers -probe -watch", want: "-probe and -watch cannot be used together"},
		{args: "peers -probe -count=500", want: "-count is 500, must be 1 to 100"},
		{args: "status -format=xml", want: `-format: "xml" is neither table nor json`},
		{args: "status", env: map[string]string{"LENO_FORMAT": "yaml"}, want: `LENO_FORMAT: "yaml" is neither`},
		{args: "status -address=ftp://x:1", want: "unknown scheme ftp"},
		{args: "status", env: map[string]string{"LENO_ADDRESS": "x"}, want: "the port is missing"},
		{args: "status -token=a -token-file=b", want: "cannot be used together"},
		{args: "status -client-cert=a", want: "must be given together"},
		{args: "validate", want: "PATH is missing"},
		{args: "fmt - a", want: "- cannot be combined with other paths"},
		{args: "lese lsit -fromat=jsn -tokn=secret", want: "unknown command"},
		{args: "list leases", want: `unknown command "list"`},
		{args: "stats", want: "did you mean status?"},
		{args: "network history", want: `unknown subcommand "history"` + "\n"},
		{args: "read", want: `unknown command "read"` + "\n"},
		{args: "lease remove 10.5.34.0/24", want: `unknown subcommand "remove"` + "\n"},
		{args: "-token=secret status", want: "-token is before the command"},
		{args: "lease list -network blue", want: "NETWORK is an argument, not a flag"},
		{args: "lease show 10.5.34.0/24 default", want: "give the network before the subnet"},
		{args: "lease revoke 10.5.34.7", want: `"10.5.34.7" is not a subnet`},
		{args: "status -json -format=table", want: "-json and -format=table cannot be used together"},
		{args: "cni -conflist -network=b/d", want: "-network: network name"},
		{args: "docker-opts -network=blue -network=default -network=blue", want: "network blue is given twice"},
		{args: "docker-opts -subnet-file=a/blue.env -subnet-file=b/blue.env", want: "network blue is given twice"},
		{args: "docker-opts -write= -format=json", want: "-write is empty"},
		{args: "network plan a.json -from-flannel=", want: "-from-flannel is empty"},
		{args: "network apply a.json -wait=foo", want: `invalid value "foo" for -wait: is not a duration such as 30s`},
		{args: "debug -duration=0s", want: "-duration is 0s, must be more than 0s and at most 1h"},
		{args: "docker-opts -json -format=env", want: "-json and -format=env cannot be used together"},
		{args: "completion tcsh", want: `"tcsh" is none of bash, zsh and fish`},
		{args: "-autocomplete-install", want: "flags go after it"},
		{args: "lease show 10.5.34.7-33", want: `"10.5.34.7-33" is not a subnet`},
		{args: "lease show default x -format=json", want: `"x" is not a subnet`},
		{args: "network delete a -force true", want: `unexpected argument "true"`},
		{args: "network delete -force=maybe a", want: "invalid boolean value"},
		{args: "status -format=jsn", want: "neither table nor json"},
		{args: "reload -token-file", env: map[string]string{"LENO_TOKEN": "secret"}, want: "needs an argument"},
		{args: "version x", want: `unexpected argument "x"`},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			got := world{env: tt.env}.run(strings.Fields(tt.args)...)
			if got.code != cli.ExitUsage || got.stdout != "" {
				t.Errorf("exit %d, stdout %q", got.code, got.stdout)
			}
			if !strings.Contains(got.stderr, tt.want) {
				t.Errorf("stderr lacks %q:\n%s", tt.want, got.stderr)
			}
			if !strings.Contains(got.stderr, "Usage: leno ") {
				t.Errorf("no usage line:\n%s", got.stderr)
			}
			if strings.Contains(got.stderr, "secret") {
				t.Errorf("a secret is shown:\n%s", got.stderr)
			}
		})
	}
}

// works fails the test if the command line is rejected as a usage error.
func works(t *testing.T, args []string) {
	t.Helper()
	endless := slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "-watch") || strings.HasPrefix(a, "-wait") })
	if endless || slices.Contains([]string{"agent", "cleanup", "monitor", "debug", "store"}, args[0]) { // only parsed
		commands := Commands(cli.Meta{Getenv: func(string) string { return "" }})
		n := 1
		if len(commands.Subcommands(args[0])) > 0 {
			n = 2
		}
		c, ok := commands.Leaf(strings.Join(args[:n], " "))
		if !ok {
			t.Fatalf("no command %s", args[0])
		}
		if _, err := c.Parse(args[n:]); err != nil {
			t.Errorf("leno %s: %v", strings.Join(args, " "), err)
		}
		return
	}
	if got := (world{env: map[string]string{"LENO_ADDRESS": newFakeAgent(t).url}}).run(args...); got.code == cli.ExitUsage {
		t.Errorf("leno %s: %s", strings.Join(args, " "), got.stderr)
	}
}

// The examples of every command work.
func TestExamples(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{"networks.hcl": "network \"blue\" {\n  ipv4 {\n    prefix = \"10.9.0.0/20\"\n  }\n}\n", "admin.token": "t"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, factory := range Commands(cli.Meta{Getenv: func(string) string { return "" }}) {
		c, err := factory()
		if err != nil {
			t.Fatal(err)
		}
		list := cli.Examples(c.Help())
		if len(list) == 0 {
			t.Errorf("%s: no example: a line \"  $ leno %s …\" in its help", name, name)
		}
		for _, e := range list {
			if !strings.HasPrefix(strings.Join(e, " ")+" ", name+" ") {
				t.Errorf("%s: an example of another command: leno %s", name, strings.Join(e, " "))
			}
			works(t, e)
		}
	}
}

// TestHelp covers all ways to a help text.
func TestHelp(t *testing.T) {
	for want, ways := range map[string][]string{
		"Usage: leno COMMAND":          {"help", "-help", "-h", "--help", "help help"},
		"Usage: leno status [options]": {"help status", "status help", "status -help", "status --help", "status -h"},
		"Usage: leno lease list":       {"help lease list", "lease list help", "lease list -help", "lease help list", "lease list default -h"},
		"Usage: leno lease SUBCOMMAND": {"help lease", "lease help", "lease -help"},
	} {
		for _, args := range ways {
			if got := (world{}).run(strings.Fields(args)...); got.code != cli.ExitDone || got.stderr != "" || !strings.HasPrefix(got.stdout, want) {
				t.Errorf("%s: %+v", args, got)
			}
		}
	}
	if got := (world{}).run("help", "lese"); got.code != cli.ExitUsage || !strings.Contains(got.stderr, "unknown command \"lese\"; did you mean lease?") {
		t.Errorf("%+v", got)
	}
}

func TestEveryCommandHasHelp(t *testing.T) {
	for name, factory := range Commands(cli.Meta{Getenv: func(string) string { return "" }}) {
		t.Run(name, func(t *testing.T) {
			c, err := factory()
			if err != nil {
				t.Fatal(err)
			}
			if s := c.Synopsis(); s == "" || len(s) > 60 || strings.HasSuffix(s, ".") {
				t.Errorf("synopsis %q", s)
			}
			if !strings.HasPrefix(c.Help(), "Usage: leno "+name) {
				t.Errorf("help begins %.40q", c.Help())
			}
			got := world{}.run(append(strings.Fields(name), "-help")...)
			if got.code != cli.ExitDone || got.stderr != "" || !strings.Contains(got.stdout, c.Help()) {
				t.Errorf("-help: exit %d, stderr %q", got.code, got.stderr)
			}
			fits80(t, got.stdout)
		})
	}
}

// TestHelpIsOfTheCommand: a help text explains the command's own options, with their defaults and
// in full words. It only lists the common options, which are explained in one place.
func TestHelpIsOfTheCommand(t *testing.T) {
	all := world{}.run("-help").stdout
	for _, name := range []string{"address", "token", "token-file", "ca-cert", "client-cert", "client-key", "tls-server-name", "format", "no-color"} {
		if !strings.Contains(all, "\n  -"+name) {
			t.Errorf("leno -help does not explain -%s:\n%s", name, all)
		}
	}
	for name, factory := range Commands(cli.Meta{Getenv: func(string) string { return "" }}) {
		c, err := factory()
		if err != nil {
			t.Fatal(err)
		}
		leaf, ok := c.(*cli.Command)
		if !ok {
			continue
		}
		help := c.Help()
		for _, text := range []string{"authority that signed", "certificate to show", "to use for writes"} {
			if strings.Contains(help, text) {
				t.Errorf("%s -help explains what is of all commands: %q", name, text)
			}
		}
		leaf.Flags.VisitAll(func(f *flag.Flag) {
			if !strings.Contains(help, "-"+f.Name) {
				t.Errorf("%s -help lacks -%s", name, f.Name)
			}
			if value, _ := flag.UnquoteUsage(f); value == "addr" || value == "dir" {
				t.Errorf("%s: -%s: %q is not a word", name, f.Name, value)
			}
		})
	}
	for args, wants := range map[string][]string{
		"debug":   {"are captured; default 10s", "health and metrics, at least 100ms; default 2s"},
		"monitor": {"default info"},
		"peers":   {"1 to 100; default 3\n"},
		"status":  {"\nCommon options, explained by leno -help:\n\n  -address=ADDRESS -ca-cert=FILE "},
	} {
		got := world{}.run(append(strings.Fields(args), "-help")...)
		text := strings.ReplaceAll(got.stdout, "\n      ", " ")
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s -help lacks %q:\n%s", args, want, got.stdout)
			}
		}
	}
}

// TestHelpForAPersonInTrouble: the help starts with where to look when something does not work.
func TestHelpForAPersonInTrouble(t *testing.T) {
	if help := (world{}).run("-help").stdout; !strings.Contains(help[:strings.Index(help, "Commands:")], "leno doctor") {
		t.Errorf("it does not say to start with doctor:\n%s", help)
	}
}

// TestLogLevelsAreSpeltAlike checks that every command spells the log levels the same.
func TestLogLevelsAreSpeltAlike(t *testing.T) {
	const levels = "trace, debug, info, warn or error"
	for _, name := range []string{"agent", "monitor"} {
		if help := (world{}).run(name, "-help").stdout; !strings.Contains(help, levels) {
			t.Errorf("%s -help does not say %q:\n%s", name, levels, help)
		}
	}
}

func TestTopLevel(t *testing.T) {
	if got := (world{}).run("-version"); got != (result{cli.ExitDone, "leno 0.1.0\n", ""}) {
		t.Errorf("-version: %+v", got)
	}
	got := world{}.run("-help")
	if got.code != cli.ExitDone || got.stderr != "" || !strings.Contains(got.stdout, "\n  status ") {
		t.Errorf("-help: %+v", got)
	}
	fits80(t, got.stdout)
	if got := (world{}).run("version"); got.code != cli.ExitDone || !strings.HasPrefix(got.stdout, "leno 0.1.0\n") {
		t.Errorf("version: %+v", got)
	}
}

// refusing returns an address that refuses connections for as long as the test runs: its port is taken, and no program
// listens on it.
func refusing(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("http://127.0.0.1:%d", bound.(*unix.SockaddrInet4).Port)
}

func TestNoAgent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "leno.sock")
	for _, address := range []string{"unix://" + socket, refusing(t)} {
		got := world{env: map[string]string{"LENO_ADDRESS": address}}.run("status")
		if got.code != cli.ExitFailed || got.stdout != "" || !strings.Contains(got.stderr, "no agent answers at "+address) {
			t.Errorf("%+v", got)
		}
	}
}

// TestClientCertificateThatIsNone: the error names both files, because either may be wrong.
func TestClientCertificateThatIsNone(t *testing.T) {
	dir := tree(t, map[string]string{"cert.pem": "no PEM\n", "key.pem": "no PEM\n"})
	got := world{}.run("status", "-client-cert="+dir+"/cert.pem", "-client-key="+dir+"/key.pem")
	want := fmt.Sprintf("-client-cert %[1]s/cert.pem with -client-key %[1]s/key.pem: ", dir)
	if got.code != cli.ExitFailed || !strings.Contains(got.stderr, want) {
		t.Errorf("it does not say %q: %+v", want, got)
	}
}

// TestFilesThatAreNone: a flag or variable that names a FIFO or a device is rejected; reading it
// would wait for another process.
func TestFilesThatAreNone(t *testing.T) {
	dir := tree(t, map[string]string{"file": "text\n"})
	fifo, file := filepath.Join(dir, "fifo"), filepath.Join(dir, "file")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		source, path string
		args         []string
		env          map[string]string
	}{
		{"-token-file", fifo, []string{"-token-file=" + fifo}, nil},
		{"-token-file", "/dev/zero", []string{"-token-file=/dev/zero"}, nil},
		{"LENO_TOKEN_FILE", fifo, nil, map[string]string{"LENO_TOKEN_FILE": fifo}},
		{"CONSUL_HTTP_TOKEN_FILE", fifo, nil, map[string]string{"CONSUL_HTTP_TOKEN_FILE": fifo}},
		{"-ca-cert", fifo, []string{"-ca-cert=" + fifo}, nil},
		{"LENO_CA_CERT", fifo, nil, map[string]string{"LENO_CA_CERT": fifo}},
		{"-client-cert", fifo, []string{"-client-cert=" + fifo, "-client-key=" + file}, nil},
		{"LENO_CLIENT_CERT", fifo, nil, map[string]string{"LENO_CLIENT_CERT": fifo, "LENO_CLIENT_KEY": file}},
		{"-client-key", fifo, []string{"-client-cert=" + file, "-client-key=" + fifo}, nil},
		{"LENO_CLIENT_KEY", fifo, nil, map[string]string{"LENO_CLIENT_CERT": file, "LENO_CLIENT_KEY": fifo}},
	} {
		command := []string{"status"}
		if strings.Contains(strings.ToLower(tt.source), "token") {
			command = []string{"network", "delete", "blue"}
		}
		got := world{env: tt.env}.run(append(command, tt.args...)...)
		want := fmt.Sprintf("Error: %s: read %s: is not a regular file\n", tt.source, tt.path)
		if got.code != cli.ExitFailed || got.stderr != want {
			t.Errorf("%s: exit %d, %q, want %q", tt.source, got.code, got.stderr, want)
		}
	}
}

func TestToken(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one, two, empty, more := file("one", "from-one\n"), file("two", "from-two"), file("empty", "\n"), file("more", "one two\n")
	tests := []struct {
		name  string
		args  []string
		env   map[string]string
		token string
		err   string
	}{
		{name: "none"},
		{name: "Consul's", env: map[string]string{"CONSUL_HTTP_TOKEN": "c", "CONSUL_HTTP_TOKEN_FILE": one}, token: "c"},
		{name: "Consul's file", env: map[string]string{"CONSUL_HTTP_TOKEN_FILE": one}, token: "from-one"},
		{name: "ours wins", env: map[string]string{"CONSUL_HTTP_TOKEN": "c", "LENO_TOKEN": "l"}, token: "l"},
		{name: "our file wins", env: map[string]string{"CONSUL_HTTP_TOKEN": "c", "LENO_TOKEN_FILE": two}, token: "from-two"},
		{name: "flag wins", args: []string{"-token=f"}, env: map[string]string{"LENO_TOKEN": "l"}, token: "f"},
		{name: "empty flag is anonymous", args: []string{"-token="}, env: map[string]string{"LENO_TOKEN": "l"}},
		{name: "file flag wins", args: []string{"-token-file", one}, env: map[string]string{"LENO_TOKEN": "l"}, token: "from-one"},
		{name: "missing file", args: []string{"-token-file=" + filepath.Join(dir, "none")}, err: "-token-file: stat " + filepath.Join(dir, "none")},
		{name: "empty file", env: map[string]string{"LENO_TOKEN_FILE": empty}, err: "LENO_TOKEN_FILE: " + empty + ": it is empty"},
		{name: "more than a token", args: []string{"-token-file=" + more}, err: "-token-file: " + more + ": there is more in it than a token"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeAgent(t)
			env := map[string]string{"LENO_ADDRESS": f.url}
			for k, v := range tt.env {
				env[k] = v
			}
			if got := (world{env: env}).run(append([]string{"status"}, tt.args...)...); got.code != cli.ExitDone || f.tokens > 0 {
				t.Errorf("a read: %+v, %d tokens", got, f.tokens)
			}
			got := world{env: env}.run(append([]string{"network", "delete", "blue"}, tt.args...)...)
			if tt.err != "" {
				if got.code != cli.ExitFailed || !strings.Contains(got.stderr, tt.err) || len(f.requests) > 0 {
					t.Errorf("%+v, requests %v", got, f.requests)
				}
				return
			}
			if got.code != cli.ExitDone || !slices.Equal(f.requests, []string{"DELETE /v1/network/blue " + tt.token}) {
				t.Errorf("%+v, requests %q", got, f.requests)
			}
		})
	}
}

// TestTokenFileThatIsMissing: the error is the file's, and not that of a missing socket.
func TestTokenFileThatIsMissing(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	got := world{env: map[string]string{"LENO_ADDRESS": "unix://" + none}}.run("network", "delete", "blue", "-token-file="+none)
	if got.code != cli.ExitFailed || !strings.HasPrefix(got.stderr, "Error: -token-file: ") {
		t.Errorf("%+v", got)
	}
}

func TestTLS(t *testing.T) {
	f := newFakeAgent(t)
	srv := httptest.NewUnstartedServer(f.routes())
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // errors of the handshakes that must fail
	srv.StartTLS()
	defer srv.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	w := world{env: map[string]string{"LENO_ADDRESS": srv.URL}}
	if got := w.run("reload", "-ca-cert="+ca); got.code != cli.ExitDone {
		t.Errorf("%+v", got)
	}
	if got := w.run("reload", "-ca-cert="+ca, "-tls-server-name=other.test"); got.code != cli.ExitFailed {
		t.Errorf("a certificate of another name was accepted: %+v", got)
	}
	plain := httptest.NewServer(f.routes())
	defer plain.Close()
	address, inClear := strings.TrimPrefix(srv.URL, "https://"), strings.TrimPrefix(plain.URL, "http://")
	for _, tt := range []struct{ name, args, env, says string }{
		{"certificates mean TLS", "-address=" + address + " -ca-cert=" + ca, "", ""},
		{"also those of the environment", "-address=" + address, ca, ""},
		{"a scheme wins", "-address=" + plain.URL + " -ca-cert=" + ca, "", ""},
		{"a port is wanted as ever", "-address=127.0.0.1 -ca-cert=" + ca, "", "the port is missing"},
		{"no TLS where it is wanted", "-address=" + address, "", "https:// in the address"},
		{"TLS where there is none", "-address=" + inClear + " -ca-cert=" + ca + " -token=5ecret", "", "http:// in the address"},
		{"unknown authority", "-address=" + srv.URL, "", "-ca-cert"},
		{"another name", "-address=" + srv.URL + " -tls-server-name=other.test -ca-cert=" + ca, "", "-tls-server-name"},
	} {
		f.requests = nil
		got := world{env: map[string]string{"LENO_CA_CERT": tt.env}}.run(append([]string{"reload"}, strings.Fields(tt.args)...)...)
		if tt.says == "" && got.code != cli.ExitDone || tt.says != "" && (got.code == cli.ExitDone || !strings.Contains(got.stderr, tt.says) || len(f.requests) > 0) {
			t.Errorf("%s: %+v, requests %q", tt.name, got, f.requests)
		}
	}
	if got := w.run("reload", "-ca-cert=testdata/same.hcl"); got.code != cli.ExitFailed || !strings.Contains(got.stderr, "no certificate in") {
		t.Errorf("%+v", got)
	}
}

// The default network is the joined one, or else the only one.
func TestDefaultNetwork(t *testing.T) {
	joined := &api.Local{}
	tests := []struct {
		name     string
		networks []api.Network
		want     string // requested network, "" for an error
	}{
		{"one", []api.Network{{Name: "a"}}, "a"},
		{"one joined of two", []api.Network{{Name: "a"}, {Name: "b", Local: joined}}, "b"},
		{"two joined", []api.Network{{Name: "a", Local: joined}, {Name: "b", Local: joined}}, ""},
		{"two, none joined", []api.Network{{Name: "a"}, {Name: "b"}}, ""},
		{"none", nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeAgent(t)
			f.networks = tt.networks
			got := world{env: map[string]string{"LENO_ADDRESS": f.url}}.run("lease", "release")
			if tt.want == "" {
				if got.code == cli.ExitDone || len(f.requests) > 0 {
					t.Errorf("%+v, requests %v", got, f.requests)
				}
				return
			}
			if !slices.Equal(f.requests, []string{"PUT /v1/network/" + tt.want + "/release "}) {
				t.Errorf("requests %v", f.requests)
			}
		})
	}
}

func TestCompletion(t *testing.T) {
	f := newFakeAgent(t)
	m := cli.Meta{Getenv: func(name string) string { return map[string]string{"LENO_ADDRESS": f.url}[name] }}
	c, _ := Commands(m).Leaf("lease list")
	var names []string
	for _, n := range f.networks {
		names = append(names, n.Name)
	}
	if got := c.AutocompleteArgs().Predict(completionArgs()); !slices.Equal(got, names) {
		t.Errorf("networks: %v", got)
	}
	if got := c.AutocompleteFlags()["-format"].Predict(completionArgs()); !slices.Equal(got, []string{"table", "json"}) {
		t.Errorf("-format: %v", got)
	}
}

// apply -wait ends when the definition is in force on this host, whatever other problems it has.
func TestApplyWaits(t *testing.T) {
	t.Parallel() // it waits
	f := newFakeAgent(t)
	f.plans["default"] = allowed(f)
	w := world{env: map[string]string{"LENO_ADDRESS": f.url}}
	// The fake's PUT removes this host's part in the network.
	local := f.networks[1].Local
	f.health.Networks[0].Checks = []api.Check{{Name: "device", Status: api.Critical, Reason: "no luck"}}
	got := w.run("network", "apply", "testdata/change.hcl", "-wait=500ms")
	if got.code != cli.ExitFailed || !strings.Contains(got.stdout, "Updated network default") ||
		!strings.Contains(got.stderr, "after 500ms: network default: not in force on this host yet: device is critical: no luck") {
		t.Errorf("%+v", got)
	}

	// A clone of this host is a separate problem.
	f.health.Status, f.health.Networks[0].Status = api.Critical, api.Critical
	f.health.Networks[0].Checks = []api.Check{{Name: "conflict", Status: api.Critical, Reason: "another live host has the same name"}}
	local.ModifyIndex, f.networks[1].Local = 98, local
	later := time.AfterFunc(100*time.Millisecond, func() {
		f.set(func() {
			changed := *local
			changed.ModifyIndex, f.networks[1].Local = 99, &changed
		})
	})
	defer later.Stop()
	f.plans = nil
	got = w.run("network", "apply", "testdata/same.hcl", "-wait=2m")
	if got.code != cli.ExitDone || !strings.Contains(strings.Join(strings.Fields(got.stderr), " "), "Note: network default is in force on this host, where conflict is critical: another live host") {
		t.Errorf("%+v", got)
	}

	// A host without a subnet does not carry the network.
	f.health.Networks[0].Ready = false
	if got = w.run("network", "apply", "testdata/same.hcl", "-wait=500ms"); got.code != cli.ExitFailed || !strings.Contains(got.stderr, "not in force on this host yet") {
		t.Errorf("%+v", got)
	}
}

// switch -wait ends when the switch has ended, not when the agent has yet to hear of it.
func TestSwitchWaits(t *testing.T) {
	t.Parallel() // it waits
	f := newFakeAgent(t)
	w := world{env: map[string]string{"LENO_ADDRESS": f.url}}
	f.begun = &api.NetworkSwitch{From: "wireguard", To: "wireguard", Direction: api.SwitchForward, ModifyIndex: f.switching.ModifyIndex + 1}
	rotate := []string{"network", "switch", "default", "-rotate-keys"}
	if got := w.run(append(rotate, "-wait=500ms")...); got.code != cli.ExitFailed || !strings.Contains(got.stderr, "after 500ms: network default: the agent has not seen the change yet") {
		t.Errorf("%+v", got)
	}
	f.set(func() { f.switching = *f.begun })
	if got := w.run(append(rotate, "-wait=500ms")...); got.code != cli.ExitFailed || !strings.Contains(got.stderr, "after 500ms: network default: 0 of 0 hosts send to all others over wireguard") {
		t.Errorf("%+v", got)
	}
	later := time.AfterFunc(100*time.Millisecond, func() { f.set(func() { f.switching.To, f.switching.ModifyIndex = "", 12 }) })
	defer later.Stop()
	if got := w.run(append(rotate, "-wait=2m")...); got.code != cli.ExitDone {
		t.Errorf("%+v", got)
	}
}

// switch -wait prints each change of the state, and the end. With JSON, it prints one document.
func TestSwitchWaitPrints(t *testing.T) {
	t.Parallel() // it waits
	for _, format := range []string{"table", "json"} {
		f := newFakeAgent(t)
		hosts := []api.HostChange{{Node: "a"}, {Node: "b"}}
		state := func(direction string, moved int) api.NetworkSwitch {
			return api.NetworkSwitch{From: "vxlan", To: "udp", Direction: direction, Moved: moved, Hosts: hosts, ModifyIndex: 9}
		}
		f.switchStates = []api.NetworkSwitch{
			state(api.SwitchForward, 0), state(api.SwitchForward, 0), state(api.SwitchForward, 1), state(api.SwitchStopped, 1),
		}
		f.switching = api.NetworkSwitch{From: "udp", Hosts: []api.HostChange{}, ModifyIndex: 10}
		w := world{env: map[string]string{"LENO_ADDRESS": f.url}}
		got := w.run("network", "switch", "default", "-wait=2m", "-format="+format)
		said := regexp.MustCompile(`\S+: \d of 2 hosts|has the backend \S+,`).FindAllString(strings.Join(strings.Fields(got.stdout), " "), -1)
		want := []string{"udp: 0 of 2 hosts", "udp: 1 of 2 hosts", "udp: 1 of 2 hosts", "has the backend udp,"}
		if format == "json" {
			want = nil
		}
		if got.code != cli.ExitDone || !slices.Equal(said, want) || format == "json" && strings.Count(got.stdout, `"direction"`) != 1 {
			t.Errorf("%s: said %q of %+v", format, said, got)
		}
	}
}

// TestTyposOfReadingCommands: a typing mistake in one command never suggests another one.
func TestTyposOfReadingCommands(t *testing.T) {
	commands := Commands(cli.Meta{Getenv: func(string) string { return "" }})
	for name := range commands {
		words := strings.Fields(name)
		for _, typo := range typos(words[len(words)-1]) {
			args := append(slices.Clone(words[:len(words)-1]), typo)
			if commands[strings.Join(args, " ")] != nil {
				t.Errorf("a typo of %s is the command %q", name, args)
			}
			stderr := world{}.run(args...).stderr
			_, suggested, _ := strings.Cut(stderr, "did you mean ")
			suggested, _, _ = strings.Cut(suggested, "?")
			if suggested != words[len(words)-1] {
				t.Errorf("%q suggests %q, want %s", args, suggested, name)
			}
		}
	}
}

// typos returns the word with one letter missing, doubled or wrong, and with two neighbours swapped.
func typos(word string) (out []string) {
	for i := range word {
		out = append(out, word[:i]+word[i+1:], word[:i+1]+word[i:], word[:i]+"#"+word[i+1:])
		if i > 0 && word[i-1] != word[i] {
			out = append(out, word[:i-1]+word[i:i+1]+word[i-1:i]+word[i+1:])
		}
	}
	return out
}
